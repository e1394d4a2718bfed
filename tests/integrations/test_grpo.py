"""GRPO and RLOO of TRL: real training of tiny models, on the rollouts that teach."""

import pytest
import torch

pytest.importorskip("trl", reason="needs the extra [trl]")
import datasets
from trl import GRPOTrainer, RLOOConfig, RLOOTrainer

from selective_backprop import rl
from selective_backprop.integrations.trl import SelectiveGRPOTrainer, SelectiveRLOOTrainer
from tests.integrations import trl_texts as texts
from tests.integrations.forked import ranks
from tests.integrations.grpo_runs import make, on_two_ranks, weights

datasets.disable_progress_bars()
pytestmark = pytest.mark.filterwarnings("default")
OF_RLOO = {"config": RLOOConfig, "beta": 0.0}
ACCUMULATED = {"gradient_accumulation_steps": 2, "steps_per_generation": 2, "per_device_train_batch_size": 8}


def watching(kind):
    """This kind of trainer, which remembers the advantages that it trains on."""

    class Watching(kind):
        def _compute_loss(self, model, inputs):
            self.advantages = [*getattr(self, "advantages", []), inputs["advantages"]]
            return super()._compute_loss(model, inputs)

    return Watching


def trained(trainer):
    trainer.train()
    return trainer


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        *[(SelectiveGRPOTrainer, GRPOTrainer, {"loss_type": name}) for name in ("grpo", "dr_grpo", "dapo", "bnpo")],
        *[(SelectiveGRPOTrainer, GRPOTrainer, {"loss_type": name} | ACCUMULATED) for name in ("grpo", "dapo", "bnpo")],
        (SelectiveGRPOTrainer, GRPOTrainer, {"num_iterations": 2, "steps_per_generation": 2}),
        (SelectiveRLOOTrainer, RLOOTrainer, OF_RLOO),
        (SelectiveRLOOTrainer, RLOOTrainer, OF_RLOO | {"num_iterations": 2} | ACCUMULATED),
    ],
)
def test_a_run_without_equal_groups_is_trls_run_up_to_rounding(tmp_path, ours, theirs, options):
    plain, less = [trained(make(tmp_path, watching(kind), **options)) for kind in (theirs, ours)]
    start = torch.cat([parameter.detach().flatten() for parameter in texts.make_model().parameters()])
    moved = float((weights(plain) - start).abs().max())
    assert moved > 0.01
    torch.testing.assert_close(weights(less), weights(plain), rtol=0, atol=1e-5 * max(1, moved))
    assert logged(less, "reward") == logged(plain, "reward"), "the same answers were generated"
    rows = [sum(map(len, trainer.advantages)) for trainer in (plain, less)]
    assert rows[1] < 0.8 * rows[0]
    fractions = logged(less, "rollouts/trained")
    assert sum(fractions) / len(fractions) == pytest.approx(rows[1] / rows[0], abs=0.1)


def test_a_batch_without_anything_to_learn_changes_nothing(tmp_path):
    def rounded(completions, **rest):
        return [0.1] * len(completions)  # whose mean, in float32, is another number

    trainer = trained(make(tmp_path, watching(SelectiveGRPOTrainer), rewards=rounded))
    start = torch.cat([parameter.detach().flatten() for parameter in texts.make_model().parameters()])
    assert torch.equal(weights(trainer), start)
    assert [len(advantages) for advantages in trainer.advantages] == [1] * 4
    assert logged(trainer, "rollouts/trained") == [0] * 4


@pytest.mark.parametrize(
    ("kind", "options"), [(SelectiveGRPOTrainer, {"loss_type": "grpo"}), (SelectiveRLOOTrainer, OF_RLOO)]
)
def test_of_each_group_m_are_trained_on_with_the_advantages_of_all(tmp_path, kind, options):
    options = options | {"per_device_train_batch_size": 64, "max_steps": 1}
    trainer = trained(make(tmp_path, watching(kind), settings={"rollouts": rl.downsample(2)}, **options))
    found = trainer.advantages[0]
    groups = len(found) // 2
    assert 0 < groups < 16
    # Each group has a right answer and a wrong one. The mean over what is left counts as if equal groups were there.
    assert (found > 0).sum() == (found < 0).sum() == groups
    assert logged(trainer, "rollouts/trained") == [2 * groups / 64]
    if kind is SelectiveGRPOTrainer:  # 1, 2 or 3 of 4 rewards are 1: the advantage is (1 - p) / standard deviation
        rates = torch.tensor([0.25, 0.5, 0.75])
        expected = 2 * groups / 32 * (1 - rates) / ((4 / 3 * rates * (1 - rates)).sqrt() + 1e-4)
        assert float((found[found > 0][:, None] - expected).abs().min(1).values.max()) < 1e-5


def test_evaluation_is_trls_own_and_lora_works(tmp_path):
    results = []
    for kind in (GRPOTrainer, SelectiveGRPOTrainer):
        settings = {"eval_dataset": make(tmp_path).train_dataset.select(range(8)), "peft_config": texts.make_lora()}
        trainer = make(tmp_path, watching(kind), settings=settings, per_device_eval_batch_size=8)
        results.append(trainer.evaluate())
        assert [len(advantages) for advantages in trainer.advantages] == [8] * 4
        trained(trainer)
    assert results[0]["eval_reward"] == results[1]["eval_reward"]
    assert results[0]["eval_loss"] == results[1]["eval_loss"]


def test_it_resumes_as_trl_does(tmp_path):
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    whole = trained(make(tmp_path, **options))
    resumed = make(tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert torch.equal(weights(whole), weights(resumed))


def test_two_ranks_train_what_trl_trains(tmp_path):
    first, second = ranks(on_two_ranks, tmp_path)
    for name in ("ours", "downsampled"):
        assert torch.equal(first[name], second[name]), "ranks agree on the weights"
    torch.testing.assert_close(first["ours"], first["trl"], rtol=0, atol=1e-5)
    assert first["fraction"] == second["fraction"]


def test_bad_input_is_refused_at_the_start(tmp_path):
    with pytest.raises(ValueError, match="only 4 are generated"):
        make(tmp_path, settings={"rollouts": rl.downsample(5)})
    with pytest.raises(TypeError, match="rollouts must be"):
        make(tmp_path, settings={"rollouts": 2})
    trainer = make(tmp_path)
    images = {"advantages": torch.ones(2), "pixel_values": torch.zeros(2, 3)}
    with pytest.raises(ValueError, match="images"):
        trainer.compute_loss(trainer.model, images)
