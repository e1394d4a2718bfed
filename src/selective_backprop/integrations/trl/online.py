"""SelectiveGRPOTrainer and SelectiveRLOOTrainer: backpropagate only the rollouts that teach.

# B = rollouts of a generation batch on this rank, N = rollouts of a training batch, G = rollouts of a prompt
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import Trainer
from trl import GRPOTrainer, RLOOTrainer

from selective_backprop.rl import Rollouts, drop_equal

_BY_TOKENS_OF_ALL = ("cispo", "dapo", "vespo")
"""Losses that divide by the tokens of all rollouts, whatever is in a training batch."""


class _DropsRollouts(Trainer):  # type: ignore[misc]
    """Leaves rollouts out of the passes of a trainer that generates. A mixin: it comes before the trainer.

    Whatever is left out has an advantage of 0. So nothing changes but rounding if its group's rewards are equal.
    """

    def __init__(self, *args: Any, rollouts: Rollouts | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rollouts = drop_equal() if rollouts is None else rollouts
        if not isinstance(self.rollouts, Rollouts):
            raise TypeError(f"rollouts must be sb.rl.drop_equal() or sb.rl.downsample(m), got {rollouts!r:.200}")
        self.rollouts.check(self.num_generations)
        self._trained, self._generated = 0, 0  # rollouts since the last log entry, on all ranks

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        """Generate as TRL does. The advantages of what will be left out become 0."""
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            own: Tensor = output["advantages"]  # (B,); a group may lie on several ranks
            keep = self.rollouts.keep(self.accelerator.gather(own).view(-1, self.num_generations)).flatten()
            keep = keep[self.accelerator.process_index * len(own) :][: len(own)]
            output["advantages"] = own * keep * self.rollouts.scale(self.num_generations)
        return output

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        """Compute TRL's loss from the rollouts whose advantage is not 0."""
        if self.model.training:
            inputs = self._without_zeros(inputs)
        return super().compute_loss(model, inputs, *args, **options)

    def _without_zeros(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if "pixel_values" in inputs:
            raise ValueError("images have no row per rollout, so none can be left out: use TRL's own trainer")
        teaches = inputs["advantages"] != 0
        # Metrics are gathered, so all ranks need equally many rows, and one at least: others fill up.
        counts = self.accelerator.gather(teaches.sum().view(1))
        rows = teaches.int().argsort(descending=True, stable=True)[: max(1, int(counts.max()))].sort().values
        self._trained += int(counts.sum())
        self._generated += len(teaches) * len(counts)
        taken = {name: value[rows] if _has_rows(value) else value for name, value in inputs.items()}
        # A loss that is a mean over rows divides by fewer of them. Larger advantages make up for it.
        loss_type = getattr(self, "loss_type", "rloo")
        if loss_type == "bnpo":
            taken["advantages"] = taken["advantages"] * _num_tokens(taken) / _num_tokens(inputs)
        elif loss_type not in _BY_TOKENS_OF_ALL:
            taken["advantages"] = taken["advantages"] * len(rows) / len(teaches)
        return taken

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Add the fraction of rollouts that were backpropagated since the last entry."""
        if self._generated and self.model.training:
            logs["rollouts/trained"] = self._trained / self._generated
            self._trained, self._generated = 0, 0
        super().log(logs, *args, **options)


class SelectiveGRPOTrainer(_DropsRollouts, GRPOTrainer):  # type: ignore[misc]
    """A GRPOTrainer that backpropagates only the rollouts that teach.

    It generates what GRPOTrainer generates. By default it leaves out groups whose rewards are all equal, which have no
    gradient: the weights become those of GRPOTrainer up to rounding, for less time.

    Args:
        args, options: as for GRPOTrainer.
        rollouts: which rollouts to backpropagate: `rl.drop_equal()`, the default, or `rl.downsample(m)`. With beta, an
            entropy bonus or a router loss, those terms are means over the rollouts that are trained on.
    """


class SelectiveRLOOTrainer(_DropsRollouts, RLOOTrainer):  # type: ignore[misc]
    """An RLOOTrainer that backpropagates only the rollouts that teach.

    RLOOConfig's beta is part of the reward: only with `beta=0.0` are there groups whose rewards are all equal.

    Args:
        args, options: as for RLOOTrainer.
        rollouts: as for SelectiveGRPOTrainer.
    """


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _num_tokens(inputs: dict[str, Any]) -> Tensor:
    mask: Tensor = inputs["completion_mask"] * inputs.get("tool_mask", 1)
    return mask.sum().clamp(min=1)
