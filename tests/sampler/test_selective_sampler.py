"""The sampler alone and in a plain DataLoader: the plan, updates, statistics, saving, bad input."""

import io
import logging

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

import selective_backprop as sb
from selective_backprop import testing
from tests.contracts.methods import METHODS
from tests.sampler.runs import SIZE, Ids, load, losses_of, make, train

PLANNED = {
    name: method
    for name, method in METHODS.items()
    if not method(0.5).scorer.needs.selection_pass and all(method(0.5).scorer.plans(epoch) for epoch in (0, 1))
}
every_planned = pytest.mark.parametrize("method", PLANNED.values(), ids=PLANNED.keys())


def sampler_for(method, **options):
    return make(method, num_epochs=4, batch_size=16, **options)


# ---- limits


@every_planned
def test_selectivity_1_is_plain_training(method):
    torch.manual_seed(3)
    plain = [ids.tolist() for _ in range(4) for ids in DataLoader(Ids(), batch_size=16, sampler=RandomSampler(Ids()))]
    torch.manual_seed(3)
    sampler = sampler_for(method(1), source=RandomSampler(Ids()))
    batches = train(load(sampler), sampler, range(4))
    assert [ids for ids, _ in batches] == plain
    assert all(weight == 1 for _, weights in batches for weight in weights)


def test_epochs_of_a_size_are_shuffled_by_the_seed_alone():
    first, other, third = make(sb.traditional()), make(sb.traditional()), make(sb.traditional(), seed=1)
    state = torch.get_rng_state()
    orders = [list(first) for _ in range(3)]
    torch.manual_seed(8)
    assert orders == [list(other) for _ in range(3)]
    assert orders[0] != list(third)
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(SIZE)) for order in orders)
    torch.set_rng_state(state)
    list(first)
    assert torch.equal(state, torch.get_rng_state()), "global random states are never touched"


@pytest.mark.parametrize("size", [1, 2, 5])
def test_data_sets_smaller_than_a_batch(size):
    sampler = make(source=size, batch_size=16)
    loader = load(sampler, size=size)
    for epoch in range(4):
        batches = train(loader, sampler, [epoch], losses=lambda ids, epoch: torch.rand(len(ids)))
        assert len(batches) == 1 and sampler.epoch in (epoch, epoch + 1)
    assert next(iter(sampler)) in range(size)
    assert sampler.ledger.offered.max() == 4, "the look at an id does not count"


# ---- the plan


def test_the_plan_is_that_of_a_slow_reference():
    """The ids of an epoch are those whose score is unknown or too old, and the largest losses that carry the share."""
    sampler = make(sb.ledger_backprop(loss_share=0.9, max_age=3, most_rise=None, skip_at_least=0, keep_at_least=0))
    known, last = {}, {}
    for epoch in range(6):
        asked = list(sampler)
        open_ids = [i for i in known if last[i] > epoch - 3]
        expected = set(range(SIZE)) - set(open_ids)
        if open_ids:
            scores = torch.tensor([known[i] for i in open_ids])
            chosen = sb.policies.LossSharePolicy(loss_share=0.9, cap=20.0, keep_at_least=0, skip_at_least=0)
            positions = chosen.select(scores, torch.Generator()).positions
            expected |= {open_ids[position] for position in positions.tolist()}
        assert set(asked) == expected and len(asked) == len(expected)
        for ids in torch.tensor(asked).split(16):
            losses = losses_of(ids, epoch)
            sampler.update(losses)
            known |= dict(zip(ids.tolist(), losses.tolist(), strict=True))
            last |= dict.fromkeys(ids.tolist(), epoch)
    assert len(expected) < SIZE


def test_inclusion_follows_the_formula():
    """Over 400 epochs each id is drawn as often as its chance says: binomial, 5 standard deviations."""
    losses = torch.rand(60, generator=torch.Generator().manual_seed(0))
    sampler = make(sb.methods.ledger_percentile(0.4, max_age=None), source=60, batch_size=20)
    counts, chances = torch.zeros(60), torch.zeros(60)
    for epoch in range(401):
        ids = torch.tensor(list(sampler))
        sampler.update(losses[ids[:1]], ids=ids[:1])
        sampler.update(losses[ids[1:]], ids=ids[1:])
        if epoch:
            counts[ids] += 1
            chances += sampler.probabilities()
    deviation = (chances * (1 - chances / 400)).sqrt()
    assert bool(((counts - chances).abs() <= 5 * deviation + 1e-6).all())


