"""The ledger of prompts: what is known about each, how it fades, and what is refused."""

import math

import pytest
import torch

import selective_backprop as sb
from selective_backprop import rl


def test_it_is_at_the_top_level_and_in_rl():
    assert sb.PromptLedger is rl.PromptLedger is sb.rl.PromptLedger


@pytest.mark.parametrize("half_life", [2.0, 1e9])
def test_mean_and_variance_are_those_of_all_rewards_with_older_ones_counting_less(half_life):
    """A slow reference: every reward with its weight."""
    generator = torch.Generator().manual_seed(0)
    ledger = rl.PromptLedger(3, half_life=half_life)
    seen = []
    for step in range(6):
        rewards = torch.rand(1, 4, generator=generator, dtype=torch.float64)
        if step != 3:
            ledger.update([1], rewards)
            seen.append((step, rewards))
        else:
            ledger.update([0], rewards)
    weights = torch.tensor([0.5 ** ((5 - step) / half_life) for step, _ in seen]).repeat_interleave(4).double()
    values = torch.cat([rewards.flatten() for _, rewards in seen])
    mean = (weights * values).sum() / weights.sum()
    variance = (weights * (values - mean).square()).sum() / weights.sum()
    rows = ledger.whole()
    assert rows.rollouts[1].item() == pytest.approx(weights.sum().item(), rel=1e-5)
    assert rows.mean[1].item() == pytest.approx(mean.item(), rel=1e-5)
    assert rows.variance[1].item() == pytest.approx(variance.item(), rel=1e-4)
    assert rows.step.tolist() == [3, 5, -1]


def test_a_run_counts_groups_with_equal_rewards_by_whether_they_were_right():
    ledger, runs = rl.PromptLedger(1), []
    for reward in (1, 1, 0, 0, 0, None, 1):
        ledger.update([0], [[0.0, 1.0]] if reward is None else [[float(reward)] * 3])
        runs.append(ledger.whole().run.item())
    assert runs == [1, 2, -1, -2, -3, 0, 1]


def test_flat_rewards_are_grouped_by_their_ids():
    flat, square = rl.PromptLedger(5), rl.PromptLedger(5)
    flat.update([4, 2, 2, 4], [1.0, 0.0, 1.0, 0.5])
    square.update([2, 4], [[0.0, 1.0], [1.0, 0.5]])
    assert all(torch.equal(getattr(flat.whole(), name), getattr(square.whole(), name)) for name in ("mean", "variance"))


def test_a_saved_ledger_goes_on_as_if_it_had_not_stopped():
    first, second = rl.PromptLedger(2, half_life=3), rl.PromptLedger(2, half_life=3)
    first.update([0], [[0.0, 1.0]])
    second.load_state_dict(first.state_dict())
    for ledger in (first, second):
        ledger.update([0, 1], [[1.0, 1.0], [0.0, 0.0]])
    assert torch.equal(first.ledger.prompt, second.ledger.prompt)
    assert first.num_steps == second.num_steps == 2


def test_what_is_known_can_be_written_to_a_file(tmp_path):
    ledger = rl.PromptLedger(2)
    ledger.update([1], [[0.0, 1.0, 0.0, 0.0]])
    ledger.whole().save(tmp_path / "prompts.csv")
    assert (tmp_path / "prompts.csv").read_text().splitlines() == [
        "id,rollouts,mean,variance,run,step",
        "0,0.0,0.0,0.0,0.0,-1",
        "1,4.0,0.25,0.1875,0.0,0",
    ]


@pytest.mark.parametrize(
    ("ids", "rewards", "message"),
    [
        ([0], [[1.0]], "at least two generations"),
        ([0, 1], [[1.0, 0.0], [math.nan, 1.0]], r"prompts \[1\] are not finite"),
        ([0, 1], [[1.0, 0.0], [1.0]], "rewards must be numbers, and as many in each row"),
        ([0, 1], [[1.0, 0.0], [1.0, None]], "rewards must be numbers"),
        (["a"], [[1.0, 0.0]], "ids must be numbers"),
        ([0.5], [[1.0, 0.0]], r"ids must be whole numbers, got \[0.5\]"),
        ([0], [[]], "the prompts have no rewards"),
        ([0], [[1.0, 0.0], [1.0, 0.0]], "gather the rewards"),
        ([7], [[1.0, 0.0]], r"ids \[7\] are not from 0 to 2"),
    ],
)
def test_bad_rewards_are_refused_and_change_nothing(ids, rewards, message):
    ledger = rl.PromptLedger(3)
    with pytest.raises(ValueError, match=message):
        ledger.update(ids, rewards)
    assert ledger.num_steps == 0
    assert not bool(ledger.whole().is_seen.any())


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="half_life must be"):
        rl.PromptLedger(3, half_life=0)
    with pytest.raises(ValueError, match="right_at must be a number, got nan"):
        rl.PromptLedger(3, right_at=math.nan)
    with pytest.raises(ValueError, match=r"number of prompts, .* got '3'"):
        rl.PromptLedger("3")
    with pytest.raises(ValueError, match=r"the ids \[3\] are not from 0 to 2"):
        rl.PromptLedger(3).rows(torch.tensor([3]))
    with pytest.raises(ValueError, match=r"not the state of a ledger.* got None"):
        rl.PromptLedger(3).load_state_dict(None)
    with pytest.raises(ValueError, match="number of prompts"):
        rl.PromptLedger(0)
    with pytest.raises(ValueError, match="a ledger of losses"):
        rl.PromptLedger(sb.SelectiveSampler(3, sb.ledger_backprop()).ledger)
    with pytest.raises(ValueError, match="saved ledger has 2 examples but the data set has 3"):
        rl.PromptLedger(3).load_state_dict(rl.PromptLedger(2).state_dict())
