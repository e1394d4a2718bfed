"""GRPO and RLOO of TRL: real training of tiny models, with prompts and rollouts that are chosen."""

import signal

import pytest
import torch

pytest.importorskip("trl", reason="needs the extra [trl]")
import datasets
from trl import GRPOTrainer, RLOOConfig, RLOOTrainer

import selective_backprop as sb
from selective_backprop import rl
from selective_backprop.integrations.trl import SelectiveGRPOTrainer, SelectiveRLOOTrainer
from tests.integrations import trl_texts as texts
from tests.integrations.forked import fork, ranks
from tests.integrations.grpo_runs import KILLED, killed, make, on_two_ranks, prompts, right, short, weights

datasets.disable_progress_bars()
pytestmark = pytest.mark.filterwarnings("default")
SGD = {"optim": "sgd", "learning_rate": 1.0, "max_steps": 1}


def trained(trainer):
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (SelectiveGRPOTrainer, GRPOTrainer, {"num_iterations": 2, "steps_per_generation": 2}),
        (SelectiveRLOOTrainer, RLOOTrainer, {"config": RLOOConfig, "beta": 0.0}),
    ],
)
def test_without_options_it_is_trls_trainer_to_the_bit(tmp_path, ours, theirs, options):
    found = [trained(make(tmp_path, kind, **options)) for kind in (ours, theirs)]
    assert torch.equal(*map(weights, found))
    histories = [[entry.get("reward") for entry in trainer.state.log_history] for trainer in found]
    assert histories[0] == histories[1]


# ---- which prompts


def test_prompts_are_chosen_and_their_rewards_recorded(tmp_path):
    trainer = trained(make(tmp_path, settings={"method": rl.greso()}, max_steps=24))
    rows, drawn = trainer.prompts.whole(), trainer.prompt_sampler.sampler.ledger.selected
    assert rows.mean[:8].tolist() == [1.0] * 8
    assert bool((rows.run[:8] > 0).all())
    assert float(drawn[8:].sum()) > 1.5 * float(drawn[:8].sum()), "those that are always right come less often"
    assert int(drawn.sum()) == 24 * 2, "as many prompts as TRL takes"
    assert trainer.state.global_step == 24


def test_reward_functions_do_not_see_the_column_of_ids_and_evaluation_leaves_the_ledger_alone(tmp_path):
    seen = set()

    def looking(prompts, completions, **rest):
        seen.update(rest)
        return right(prompts, completions)

    data = prompts().add_column("level", list(range(16)))
    trainer = make(
        tmp_path,
        data=data,
        rewards=looking,
        settings={"method": rl.uniform(), "eval_dataset": prompts(4)},
        per_device_eval_batch_size=4,
        eval_strategy="steps",
        eval_steps=2,
    )
    trained(trainer)
    assert "level" in seen
    assert not any("selective" in name for name in seen)
    assert trainer.prompts.num_steps == 4
    assert "selective_backprop_id" not in data.column_names


def test_the_ledger_follows_the_reward_that_was_named(tmp_path):
    settings = {"method": rl.retire_mastered(), "reward": "right"}
    trainer = trained(make(tmp_path, rewards=[short, right], settings=settings, max_steps=8))
    assert trainer.prompts.whole().mean[:8].tolist() == [1.0] * 8
    summed = trained(make(tmp_path, rewards=[short, right], settings={"method": rl.greso(), "reward": "sum"}))
    assert float(summed.prompts.whole().mean.min()) < 0


def test_rollouts_without_a_reward_do_not_count(tmp_path):
    def sometimes(prompts, completions, **rest):
        return [None if number % 4 == 3 else float(len(text) % 2) for number, text in enumerate(completions)]

    trainer = trained(make(tmp_path, rewards=sometimes, settings={"method": rl.uniform(half_life=1e9)}, max_steps=2))
    assert trainer.prompts.whole().rollouts.unique().tolist() == [0, 3]


def test_a_generation_may_have_no_prompt_that_the_named_reward_applies_to(tmp_path):
    """As in a mix of tasks, each with a reward function of its own."""

    def first_half(prompts, completions, **rest):
        return [1.0 if int(prompt.split()[-1]) < 8 else None for prompt in prompts]

    settings = {"method": rl.greso(), "reward": "first_half", "rollouts": rl.drop_equal()}
    trainer = trained(make(tmp_path, rewards=[first_half, short], settings=settings, max_steps=8))
    assert trainer.prompts.whole().is_seen.tolist() == [True] * 8 + [False] * 8


def test_lora_and_loader_workers(tmp_path):
    settings = {"method": rl.near_half(), "rollouts": rl.downsample(2), "peft_config": texts.make_lora()}
    trainer = trained(make(tmp_path, settings=settings, dataloader_num_workers=1, max_steps=10))
    assert trainer.prompts.num_steps == 10
    assert trainer.rollout_stats.rollouts == 80


# ---- which rollouts


