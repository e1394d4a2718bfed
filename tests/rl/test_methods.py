"""Which prompts come next: each rule on prompts with known pass rates, through the sampler."""

import io
import logging

import pytest
import torch
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop import rl

RULES = {"uniform": rl.uniform, "greso": rl.greso, "retire_mastered": rl.retire_mastered, "near_half": rl.near_half}
RATES = torch.linspace(-0.5, 1.5, 200).clamp(0, 1)  # a quarter is mastered, a quarter is never right


def epochs(method, number=5, *, rates=RATES, sampler=None, seed=0, stop=None):
    """Go through epochs in batches of 8 prompts with 8 rollouts. Returns the ids of each."""
    sampler = sampler or sb.SelectiveSampler(len(rates), method, batch_size=8)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(number):
        found.append([])
        for ids in DataLoader(range(len(rates)), batch_size=8, sampler=sampler):
            found[-1].extend(ids.tolist())
            draws = torch.rand(len(rates), 8, generator=generator)[ids]  # whatever came before
            sampler.update((draws < rates[ids, None]).float(), ids=ids)
            if stop is not None and len(found[-1]) >= stop:
                return found
    return found


def shares(ids):
    """The shares of prompts that are mastered, and never right."""
    rates = RATES[torch.tensor(ids)]
    return float((rates == 1).float().mean()), float((rates == 0).float().mean())


@pytest.mark.parametrize("make", RULES.values(), ids=list(RULES))
def test_prompts_never_seen_come_first(make):
    assert sorted(epochs(make(), 1)[0]) == list(range(200))


def test_uniform_gives_out_every_prompt_in_every_epoch():
    assert all(sorted(ids) == list(range(200)) for ids in epochs(rl.uniform(), 3))


def test_greso_keeps_the_shares_that_were_asked_for():
    later = [number for ids in epochs(rl.greso(easy=0.1, hard=0.2), 12)[2:] for number in ids]
    mastered, hopeless = shares(later)
    # Prompts that were right by chance count as easy too, so there are fewer of the mastered ones than asked for.
    assert 0.04 < mastered < 0.12
    assert 0.1 < hopeless < 0.22


def test_greso_solves_for_chances_that_fall_with_the_run():
    """The formula itself: p^z, with one p for right and one for wrong, so that the shares come out."""
    ledger = rl.PromptLedger(40)
    for step in range(3):  # 10 prompts that teach, 10 with z = 1 and 2 each that are right, 10 that are wrong
        right = [*range(10, 20)] if step == 2 else []
        right += [*range(20, 30)] if step >= 1 else []
        rows = {number: [1.0, 1.0] for number in right}
        rows |= {number: [0.0, 0.0] for number in range(30, 40)} | {number: [0.0, 1.0] for number in range(10)}
        ledger.update(list(rows), list(rows.values()))
    scorer = rl.greso(easy=0.25, hard=0.25).scorer
    chances = scorer.recall(torch.arange(40), ledger.ledger.rows(torch.arange(40)), epoch=1)
    assert chances[:10].tolist() == [1.0] * 10
    p_easy = chances[10].item()
    assert torch.allclose(chances[20:30], torch.tensor(p_easy**2))
    assert chances[10:30].sum().item() == pytest.approx(5, abs=1e-3), "a quarter of 20"
    assert chances[30:].sum().item() == pytest.approx(5, abs=1e-3)


def test_mastered_prompts_retire_and_are_checked_again():
    later = epochs(rl.retire_mastered(at=0.9, recheck=0.1), 12)[2:]
    seen = {number for ids in later for number in ids}
    mastered, hopeless = shares([number for ids in later for number in ids])
    assert 0.03 < mastered < 0.13
    assert hopeless > 0.3, "hard prompts stay"
    assert len(seen) > 185, "a mastered prompt comes back some time"


def test_a_prompt_that_is_no_longer_mastered_comes_back():
    sampler = sb.SelectiveSampler(200, rl.retire_mastered(half_life=5), batch_size=8)
    epochs(None, 3, sampler=sampler)
    forgotten = RATES.clone()
    forgotten[-50:] = 0.5
    found = epochs(None, 15, rates=forgotten, sampler=sampler)
    assert shares(found[0])[0] < 0.2
    assert shares(found[-1])[0] > 0.2


def test_without_a_recheck_mastered_prompts_stay_away():
    later = epochs(rl.retire_mastered(recheck=0.0, at=1.0, half_life=1e9), 6)[2:]
    assert shares([number for ids in later for number in ids])[0] == 0