@every_planned
def test_nothing_is_given_out_twice_and_weights_belong_to_their_ids(method):
    sampler = sampler_for(method(0.4))
    loader = load(sampler)
    for epoch in range(4):
        batches = train(loader, sampler, [epoch])
        ids = [id for batch, _ in batches for id in batch]
        assert len(ids) == len(set(ids)) and ids
        # InfoBatch: ids below the mean loss that were kept weigh more.
        if sampler.method.name == "infobatch" and epoch == 1:
            weights = torch.tensor([weight for _, batch in batches for weight in batch])
            before = losses_of(torch.tensor(ids), 0)
            below = before < losses_of(torch.arange(SIZE), 0).mean()
            assert bool((weights[below] > 1).all()) and bool((weights[~below] == 1).all())


def test_selectivity_and_counts():
    sampler = make(sb.random_backprop(0.5), source=1000)
    loader = load(sampler, size=1000)
    for epoch in range(4):
        train(loader, sampler, [epoch], losses=lambda ids, epoch: torch.ones(len(ids)))
    list(loader)
    stats = sampler.stats
    assert stats.offered == 4000 == stats.trained + stats.skipped_before_loading
    assert stats.selectivity == pytest.approx(0.5, abs=0.05)
    assert stats.mean_trained_loss == 1
    assert int(sampler.ledger.selected.sum()) == stats.trained
    assert bool((sampler.ledger.offered == 4).all())


def test_diets_and_classes_and_windows():
    scores, classes = torch.rand(SIZE, generator=torch.Generator().manual_seed(0)), torch.arange(SIZE) % 3
    diet = make(sb.diet(method=sb.repeated_random(1.0), scores=scores, prune=0.25))
    assert len(diet) == len(list(diet)) == int(diet.method.keep.sum())
    sampler = make(sb.ledger_backprop(classes=classes, loss_share=0.6, skip_at_least=0, most_rise=None), batch_size=16)
    train(load(sampler), sampler, range(3))
    assert set(sampler.group_stats()) == {0, 1, 2}
    window = make(sb.random_backprop(0.5, start=0.5), num_epochs=2)
    assert len(list(window)) == SIZE > len(list(window))
    interrupted = make(sb.random_backprop(0.01, interrupt=2), batch_size=10, source=100)
    assert 50 <= len(list(interrupted)) < 70


def test_groups():
    groups = torch.arange(SIZE) % 2
    sampler = make(groups=groups.tolist())
    losses = lambda ids, epoch: torch.where(ids % 2 == 0, 0.001, 1.0)  # noqa: E731
    train(load(sampler), sampler, range(3), losses=losses)
    list(sampler)
    found = sampler.group_stats()
    assert found[0].size == 102 and found[1].size == 101
    assert found[0].mean_loss == pytest.approx(0.001) and found[1].mean_loss == pytest.approx(1)
    assert found[0].share_trained < 0.6 < 0.9 < found[1].share_trained
    with pytest.raises(RuntimeError, match="there are no groups: pass groups="):
        make().group_stats()


# ---- updates


def test_a_look_at_a_batch_changes_nothing():
    sampler, other = make(sb.ledger_backprop()), make(sb.ledger_backprop())
    next(iter(load(sampler)))
    sampler.update(losses_of(next(iter(load(sampler))), 0))
    batches = [train(load(one), one, range(4)) for one in (sampler, other)]
    assert batches[0] == batches[1]
    assert sampler.stats.trained == other.stats.trained


def test_an_epoch_that_is_left_early_counts_after_two_updates():
    sampler = make()
    for number, _ in enumerate(load(sampler)):
        sampler.update(torch.rand(16))
        if number == 1:
            break
    assert len(list(sampler)) >= SIZE - 32, "ids without a loss are trained on"
    assert sampler.ledger.loss_epoch.ge(0).sum() == 32
    assert sampler.stats.offered == sampler.stats.trained == 32


