"""States of ranks dealt out again, on states made by hand."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from selective_backprop.loader.index_stream import Chunk, chunks_from_state, chunks_to_state

from selective_backprop.checkpoint.reshard import redeal
from selective_backprop.loader.stats import COMBINATIONS, Stats


def rows(ids, rank=0):
    ids = torch.tensor(ids, dtype=torch.int64)
    data = [ids.to(torch.float32)[:, None] * torch.ones(1, 3), [f"name {i}" for i in ids.tolist()]]
    return [data, ids, torch.ones(len(ids)) + rank, torch.full((len(ids),), 0.5, dtype=torch.float64)]


def chunk(ids, fraction, skipped=()):
    ids = torch.tensor(ids, dtype=torch.int64)
    offered = torch.cat([torch.tensor(skipped, dtype=torch.int64), ids])
    return Chunk(ids, offered, fraction, ids % 2 == 0, torch.ones(len(ids)), torch.ones(len(ids)))


def generator_state(seed):
    return torch.Generator().manual_seed(seed).get_state()


def state(rank, size, *, pieces=(), whole=(), chunks=(), tail=(), ahead=None, seed=0, **changes):
    """What a loader saves in the middle of an epoch, in short."""
    result = {
        "version": 3,
        "method": "mine",
        "ranks": {"rank": rank, "size": size},
        "in_epoch": True,
        "epoch": 3,
        "fraction": 0.25,
        "keeps_everything": False,
        "carried": [False, 6, 2 + rank],
        "drains": False,
        "began": {"offered": 80 + rank, "selected": 20, "batches": 8},
        "silent": 0,
        "round": 5,
        "batch_size": 4,
        "queue": {
            "layout": {"kind": "column"} if pieces or whole else None,
            "whole": [rows(ids) for ids in whole],
            "pieces": [rows(ids, rank) for ids in pieces],
            "lengths": [0] * size,
            "moved": 2,
        },
        "ahead": ahead and {"chunk": chunks_to_state([ahead])},
        "source": {
            "position": 5 + (ahead is not None),
            "finished": False,
            "chunks": chunks_to_state(list(chunks)),
            "tail": torch.tensor(tail, dtype=torch.int64),
            "tail_waiting": len(tail),
            "inner": None,
            "generators": [generator_state(seed)],
        },
        "transform": None,
        "selector": {"policy": {"losses": [1, 2]}, "generator": generator_state(7), "checked": True},
        "ledger": {"writes": []},
        "stats": Stats(offered=100 + rank, scored=90, trained=40, queued=9, batches=10).state_dict(),
        "feedback": {"steps": [[torch.tensor([rank]), torch.tensor([0.5]), 3]]},
    }
    return result | changes


def queue_ids(states):
    return [i for state in states for piece in state["queue"]["pieces"] for i in piece[1].tolist()]


def redeal_all(states, size, **options):
    return [redeal(states, rank, size, **options) for rank in range(size)]


def test_queued_examples_keep_their_order_and_all_that_belongs_to_them():
    states = [state(0, 2, pieces=[[1, 2, 3], [4]], whole=[[0]]), state(1, 2, pieces=[[5, 6]])]
    given_states = copy.deepcopy(states)
    dealt = redeal_all(states, 3)
    assert [queue_ids([part]) for part in dealt] == [[0, 1, 2], [3, 4], [5, 6]]
    assert all(part["queue"]["lengths"] == [3, 2, 2] for part in dealt)
    assert [part["stats"]["queued"] for part in dealt] == [3, 2, 2]
    for part in dealt:
        for (data, names), ids, weights, chances in part["queue"]["pieces"]:
            assert data[:, 0].tolist() == ids.tolist()
            assert names == [f"name {i}" for i in ids.tolist()]
            assert weights.tolist() == [2.0 if i >= 5 else 1.0 for i in ids.tolist()]
            assert len(chances) == len(ids)
    assert dealt[2]["queue"]["layout"] == {"kind": "column"}
    assert str(states) == str(given_states)


def test_the_rest_of_the_epoch_comes_in_the_order_in_which_it_would_have_come():
    states = [
        state(
            0, 2, chunks=[chunk([3, 4], 0.5, skipped=[20]), chunk([5], 0.9)], tail=[21, 22], ahead=chunk([1, 2], 0.4)
        ),
        state(1, 2, chunks=[chunk([13, 14], 0.6)], tail=[23], ahead=chunk([11, 12], 0.4)),
    ]
    (alone,) = redeal_all(states, 1)
    chunks = chunks_from_state(alone["source"]["chunks"])
    assert [part.ids.tolist() for part in chunks] == [[1, 2], [11, 12], [3, 4], [13, 14], [5]]
    assert [part.fraction for part in chunks] == [0.4, 0.4, 0.5, 0.6, 0.9]
    assert chunks[2].offered.tolist() == [20, 3, 4]
    assert chunks[2].decided.tolist() == [False, True]
    assert alone["source"]["tail"].tolist() == [21, 22, 23]
    assert alone["ahead"] is None
    assert (alone["source"]["position"], alone["round"]) == (10, 10)
    three = [chunks_from_state(part["source"]["chunks"]) for part in redeal_all(states, 3)]
    assert [[part.ids.tolist() for part in parts] for parts in three] == [
        [[1, 2], [13, 14]],
        [[11, 12], [5]],
        [[3, 4]],
    ]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_nothing_is_lost_or_doubled_and_all_get_as_much(data):
    old, new = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    lists = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=5), max_size=4)
    states = []
    for rank in range(old):
        chunks = [chunk(ids, 0.5) for ids in data.draw(lists)]
        states.append(
            state(rank, old, pieces=data.draw(lists), chunks=chunks, tail=data.draw(st.lists(st.integers(0, 9))))
        )
    dealt = redeal_all(states, new)
    assert queue_ids(dealt) == queue_ids(states)
    lengths = [len(queue_ids([part])) for part in dealt]
    assert max(lengths) - min(lengths) <= 1 and all(part["queue"]["lengths"] == lengths for part in dealt)
    for name in ("ids", "offered"):
        before = [i for part in states for i in part["source"]["chunks"][name].tolist()]
        assert sorted(i for part in dealt for i in part["source"]["chunks"][name].tolist()) == sorted(before)
    sizes = [len(part["source"]["chunks"]["sizes"]) for part in dealt]
    assert max(sizes) - min(sizes) <= 1
    tails = [[i for part in parts for i in part["source"]["tail"].tolist()] for parts in (states, dealt)]
    assert tails[0] == tails[1]
    assert sum(part["stats"]["offered"] for part in dealt) == sum(part["stats"]["offered"] for part in states)
    assert all(part["carried"][:2] == [False, 6] for part in dealt), "all know how many waited when the epoch began"
    assert sum(part["carried"][2] for part in dealt) == sum(part["carried"][2] for part in states)
    assert sum(part["began"]["offered"] for part in dealt) == sum(part["began"]["offered"] for part in states)
    assert [part["source"]["tail_waiting"] for part in dealt] == [len(part["source"]["tail"]) for part in dealt]
    steps = [[int(step[0]) for part in parts for step in part["feedback"]["steps"]] for parts in (states, dealt)]
    assert steps[0] == steps[1]
    assert [part["ranks"] for part in dealt] == [{"rank": rank, "size": new} for rank in range(new)]


def test_what_ranks_share_stays_and_what_differs_is_not_repeated():
    shared = redeal_all([state(0, 2, seed=1), state(1, 2, seed=1)], 3)
    assert all(torch.equal(part["source"]["generators"][0], generator_state(1)) for part in shared)
    assert all(torch.equal(part["selector"]["generator"], generator_state(7)) for part in shared)
    assert all((part["epoch"], part["fraction"], part["stats"]["batches"]) == (3, 0.25, 10) for part in shared)
    differing = [part["source"]["generators"][0] for part in redeal_all([state(0, 2, seed=1), state(1, 2, seed=2)], 4)]
    assert torch.equal(differing[0], generator_state(1)) and torch.equal(differing[1], generator_state(2))
    assert len({str(saved.tolist()) for saved in differing}) == 4


def test_batches_may_have_another_size():
    assert redeal([state(0, 1)], 0, 2)["batch_size"] == 4
    assert redeal([state(0, 1)], 0, 2, batch_size=2)["batch_size"] == 2


def test_between_epochs_there_is_no_rest_to_deal_out():
    states = [state(r, 2, in_epoch=False, source={"generators": []}, round=0) for r in range(2)]
    assert redeal(states, 0, 3)["source"] == {"generators": []}


def test_data_without_ids_cannot_be_dealt_out():
    states = [state(r, 2) for r in range(2)]
    for one in states:
        one["source"]["chunks"] = None
    with pytest.raises(ValueError, match="saved by 2 ranks in the middle of an epoch, and these are 3"):
        redeal(states, 0, 3)


def test_states_of_different_moments_are_refused():
    with pytest.raises(ValueError, match="round is 5 on rank 0 and 6 on rank 1"):
        redeal([state(0, 2), state(1, 2, round=6)], 0, 1)


# ---- statistics


def redeal_stats(all_stats, size):
    states = [state(rank, len(all_stats), stats=stats.state_dict()) for rank, stats in enumerate(all_stats)]
    result = [Stats() for _ in range(size)]
    for stats, dealt in zip(result, redeal_all(states, size), strict=True):
        stats.load_state_dict(dealt["stats"])
    return result


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", [name for name, how in COMBINATIONS.items() if how == "count"])
def test_counts_of_ranks_add_up_to_the_same(name, size):
    dealt = redeal_stats([Stats(**{name: 100}), Stats(**{name: 7}), Stats()], size)
    parts = [getattr(stats, name) for stats in dealt]
    assert sum(parts) == 107 and max(parts) - min(parts) <= 1


def test_losses_and_fidelity_are_those_of_all_ranks():
    first, second = Stats(), Stats()
    first.count_losses(6.0, 3, "trained")
    second.count_losses(10.0, 1, "trained")
    second.count_losses(11.0, 2, "candidates")
    first.count_scores(30, fidelity=0.5)
    second.count_scores(10, fidelity=0.9)
    for size in (1, 3):
        for stats in redeal_stats([first, second], size):
            assert stats.mean_trained_loss == pytest.approx(4.0)
            assert stats.mean_candidate_loss == pytest.approx(5.5)
            assert stats.fidelity == pytest.approx(0.6)


def test_a_rank_without_scores_says_nothing_of_their_fidelity():
    scored = Stats()
    scored.count_scores(10, fidelity=0.9)
    for together in ([scored, Stats()], [Stats(), scored]):
        (alone,) = redeal_stats(together, 1)
        assert alone.fidelity == 0.9


def test_seconds_are_those_of_the_slowest_rank():
    seconds = [{"loading": 1.5, "scoring": 2.0, "selecting": 0.0, "training": 4.0} for _ in range(2)]
    seconds[1] |= {"loading": 3.0, "training": 1.0}
    for stats in redeal_stats([Stats(seconds=one) for one in seconds], 3):
        assert stats.seconds == {"loading": 3.0, "scoring": 2.0, "selecting": 0.0, "training": 4.0}