def test_near_half_keeps_its_share_of_those_nearest_to_it():
    found = epochs(rl.near_half(0.3), 10)
    assert all(len(ids) in range(55, 66) for ids in found[1:])
    later = RATES[torch.tensor([number for ids in found[5:] for number in ids])]
    assert float((later - 0.5).abs().mean()) < 0.25, "0.37 for all prompts"


def test_near_half_refuses_rewards_that_are_no_pass_rates():
    sampler = sb.SelectiveSampler(4, rl.near_half(), batch_size=4)
    sampler.update(torch.tensor([[3.0, 5.0]] * 4), ids=list(sampler))
    with pytest.raises(ValueError, match="from 0 to 1"):
        next(iter(sampler))


@pytest.mark.parametrize("make", [rl.greso, rl.retire_mastered])
def test_if_nothing_is_left_to_learn_prompts_come_back_at_random_with_one_log_line(make, caplog):
    with caplog.at_level(logging.WARNING):
        found = epochs(make(half_life=1e9), 6, rates=torch.ones(200))
    assert all(10 <= len(ids) <= 35 for ids in found[1:]), "about a tenth"
    assert len({number for ids in found[1:] for number in ids}) > 60
    assert sum("leave 0.0 to learn from" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("make", [rl.greso, rl.near_half], ids=["greso", "near_half"])
@pytest.mark.parametrize("stop", [24, 56])
def test_a_run_that_stops_in_an_epoch_goes_on_exactly(make, stop):
    whole = sb.SelectiveSampler(200, make(), batch_size=8, seed=3)
    expected = [*epochs(None, 2, sampler=whole), *epochs(None, 3, sampler=whole, seed=1)]
    broken = sb.SelectiveSampler(200, make(), batch_size=8, seed=3)
    found = epochs(None, 2, sampler=broken)
    found += epochs(None, 1, sampler=broken, seed=1, stop=stop)
    state = torch.load(saved(broken.state_dict()), weights_only=True)
    loaded = sb.SelectiveSampler(200, make(), batch_size=8, seed=9)
    loaded.load_state_dict(state)
    assert found[2] + list(loaded) == expected[2]
    assert rl.PromptLedger(loaded.ledger).num_steps == loaded.stats.batches


def saved(state):
    torch.save(state, buffer := io.BytesIO())
    buffer.seek(0)
    return buffer


def test_rewards_may_come_late():
    """After the next epoch was begun, as when a loader reads ahead."""
    sampler = sb.SelectiveSampler(6, rl.greso(), batch_size=2)
    first = list(sampler)
    ids = iter(sampler)
    next(ids)
    sampler.update(torch.tensor([[0.0, 1.0]] * 6), ids=first)
    assert bool(rl.PromptLedger(sampler.ledger).whole().is_seen.all())
    assert sampler.epoch == 1


def test_late_rewards_are_no_missing_losses_and_all_prompts_count_as_offered(caplog):
    """As in a framework that trains while it generates: six groups are always under way."""
    sampler, waiting = sb.SelectiveSampler(40, rl.retire_mastered()), []
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            for prompt in sampler:
                waiting.append(prompt)
                if len(waiting) > 6:
                    sampler.update([[1.0, 1.0] if waiting[0] < 20 else [0.0, 1.0]], ids=[waiting.pop(0)])
        next(iter(sampler))
    assert caplog.records == []
    assert sampler.stats.offered == 5 * 40
    assert sampler.stats.skipped_before_loading > 40
    assert sampler.stats.dropped == 0


def test_a_sampler_says_if_nobody_tells_it_rewards():
    sampler = sb.SelectiveSampler(4, rl.greso())
    list(sampler)
    list(sampler)
    with pytest.raises(RuntimeError, match="got none in two epochs"):
        list(sampler)


def test_bad_use_is_refused():
    sampler = sb.SelectiveSampler(4, rl.greso())
    next(iter(sampler))
    with pytest.raises(ValueError, match="pass ids="):
        sampler.update(torch.ones(2, 4))
    with pytest.raises(ValueError, match="easy must be a share"):
        rl.greso(easy=1.0)
    with pytest.raises(ValueError, match="recheck must be a share"):
        rl.retire_mastered(recheck=1)
    with pytest.raises(ValueError, match="target must be"):
        rl.near_half(target=0)
    with pytest.raises(ValueError, match="chooses prompts by rewards"):
        sb.SelectiveLoader(DataLoader(torch.zeros(4, 1)), torch.nn.Linear(1, 1), torch.nn.MSELoss(), rl.greso())
    with pytest.raises(ValueError, match="saved for 4 examples"):
        sb.SelectiveSampler(5, rl.greso()).load_state_dict(sampler.state_dict())