def test_an_exception_in_the_loop_leaves_a_sampler_that_works():
    sampler = make()
    with pytest.raises(KeyError):
        for ids in load(sampler):
            sampler.update(losses_of(ids, 0))
            if sampler.stats.batches == 3:
                raise KeyError
    train(load(sampler), sampler, [0, 1])
    assert sampler.epoch == 3


def test_drop_last():
    sampler = make()
    loader = load(sampler, drop_last=True)
    batches = train(loader, sampler, range(3))
    assert all(len(ids) == 16 for ids, _ in batches)
    list(sampler)
    stats = sampler.stats
    assert stats.batches == len(batches) and stats.offered == 3 * SIZE
    assert stats.trained + stats.skipped_before_loading + stats.dropped == stats.offered and stats.dropped > 0


def test_an_epoch_that_drop_last_drops_whole_is_an_error_that_says_so():
    sampler = make(source=7)
    loader = load(sampler, batch_size=8, size=7, drop_last=True)
    assert not list(loader)
    with pytest.raises(RuntimeError, match="drop_last"):
        list(loader)


def test_with_batch_size_every_epoch_fills_a_batch():
    sampler = make(sb.repeated_random(0.3), source=21, batch_size=8)
    loader = load(sampler, batch_size=8, size=21, drop_last=True)
    assert [len(list(loader)) for _ in range(3)] == [1, 1, 1], "0.3 of 21 would be 6"


def test_batches_in_another_order_need_ids():
    sampler = make(sb.infobatch(until=1.0), num_epochs=3)
    for epoch in range(2):
        batches = list(load(sampler))
        for ids in reversed(batches):
            weights = sampler.update(losses_of(ids, epoch), ids=ids)
            assert torch.equal(sampler.ids, ids) and len(weights) == len(ids)
    ids = torch.arange(SIZE)
    list(sampler)
    trained = sampler.ledger.loss_epoch == 1
    assert torch.allclose(sampler.ledger.loss[trained], losses_of(ids[trained], 1))
    other = make()
    next(iter(other))
    with pytest.raises(ValueError, match=str(SIZE + 5)):
        other.update(torch.rand(1), ids=[SIZE + 5])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_is_not_in_order(workers):
    sampler = make()
    loader = load(sampler, num_workers=workers, **({"in_order": False} if workers else {}))
    for epoch in range(3):
        for ids in loader:
            sampler.update(losses_of(ids, epoch), ids=ids)
    known = sampler.ledger.loss_epoch == 0
    assert known.any() and torch.allclose(sampler.ledger.loss[known], losses_of(torch.arange(SIZE)[known], 0))


def test_samplers_with_replacement():
    generator = torch.Generator().manual_seed(0)
    for source in (
        RandomSampler(Ids(), replacement=True, generator=generator),
        WeightedRandomSampler(torch.rand(SIZE), SIZE, generator=generator),
    ):
        sampler = make(source=source)
        train(load(sampler), sampler, range(3))
        for ids in reversed(list(load(sampler))):
            sampler.update(losses_of(ids, 3), ids=ids)
        assert sampler.stats.offered == 4 * SIZE


def test_subsets_and_sizes_of_data_sets():
    sampler = make(source=SubsetRandomSampler([3, 5, 9]))
    assert sorted(sampler) == [3, 5, 9] and len(sampler.ledger) == 10

    class Own:
        def __iter__(self):
            return iter([1, 0])

        def __len__(self):
            return 2

    with pytest.raises(ValueError, match="your Own does not say how many examples the data set has: pass num_examples"):
        make(source=Own())
    assert list(make(source=Own(), num_examples=2)) == [1, 0]


def test_a_batch_sampler_around_it():
    sampler = make()
    loader = DataLoader(Ids(), batch_sampler=BatchSampler(sampler, 16, drop_last=False), num_workers=2)
    train(loader, sampler, range(4))
    assert 0 < sampler.stats.selectivity < 1


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_workers_change_nothing(options):
    plain, sampler = make(), make()
    assert train(load(plain), plain, range(4)) == train(load(sampler, **options), sampler, range(4))


