"""SelectiveGRPOTrainer and SelectiveRLOOTrainer: which prompts to generate from, and which rollouts to train on.

# B = rollouts of a generation batch on this rank, N = those of all ranks, P = its prompts, G = rollouts of a prompt
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
from accelerate.utils import send_to_device
from datasets import Dataset
from torch import Tensor
from transformers import Trainer
from trl import GRPOTrainer, RLOOTrainer

from selective_backprop.integrations.transformers import STATE_KIND, state_path
from selective_backprop.integrations.trl.prompts import PromptSampler
from selective_backprop.method import Method, require_method
from selective_backprop.prompt_ledger import PromptLedger
from selective_backprop.rl import Rollouts, RolloutStats, uniform
from selective_backprop.saved import read_state, write_state

ID = "selective_backprop_id"
"""The column with the number of a prompt's row. Reward functions do not see it."""
_TEXT_ALONE = "rollouts= works on text alone: images of a batch have no row per rollout. Use method= alone"
_OF_ALL = ("cispo", "dapo", "vespo")  # losses that divide by the number of tokens of all ranks and steps


class _SelectiveOnline(Trainer):  # type: ignore[misc]
    """Chooses prompts and rollouts for a trainer that generates. A mixin: it comes before the trainer.

    Args:
        args, options: as for the trainer.
        method: how to choose prompts: `rl.greso()`, `rl.retire_mastered()`, `rl.near_half()` or `rl.uniform()`.
        rollouts: which rollouts to backpropagate: `rl.drop_equal()` or `rl.downsample(m)`.
        reward: name of the reward function that says whether an answer is right, for the method. "sum" for the weighted
            sum of all. Needed if there are several.
    """

    def __init__(
        self,
        *args: Any,
        method: Method | None = None,
        rollouts: Rollouts | None = None,
        reward: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._selects = method is not None or rollouts is not None
        if not self._selects:
            if reward is not None:
                raise ValueError(f"reward={reward!r} is for a method that chooses prompts: pass method= too")
            return
        method = uniform() if method is None else method
        _check(self, method, rollouts)
        self.method, self.rollouts = method, rollouts
        self._reward = _reward_index(self.reward_func_names, reward, needed=method.name != "uniform")
        self.rollout_stats = RolloutStats()
        """What was generated and trained on so far: tokens, rollouts, seconds."""
        self._logged = RolloutStats()
        dataset: Any = self.train_dataset  # type: ignore[has-type]
        self.train_dataset = dataset.add_column(ID, list(range(len(dataset))))
        self.prompt_sampler = PromptSampler(
            method,
            num_prompts=len(self.train_dataset),
            per_batch=self.args.generation_batch_size // self.num_generations,
            num_generations=self.num_generations,
            repeats=self.num_iterations * self.args.steps_per_generation,
            seed=self.args.seed if self.args.data_seed is None else self.args.data_seed,
        )
        """The prompts, in the order of generation, with the plans behind them."""

    @property
    def prompts(self) -> PromptLedger:
        """What is known about each prompt."""
        return PromptLedger(self.prompt_sampler.sampler.ledger)

    # ---- which prompts

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        columns: list[str] = self._signature_columns  # type: ignore[has-type]
        if self._selects and ID not in columns:
            self._signature_columns = [*columns, ID]

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return self.prompt_sampler if self._selects else super()._get_train_sampler(dataset)

    def _calculate_rewards(self, inputs: Any, *args: Any, **options: Any) -> Any:
        self._rewards = super()._calculate_rewards(inputs, *args, **options)
        expected = len(inputs) * self.accelerator.num_processes
        if self._selects and len(self._rewards) != expected:
            raise ValueError(
                f"there are {len(self._rewards)} rewards for the {expected} rollouts of all ranks: _calculate_rewards "
                "must gather them, as TRL's does"
            )
        return self._rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Any:
        if not self._selects or not self.model.training:
            return super()._generate_and_score_completions(inputs)
        with _seconds(self.rollout_stats, "generating_seconds"):
            output, keep, num_tokens = self._generate_for(inputs)
            if self.rollouts is None:
                self._count_trained(len(keep), num_tokens)
                return output
            return self._only_kept(output, keep)

    def _generate_for(self, inputs: list[dict[str, Any]]) -> tuple[dict[str, Any], Tensor, int]:
        """Generate, and record rewards. Returns TRL's batch, (N,) what to keep, and the number of tokens."""
        ids = self.accelerator.gather(torch.tensor([row[ID] for row in inputs], device=self.accelerator.device)).cpu()
        output = super()._generate_and_score_completions(
            [{key: value for key, value in row.items() if key != ID} for row in inputs]
        )
        size = self.num_generations
        self._record(ids, self._rewards)
        advantages = self.accelerator.gather(output["advantages"]).view(-1, size)
        differ = Rollouts().keep(advantages)
        keep = torch.ones_like(differ) if self.rollouts is None else self.rollouts.keep(advantages)
        num_tokens = int(self.accelerator.gather(_loss_mask(output).sum()).sum())
        stats = self.rollout_stats
        stats.generations += 1
        stats.groups += len(differ)
        stats.equal_groups += int((~differ[:, 0]).sum())
        stats.rollouts += len(ids)
        stats.generated_tokens += num_tokens
        return output, keep.flatten(), num_tokens

    def _record(self, ids: Tensor, rewards: Tensor) -> None:
        """Tell the ledger the reward that was asked for."""
        if self._reward is None:
            chosen = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
            chosen = chosen.masked_fill(rewards.isnan().all(1), float("nan"))
        else:
            chosen = rewards[:, self._reward]
        if self.rollout_stats.generations == 0 and bool(rewards.isnan().all()):
            raise ValueError(f"all rewards of the first {len(chosen)} rollouts are NaN or None: check reward_funcs")
        # A reward function may return None where it does not apply. Prompts with a single reward are left out.
        chosen = chosen.cpu().double()
        known = ~chosen.isnan()
        known &= (known.view(-1, self.num_generations).sum(1) > 1).repeat_interleave(self.num_generations)
        if bool(known.any()):
            self.prompt_sampler.sampler.update(chosen[known], ids=ids[known])

    # ---- which rollouts

    def _only_kept(self, output: dict[str, Any], keep: Tensor) -> dict[str, Any]:
        """Leave out what is not backpropagated. If asked to, generate more in its place."""
        assert self.rollouts is not None
        rows, rank, ranks = len(output["advantages"]), self.accelerator.process_index, self.accelerator.num_processes
        share = 1 if self.rollouts.m is None else self.rollouts.m / self.num_generations
        room = int(rows * share)
        own = slice(rank * rows, (rank + 1) * rows)
        parts, chosen = [output], [keep[own].nonzero().flatten()[:room]]
        counts = keep.view(ranks, rows).sum(1).clamp(max=room)
        for _ in range(self.rollouts.refill):
            if int(counts.min()) >= room:
                break
            batch = [prompt for prompt in self.prompt_sampler.take() for _ in range(self.num_generations)][own]
            output, keep, _ = self._generate_for([self.train_dataset[number] for number in batch])
            left = room - sum(len(part) for part in chosen)
            parts.append(output)
            chosen.append(keep[own].nonzero().flatten()[:left])
            counts = (counts + keep.view(ranks, rows).sum(1)).clamp(max=room)
        tokenizer: Any = getattr(self.processing_class, "tokenizer", self.processing_class)  # of a processor
        pad_token = int(tokenizer.pad_token_id)
        result = _join([_rows(part, places) for part, places in zip(parts, chosen, strict=True)], pad_token)
        total = int(counts.sum())
        trained_tokens = int(self.accelerator.gather(_loss_mask(result).sum()).sum())
        self._count_trained(total, trained_tokens)
        # All steps need equally many rows, on all ranks, and one at least: others fill up, with an advantage of 0.
        steps, count = self.args.steps_per_generation, len(result["advantages"])
        missing = max(1, -(-int(counts.max()) // steps)) * steps - count
        spare = torch.ones(rows, dtype=torch.bool, device=chosen[0].device).index_fill_(0, chosen[0], False)
        fill = _rows(parts[0], spare.nonzero().flatten()[:missing])
        fill["advantages"] = torch.zeros_like(fill["advantages"])
        result = _join([result, fill], pad_token)
        # The same denominators as if all were there: the gradient of what is left out is 0, or m of G are trained on.
        if getattr(self, "loss_type", None) in _OF_ALL:
            plain = parts[0]["num_items_in_batch"] * share
            full = result["num_items_in_batch"].new_tensor(trained_tokens * room * ranks / max(1, total))
            result["num_items_in_batch"] = full if self.rollouts.refill else plain
        else:
            result["advantages"] = result["advantages"] * (count + missing) / (rows * share)
        return result

    def _count_trained(self, rollouts: int, tokens: int) -> None:
        self.rollout_stats.trained_rollouts += rollouts * self.num_iterations
        self.rollout_stats.trained_tokens += tokens * self.num_iterations

    # ---- accounting

    def training_step(self, *args: Any, **options: Any) -> Any:
        if not self._selects:
            return super().training_step(*args, **options)
        generating = self.rollout_stats.generating_seconds
        with _seconds(self.rollout_stats, "training_seconds"):
            loss = super().training_step(*args, **options)
        self.rollout_stats.training_seconds -= self.rollout_stats.generating_seconds - generating
        return loss

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        if self._selects and self.model.training:
            new, self._logged = self.rollout_stats.since(self._logged), replace(self.rollout_stats)
            if any(new.values()):  # not so at the end of training, where Trainer logs a summary
                logs.update({f"rollouts/{name}": value for name, value in new.items()})
        super().log(logs, *args, **options)

    # ---- checkpoints

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if self._selects:
            state = {
                "prompts": self.prompt_sampler.state_dict(),
                "stats": asdict(self.rollout_stats),
                "step": self._step,
                # What was generated and not used up yet. TRL would generate it again.
                "buffer": self._buffered_inputs,
            }
            write_state(state_path(self, output_dir), STATE_KIND, state)

    def _init_training_state(self, *args: Any, **options: Any) -> Any:
        result = super()._init_training_state(*args, **options)
        checkpoint = options.get("checkpoint", args[3] if len(args) > 3 else None)
        if self._selects and checkpoint is not None:
            state = read_state(state_path(self, checkpoint, must_exist=True), STATE_KIND)
            self.prompt_sampler.load_state_dict(state["prompts"])
            self.rollout_stats = RolloutStats(**state["stats"])
            self._logged = replace(self.rollout_stats)
            self._step = state["step"]
            buffer, device = state["buffer"], self.accelerator.device
            self._buffered_inputs = buffer and [send_to_device(part, device) for part in buffer]
        return result


class SelectiveGRPOTrainer(_SelectiveOnline, GRPOTrainer):  # type: ignore[misc]
    """A GRPOTrainer that chooses which prompts to generate from, and which rollouts to backpropagate.

    Everything that GRPOConfig says stays as it is, vLLM included. The number of steps stays the same: a prompt that is
    skipped makes room for another one. Without method and rollouts it is GRPOTrainer to the bit.

    Args:
        args, options: as for GRPOTrainer.
        method: how to choose prompts: `rl.greso()`, `rl.retire_mastered()`, `rl.near_half()` or `rl.uniform()`.
        rollouts: which rollouts to backpropagate: `rl.drop_equal()` or `rl.downsample(m)`. Advantages come from all
            rollouts. With beta, the KL divergence is that of the rollouts which are trained on.
        reward: name of the reward function that says whether an answer is right, for the method. "sum" for the weighted
            sum of all. Needed if there are several.
    """


class SelectiveRLOOTrainer(_SelectiveOnline, RLOOTrainer):  # type: ignore[misc]
    """An RLOOTrainer that chooses which prompts to generate from, and which rollouts to backpropagate.

    Args:
        args, options: as for RLOOTrainer.
        method, rollouts, reward: as for SelectiveGRPOTrainer.
    """


def _check(trainer: Any, method: Any, rollouts: Any) -> None:
    """Raise for what cannot work, before anything is generated."""
    require_method(method)
    if not method.scorer.needs.rewards:
        raise ValueError(
            f"{method.name} selects by losses, but prompts are chosen by rewards: use a method of sb.rl, such as "
            "sb.rl.greso()"
        )
    if rollouts is not None and not isinstance(rollouts, Rollouts):
        raise TypeError(f"rollouts must be sb.rl.drop_equal() or sb.rl.downsample(m), got {rollouts!r:.200}")
    if rollouts is not None:
        rollouts.check(trainer.num_generations)
    dataset = trainer.train_dataset
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"prompts are told apart by their row in train_dataset, and {type(dataset).__name__} has no rows: use a "
            "data set with a length, not a stream"
        )
    if rollouts is not None and {"image", "images"} & set(dataset.column_names):
        raise ValueError(_TEXT_ALONE)
    if ID in dataset.column_names:
        raise ValueError(f"train_dataset has a column {ID} already: remove it, or pass the data set as it was before")


def _reward_index(names: list[str], reward: str | None, *, needed: bool) -> int | None:
    """Return which reward function the ledger follows; None for the weighted sum of all."""
    if reward is not None and reward != "sum" and reward not in names:
        raise ValueError(f"there is no reward function {reward!r}: pass reward= one of {', '.join(names)}, or 'sum'")
    if reward is None and len(names) > 1 and needed:
        raise ValueError(
            f"there are {len(names)} reward functions: pass reward= the one that says whether an answer is right, of "
            f"{', '.join(names)}. With a sum, a prompt that is mastered could look unsolved; reward='sum' takes it"
        )
    return names.index(reward) if reward in names else 0 if len(names) == 1 else None


@contextmanager
def _seconds(stats: RolloutStats, name: str) -> Iterator[None]:
    begin = time.perf_counter()
    try:
        yield
    finally:
        setattr(stats, name, getattr(stats, name) + time.perf_counter() - begin)


def _loss_mask(output: dict[str, Any]) -> Tensor:
    mask: Tensor = output["completion_mask"]
    return mask * output["tool_mask"] if "tool_mask" in output else mask


def _rows(batch: dict[str, Any], places: Tensor) -> dict[str, Any]:
    """Return some rows of a batch of TRL's."""
    if "pixel_values" in batch:
        raise ValueError(_TEXT_ALONE)  # a tool may return images, if the prompts have none
    return {name: value[places] if _has_rows(value) else value for name, value in batch.items()}


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _join(batches: list[dict[str, Any]], pad_token: int) -> dict[str, Any]:
    """Join the rows of batches, padded to the same lengths: prompts on the left, all else on the right."""
    result = dict(batches[0])
    for name in [name for name, value in result.items() if _has_rows(value)]:
        parts = [batch[name] for batch in batches]
        if parts[0].dim() > 1:
            longest = max(part.shape[1] for part in parts)
            fill = pad_token if name.endswith("_ids") else 0
            sides = [
                (longest - part.shape[1], 0) if name.startswith("prompt") else (0, longest - part.shape[1])
                for part in parts
            ]
            parts = [torch.nn.functional.pad(part, side, value=fill) for part, side in zip(parts, sides, strict=True)]
        result[name] = torch.cat(parts)
    return result