class Watching(SelectiveGRPOTrainer):
    """Remembers what the backward passes got."""

    def compute_loss(self, model, inputs, *args, **options):
        self.passes = [*getattr(self, "passes", []), inputs]
        return super().compute_loss(model, inputs, *args, **options)


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
@pytest.mark.parametrize("steps", [1, 2])
def test_leaving_out_equal_groups_does_not_change_the_gradient(tmp_path, loss_type, steps):
    """By one step of SGD. The whole epoch is one batch, so half of the groups are equal."""
    options = SGD | {"loss_type": loss_type, "per_device_train_batch_size": 64 // steps, "num_generations": 4}
    options |= {"gradient_accumulation_steps": steps, "steps_per_generation": steps}
    plain = trained(make(tmp_path, settings={"method": rl.uniform()}, **options))
    ours = trained(make(tmp_path, Watching, settings={"rollouts": rl.drop_equal()}, **options))
    start = torch.cat([parameter.flatten() for parameter in texts.make_model().parameters()])
    assert not torch.equal(weights(plain), start)
    torch.testing.assert_close(weights(ours) - start, weights(plain) - start, rtol=1e-3, atol=1e-6)
    stats = ours.rollout_stats
    assert stats.rollouts == plain.rollout_stats.trained_rollouts == 64
    assert stats.equal_groups >= 8
    assert stats.trained_rollouts == 64 - 4 * stats.equal_groups
    rows = sum(len(inputs["advantages"]) for inputs in ours.passes)
    assert rows - steps < stats.trained_rollouts <= rows
    assert stats.trained_tokens < stats.generated_tokens


@pytest.mark.parametrize("kind", [SelectiveGRPOTrainer, SelectiveRLOOTrainer])
def test_of_each_group_m_are_trained_on_with_the_advantages_of_all(tmp_path, kind):
    class Seeing(kind):
        seen = ()

        def compute_loss(self, model, inputs, *args, **options):
            self.seen = [*self.seen, inputs["advantages"]]
            return super().compute_loss(model, inputs, *args, **options)

    options = SGD | {"per_device_train_batch_size": 64}
    options |= {"config": RLOOConfig, "beta": 0.0} if kind is SelectiveRLOOTrainer else {"loss_type": "grpo"}
    trainer = trained(make(tmp_path, Seeing, settings={"rollouts": rl.downsample(2)}, **options))
    stats = trainer.rollout_stats
    taught = stats.groups - stats.equal_groups
    assert 0 < taught < 16
    assert stats.trained_rollouts == 2 * taught
    found = trainer.seen[0]
    assert len(found) == 2 * taught
    # Each group has a right answer and a wrong one. The mean over what is left counts as if equal groups were there.
    scale = 2 * taught / 32
    assert (found > 0).sum() == (found < 0).sum() == taught
    if kind is SelectiveGRPOTrainer:  # 1, 2 or 3 of 4 rewards are 1: the advantage is (1 - p) / standard deviation
        rates = torch.tensor([0.25, 0.5, 0.75])
        expected = scale * (1 - rates) / ((4 / 3 * rates * (1 - rates)).sqrt() + 1e-4)
        assert float((found[found > 0][:, None] - expected).abs().min(1).values.max()) < 1e-5


def test_other_prompts_fill_the_batch_up(tmp_path):
    settings = {"rollouts": rl.drop_equal(refill=3)}
    options = {"steps_per_generation": 2, "gradient_accumulation_steps": 2, "max_steps": 3}
    trainer = trained(make(tmp_path, Watching, settings=settings, **options))
    stats = trainer.rollout_stats
    assert stats.generations > 3
    assert stats.rollouts == 16 * stats.generations
    assert all(len(inputs["advantages"]) <= 8 for inputs in trainer.passes)
    assert any(len(inputs["advantages"]) == 8 for inputs in trainer.passes)
    assert int(trainer.prompt_sampler.sampler.ledger.selected.sum()) * 4 == stats.rollouts


def test_costs_are_logged_apart(tmp_path):
    trainer = trained(make(tmp_path, settings={"method": rl.greso(), "rollouts": rl.drop_equal()}, num_iterations=2))
    entries = [entry for entry in trainer.state.log_history if "rollouts/generated_tokens" in entry]
    stats = trainer.rollout_stats
    for name in ("generated_tokens", "trained_tokens", "rollouts", "equal_groups"):
        assert sum(entry[f"rollouts/{name}"] for entry in entries) == getattr(stats, name)
    assert stats.generated_tokens == trainer.state.num_input_tokens_seen - 3 * stats.rollouts, "prompts have 3 tokens"
    assert stats.training_seconds > 0
    assert stats.generating_seconds > 0


# ---- resuming


@pytest.mark.parametrize(
    ("at", "options"),
    [
        (3, {"steps_per_generation": 2, "num_iterations": 2}),  # in the middle of what was generated
        (4, {"dataloader_num_workers": 1}),  # which asks for prompts ahead
    ],
)
def test_a_run_resumes_exactly_from_its_checkpoint(tmp_path, at, options):
    settings = {"method": rl.greso(), "rollouts": rl.drop_equal(refill=1)}
    options |= {"max_steps": 12, "save_strategy": "steps", "save_steps": at}
    whole = trained(make(tmp_path, settings=settings, **options))
    resumed = make(tmp_path, settings=settings, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
    assert torch.equal(weights(whole), weights(resumed))
    ledgers = [trainer.prompt_sampler.sampler.ledger.state_dict() for trainer in (whole, resumed)]
    assert all(torch.equal(ledgers[0][name].nan_to_num(-1), ledgers[1][name].nan_to_num(-1)) for name in ledgers[0])
    assert whole.rollout_stats.generated_tokens == resumed.rollout_stats.generated_tokens


def test_a_process_that_was_killed_resumes_exactly(tmp_path):
    """In the second epoch: 16 prompts are 8 steps."""
    assert fork(killed, tmp_path) == [-signal.SIGKILL]
    settings = {"method": rl.greso(), "rollouts": rl.drop_equal()}
    resumed = make(tmp_path, settings=settings, **KILLED)
    resumed.train(resume_from_checkpoint=True)
    whole = trained(make(tmp_path / "whole", settings=settings, **KILLED))
    assert torch.equal(weights(whole), weights(resumed))
    assert torch.equal(whole.prompts.whole().mean, resumed.prompts.whole().mean)
    assert whole.rollout_stats.generated_tokens == resumed.rollout_stats.generated_tokens


def test_resuming_without_our_state_or_with_other_prompts_is_refused(tmp_path):
    trained(make(tmp_path, max_steps=2, save_strategy="steps", save_steps=2))
    with pytest.raises(FileNotFoundError, match=r"no selective_backprop\.pt"):
        make(tmp_path, settings={"method": rl.greso()}).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    trained(make(tmp_path, settings={"method": rl.greso()}, max_steps=2, save_strategy="steps", save_steps=2))
    with pytest.raises(ValueError, match="saved for 16 examples"):
        other = make(tmp_path, data=prompts(20), settings={"method": rl.greso()})
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_two_ranks_agree_and_resume(tmp_path):
    first, second = ranks(on_two_ranks, tmp_path)
    assert torch.equal(first["trl"], first["plain"])
    assert torch.equal(first["both"], second["both"]), "ranks agree on the weights"
    assert torch.equal(first["ledger"], second["ledger"]), "and on what they know about prompts"
    assert torch.equal(first["both"], first["resumed"])
    assert first["rollouts"] == second["rollouts"] >= 4 * 12


# ---- bad input


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"method": rl.greso(), "reward": "accuracy"}, {}, "no reward function 'accuracy'.*one of right, or 'sum'"),
        ({"method": rl.greso()}, {"rewards": [right, short]}, "2 reward functions: pass reward="),
        ({"reward": "right"}, {}, "pass method= too"),
        ({"method": sb.ledger_backprop()}, {}, "selects by losses"),
        ({"rollouts": rl.downsample(5)}, {}, "only 4 are generated"),
        ({"method": rl.greso()}, {"num_generations": 1}, "at least 2 generations"),
        ({"method": rl.greso()}, {"data": prompts().to_iterable_dataset()}, "not a stream"),
        ({"rollouts": rl.drop_equal()}, {"data": prompts().add_column("image", [None] * 16)}, "text alone"),
        (
            {"method": rl.greso()},
            {"data": prompts().add_column("selective_backprop_id", [0] * 16)},
            "has a column selective_backprop_id already",
        ),
    ],
)
def test_bad_input_is_refused_at_the_start(tmp_path, settings, options, message):
    with pytest.raises(ValueError, match=message):
        make(tmp_path, settings=settings, **options)


def test_rewards_that_are_all_missing_or_not_gathered_are_refused(tmp_path):
    def nothing(completions, **rest):
        return [None] * len(completions)

    with pytest.raises(ValueError, match="all rewards of the first 8 rollouts are NaN or None"):
        make(tmp_path, rewards=nothing, settings={"method": rl.greso()}).train()

    class Local(GRPOTrainer):
        def _calculate_rewards(self, *args):
            return super()._calculate_rewards(*args)[:4]

    class Mine(SelectiveGRPOTrainer.__mro__[1], Local):
        pass

    with pytest.raises(ValueError, match="4 rewards for the 8 rollouts of all ranks: _calculate_rewards must gather"):
        make(tmp_path, Mine, settings={"method": rl.greso()}).train()


def test_other_things_than_rules_are_refused(tmp_path):
    with pytest.raises(TypeError, match="rollouts must be"):
        make(tmp_path, settings={"rollouts": 2})
    with pytest.raises(TypeError, match="method must be a Method"):
        make(tmp_path, settings={"method": "greso"})