def test_length():
    sampler = make()
    assert len(sampler) == SIZE
    for epoch in range(3):
        asked, count = 0, None
        for ids in load(sampler):
            asked += len(ids)
            count = len(sampler) if count is None else count
            sampler.update(losses_of(ids, epoch))
        assert count == asked, "exact once the epoch is planned"
    assert len(sampler) == SIZE, "between epochs it is the most, so that no framework stops too early"


def test_progress_ends_at_1_and_learning_rates_follow_it():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=39)
    sampler, seen = make(num_epochs=3), [0.0]

    def step():
        seen.append(sampler.progress)
        optimizer.step()
        sb.step_by_progress(scheduler, sampler, total_steps=39)

    train(load(sampler), sampler, range(3), on_step=step)
    assert seen == sorted(seen) and seen[13] == pytest.approx(1 / 3) and seen[-1] == 1
    assert len(seen) < 39 and optimizer.param_groups[0]["lr"] == pytest.approx(0)
    with pytest.raises(ValueError, match="pass num_epochs= to SelectiveSampler"):
        _ = make().progress


# ---- clear errors


def test_an_epoch_without_updates():
    sampler = make()
    list(sampler)
    with pytest.raises(RuntimeError, match=r"ledger_backprop selects by training losses, .*call sampler\.update"):
        next(iter(sampler))
    assert len(list(sampler)) == SIZE
    sampler = make(sb.repeated_random(0.5))  # random subsets need no losses
    for _ in range(4):
        list(sampler)
    assert sampler.epoch == 4 and sampler.ledger.selected.unique().tolist() == [2]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((SIZE, sb.selective_backprop(0.3)), r"selective_backprop needs a selection pass, .* sb\.SelectiveLoader"),
        ((SIZE, sb.stale_selective_backprop(0.3)), r"needs a selection pass, .* sb\.SelectiveLoader"),
        ((SIZE, sb.kath18(0.3)), r"needs a selection pass, .* sb\.SelectiveLoader"),
        ((SIZE, sb.ledger_backprop(audit=True)), r"audits what the model says .* sb\.SelectiveLoader"),
        ((SIZE, sb.random_backprop(0.5, interrupt=3)), "interrupt= counts batches of candidates: pass batch_size="),
        ((SIZE, sb.infobatch()), "pass num_epochs="),
        ((SIZE, sb.ledger_backprop(classes=[0, 1])), "has classes for 2 ids, but the data set has 203"),
        ((SIZE, sb.ledger_backprop), "forgot the parentheses"),
        ((Ids(), sb.ledger_backprop()), r"got Ids: for a data set, pass len\(data\)"),
        ((BatchSampler(range(9), 3, False), sb.ledger_backprop()), "must yield single ids, got a batch sampler"),
        ((0, sb.ledger_backprop()), "must be at least 1, got 0"),
        ((True, sb.ledger_backprop()), "must be a whole number, got True"),
        ((iter([1]), sb.ledger_backprop()), "a sampler of ids with a length"),
        (([0, "a"], sb.ledger_backprop()), "a list of ids, must be numbers"),
    ],
)
def test_bad_arguments(arguments, error):
    with pytest.raises((TypeError, ValueError), match=error):
        sb.SelectiveSampler(*arguments)


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([0, 9], r"the ids \[9\], but the data set has 5"),
        ([0.5], "must yield whole"),
        ([[0, 1], [2]], "must yield"),
        ([], "no ids"),
    ],
)
def test_bad_ids(ids, error):
    with pytest.raises(ValueError, match=error):
        next(iter(sb.SelectiveSampler(tuple(ids), sb.ledger_backprop(), num_examples=5)))


def test_bad_updates():
    sampler = make()
    with pytest.raises(RuntimeError, match="no epoch is under way"):
        sampler.update(torch.rand(3))
    with pytest.raises(RuntimeError, match="there was none yet"):
        _ = sampler.weights
    next(iter(load(sampler)))
    with pytest.raises(ValueError, match=r"got shape \(2, 2\)"):
        sampler.update(torch.rand(2, 2))
    with pytest.raises(ValueError, match="repeated_random"):
        sampler.update(torch.tensor(0.5))
    with pytest.raises(ValueError, match=r"got shape \(0,\)"):
        sampler.update(torch.rand(0))
    with pytest.raises(ValueError, match="ids must be whole numbers"):
        sampler.update(torch.rand(16), ids=torch.rand(16))
    with pytest.raises(ValueError, match="losses of 17 examples"):
        sampler.update(torch.rand(17))
    with pytest.raises(ValueError, match=r"not finite: training loss is nan for the examples with ids \["):
        sampler.update(torch.tensor([0.5, float("nan")]))
    with pytest.raises(ValueError, match="got 1 losses for 2 ids"):
        sampler.update(torch.rand(1), ids=[1, 2])
    assert len(sampler.update(torch.rand(16))) == 16, "a refused update changes nothing"
    with pytest.raises(ValueError, match="epoch must be a whole number"):
        sampler.set_epoch(-1)


def test_an_iteration_that_was_left_cannot_go_on():
    sampler = make()
    first, second = iter(sampler), iter(sampler)
    next(first)
    next(second)
    with pytest.raises(RuntimeError, match="another iteration over this sampler has begun"):
        next(first)


# ---- saving


def saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@every_planned
@pytest.mark.parametrize("workers", [0, 2])
def test_save_after_any_step_and_resume(method, workers):
    """With a plain DataLoader, which knows nothing of states. Saved before, between and after updates of epochs."""
    if workers and method(0.5).name not in ("ledger_backprop", "infobatch"):
        pytest.skip("workers do not depend on the method")
    options = {"num_workers": workers}
    states, whole = [], sampler_for(method(0.5))
    batches = train(load(whole, **options), whole, range(4), on_step=lambda: states.append(saved(whole.state_dict())))
    for number in range(0, len(states), 1 if not workers else 7):
        rest = sampler_for(method(0.5), seed=9)
        rest.load_state_dict(states[number])
        done = train(load(rest, **options), rest, range(rest.epoch, 4))
        assert done == batches[number + 1 :]
        assert rest.stats.trained == whole.stats.trained
        assert testing.same(rest.ledger.state_dict(), whole.ledger.state_dict())


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_restart_after_every_epoch_with_what_fills_no_batch(drop_last):
    def begin(state=None):
        sampler = make(sb.ledger_backprop(), source=100, batch_size=16)
        if state is not None:
            sampler.load_state_dict(state)
        return sampler, load(sampler, size=100, drop_last=drop_last)

    sampler, loader = begin()
    whole = [len(train(loader, sampler, [epoch])) for epoch in range(3)]
    counts, state = [], None
    for epoch in range(3):
        sampler, loader = begin(state)
        counts.append(len(train(loader, sampler, [epoch])))
        state = saved(sampler.state_dict())
    assert counts == whole and whole[0] == 7 - drop_last


def test_a_state_of_batches_in_another_order():
    sampler, rest = make(sb.traditional()), make(sb.traditional())
    batches = list(load(sampler))
    for ids in batches[3:6]:
        sampler.update(losses_of(ids, 0), ids=ids)
    rest.load_state_dict(saved(sampler.state_dict()))
    left = [ids.tolist() for ids in load(rest)]
    assert sorted(id for ids in left for id in ids) == sorted(
        id for n in (0, 1, 2, *range(6, 13)) for id in batches[n].tolist()
    )


def test_set_epoch_after_loading_leaves_out_the_rest():
    sampler, rest = make(), make()
    for number, ids in enumerate(load(sampler)):
        sampler.update(losses_of(ids, 0))
        if number == 3:
            break
    for epoch, count in ((0, SIZE - 64), (1, None)):
        rest.load_state_dict(saved(sampler.state_dict()))
        rest.set_epoch(epoch)
        ids = list(rest)
        assert len(ids) == count if epoch == 0 else len(ids) > SIZE - 64


def test_a_look_after_loading_changes_nothing():
    sampler, rest = make(), make()
    for number, ids in enumerate(load(sampler)):
        sampler.update(losses_of(ids, 0))
        if number == 3:
            break
    rest.load_state_dict(saved(sampler.state_dict()))
    next(iter(rest))
    assert len(list(rest)) == SIZE - 64


def test_leaving_with_the_first_update_after_loading_ends_the_epoch():
    sampler, rest = make(), make()
    for number, ids in enumerate(load(sampler)):
        sampler.update(losses_of(ids, 0))
        if number == 3:
            break
    rest.load_state_dict(saved(sampler.state_dict()))
    for ids in load(rest):
        rest.update(losses_of(ids, 0))
        break
    next(iter(rest))
    assert rest.epoch == 1 and rest.stats.batches == 5


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda state: 5, "not the state of a SelectiveSampler"),
        (lambda state: state | {"version": 99}, "version 99"),
        (lambda state: {name: state[name] for name in ("version", "method")}, "lacks"),
        (lambda state: state | {"num_examples": 7}, "saved for 7 examples"),
        (lambda state: state | {"method": state["method"] | {"name": "x"}}, "saved by the method x"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, error):
    sampler = make()
    train(load(sampler), sampler, [0])
    before = saved(sampler.state_dict())
    with pytest.raises(ValueError, match=error):
        sampler.load_state_dict(change(saved(sampler.state_dict())))
    assert testing.same(before, saved(sampler.state_dict()))
    with pytest.raises(ValueError, match="max_age: 3 and 5"):
        make(sb.ledger_backprop(max_age=5)).load_state_dict(before)


@pytest.mark.parametrize("option", ["forward", "transform", "pad"])
def test_a_function_that_is_none(option):
    with pytest.raises(TypeError, match=f"{option} must be a function, got 5"):
        sb.SelectiveLoader([], torch.nn.Linear(1, 1), torch.nn.MSELoss(), sb.traditional(), **{option: 5})


def test_options_of_methods_that_are_no_numbers():
    for method in (sb.selective_backprop, sb.top_k, sb.random_backprop, sb.kath18):
        with pytest.raises(TypeError, match="selectivity must be a number, got 'a'"):
            method("a")
    with pytest.raises(TypeError, match="loss_share must be a number, got 'a'"):
        sb.ledger_backprop(loss_share="a")
    with pytest.raises(TypeError, match="method must be a Method"):
        sb.diet(method=None, scores=[0.1, 0.2])


def test_options_that_torch_would_stumble_over():
    with pytest.raises(ValueError, match="seed must be from"):
        make(seed=2**70)
    with pytest.raises(ValueError, match="seed must be from"):
        sb.SelectiveLoader([], torch.nn.Linear(1, 1), torch.nn.MSELoss(), sb.traditional(), seed=2**70)
    with pytest.raises(ValueError, match="groups must be numbers"):
        make(groups=["a"] * SIZE)


def test_losses_of_half_a_batch_are_an_error_at_once():
    sampler = sampler_for(sb.ledger_backprop())
    for ids in load(sampler):
        losses, size = losses_of(ids, 0), len(ids)
        with pytest.raises(ValueError, match=f"losses of {size - 4} examples for a batch of {size}"):
            sampler.update(losses[4:])
        with pytest.raises(ValueError, match=f"losses of 32 examples for a batch of {size}"):
            sampler.update(torch.ones(32))
        sampler.update(losses)  # nothing was counted before
    assert sampler.stats.trained == SIZE


def test_repr_and_silence(caplog):
    with caplog.at_level(logging.WARNING):
        sampler = make(sb.repeated_random(0.3))
        list(sampler)
        list(sampler)
    assert not caplog.records
    assert repr(sampler) == "SelectiveSampler(repeated_random(selectivity=0.3), 203 examples, epoch 2)"


def test_the_losses_of_an_epoch_of_one_batch_are_known_when_it_is_over():
    sampler = sb.SelectiveSampler(6, sb.ledger_backprop())
    for ids in DataLoader(range(6), batch_size=8, sampler=sampler):
        sampler.update(ids.float())
    assert sampler.epoch == 1 and sampler.ledger.loss.tolist() == [0, 1, 2, 3, 4, 5]
    next(iter(sampler))
    assert sampler.ledger.selected.tolist() == [1] * 6
