"""A method's options as plain data, and what it looks like when printed."""

import copy
import json
import re

import pytest
import torch
from torch import nn

import selective_backprop as sb
from selective_backprop.description import checksum, describe, differing
from tests.contracts.methods import METHODS
from tests.helpers import by_class, make_loader
from tests.lab.command_line import run_function

LABELS = torch.arange(6) % 2


@pytest.mark.parametrize("name", METHODS)
def test_a_method_made_twice_has_the_same_description_of_plain_data(name):
    first, second = (describe(METHODS[name](0.5)) for _ in range(2))
    assert first == second
    assert json.loads(json.dumps(first)) == first
    assert describe(copy.deepcopy(METHODS[name](0.5))) == first


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (sb.selective_backprop(0.5), sb.selective_backprop(0.25), "policy.selectivity: 0.5 and 0.25"),
        (sb.selective_backprop(), sb.selective_backprop(scoring="train"), "scorer.mode: eval and train"),
        (sb.selective_backprop(), sb.selective_backprop(scoring="pipelined"), "scorer: ForwardScorer.* and Pipelined"),
        (sb.selective_backprop(), by_class(sb.selective_backprop(), LABELS), "groups: None and <6 values"),
        (sb.ledger_backprop(classes=LABELS), sb.ledger_backprop(classes=1 - LABELS), "groups.checksum"),
        (sb.kath18(), sb.kath18(variable_start=False), "schedule: VariableStart.* and Schedule"),
        (sb.stale_selective_backprop(), sb.stale_selective_backprop(every=2), "scorer.every: 3 and 2"),
        (
            sb.methods.predicted_selective_backprop(),
            sb.methods.predicted_selective_backprop(decay=0.25),
            "scorer.decay: 0.5 and 0.25",
        ),
        (
            sb.methods.predicted_selective_backprop(),
            sb.methods.predicted_selective_backprop(past_scores=2),
            "past_scores: 4 and 2",
        ),
        (sb.ledger_backprop(), sb.ledger_backprop(max_age=None), "scorer.max_age: 10 and None"),
        (
            sb.top_k(scoring=sb.scorers.proxy(nn.Linear(2, 2))),
            sb.top_k(scoring=sb.scorers.proxy(nn.Linear(2, 3))),
            "scorer.model.parameters: 6 and 9",
        ),
        (sb.kath18(), sb.kath18(variable_start=False), "schedule: VariableStart.* and Schedule"),
        (
            sb.diet(method=sb.top_k(), scores=torch.arange(8.0)),
            sb.diet(method=sb.top_k(), scores=-torch.arange(8.0)),
            "keep.checksum",
        ),
        (
            sb.diet(method=sb.top_k(), scores=torch.arange(8.0)),
            sb.diet(method=sb.top_k(), scores=torch.arange(8.0), prune=0.5),
            "keep.true: 6 and 4",
        ),
    ],
)
def test_different_options_are_told_apart_and_named(one, other, difference):
    found = [f"{name}: {first} and {second}" for name, first, second in differing(describe(one), describe(other))]
    assert any(re.search(difference, phrase) for phrase in found), found
    assert differing(describe(one), describe(one)) == []


def test_whole_numbers_are_the_same_option_however_they_are_written():
    assert describe(sb.kath18(1 / 3)) == describe(sb.kath18(1 / 3.0))


def test_records_of_other_selections_are_told_apart():
    first, second = (sb.pruning.SelectionRecord(4) for _ in range(2))
    first.add_ids(torch.tensor([0]))
    second.add_ids(torch.tensor([1]))
    assert differing(*(describe(sb.methods.recorded_backprop(record=record)) for record in (first, second)))


def test_checksums_of_any_kind_of_tensor():
    for tensor in (torch.empty(0), torch.tensor(2.0), torch.ones(3, 2).t(), torch.tensor([True, False])):
        assert checksum(tensor) == checksum(tensor.clone())
    assert checksum(torch.tensor([1.0, 2.0])) != checksum(torch.tensor([2.0, 1.0]))


@pytest.mark.parametrize("name", METHODS)
def test_no_addresses_in_what_is_printed(name):
    method = METHODS[name](0.5)
    for part in (method, method.policy, method.scorer, method.schedule):
        assert " at 0x" not in repr(part)
        assert len(repr(part)) < 250, repr(part)


@pytest.mark.parametrize(
    ("method", "printed"),
    [
        (sb.traditional(), "traditional()"),
        (
            sb.ledger_backprop(loss_share=0.95),
            "ledger_backprop(loss_share=0.95, keep_at_least=0.1, skip_at_least=0.2, max_age=10, most_rise=0.4)",
        ),
        (
            sb.ledger_backprop(loss_share=0.95, skip_at_least=0, most_rise=None),
            "ledger_backprop(loss_share=0.95, keep_at_least=0.1, max_age=10)",
        ),
        (
            sb.selective_backprop(0.5, scoring="pipelined", warmup_epochs=1),
            "selective_backprop(selectivity=0.5, scoring=PipelinedScorer(fresh=ForwardScorer()), warmup_epochs=1)",
        ),
        (
            sb.diet(method=sb.stale_selective_backprop(0.5, every=2), scores=torch.arange(1000.0)),
            "diet(stale_selective_backprop(selectivity=0.5, every=2), keep=<750 of 1,000>)",
        ),
        (sb.top_k(0.5, scoring="train"), "top_k(selectivity=0.5, scoring=ForwardScorer(mode='train'))"),
    ],
)
def test_a_method_is_printed_as_a_call(method, printed):
    assert repr(method) == printed


def test_a_loader_is_printed_with_its_method_and_place():
    loader = make_loader(sb.ledger_backprop(loss_share=0.95))
    method = repr(loader.method)
    assert repr(loader) == f"SelectiveLoader({method}, 13 candidate batches of 16, epoch 0)"
    for _ in loader:
        loader.loss(loader.model(loader.batch.data[0]), loader.batch.data[1])
    assert repr(loader).endswith("epoch 1)")
    larger = make_loader(sb.top_k(0.5), batch_size=8)
    assert "13 candidate batches of 16, training batches of 8, epoch 0" in repr(larger)
    endless = sb.SelectiveLoader(iter([]), nn.Linear(2, 2), nn.MSELoss(), sb.top_k(0.5))
    assert repr(endless) == "SelectiveLoader(top_k(selectivity=0.5), candidate batches, epoch 0)"


def test_a_part_of_a_users_own_shows_what_it_kept():
    class Mine(type(sb.top_k().policy)):
        def __init__(self, *, selectivity, colour="red", lost=3):
            super().__init__(selectivity=selectivity)
            self.colour = colour

    policy = Mine(selectivity=0.5, colour="blue")
    assert repr(policy) == "Mine(selectivity=0.5, colour='blue')"
    described = describe(sb.Method("mine", sb.top_k().scorer, policy))
    assert described["policy"] == {"class": "Mine", "selectivity": 0.5, "colour": "blue"}


def print_description():
    print(json.dumps(describe(sb.kath18(score="gradient_norm"))))


def test_the_description_is_the_same_in_another_process():
    output = run_function(print_description).stdout
    assert json.loads(output) == describe(sb.kath18(score="gradient_norm"))
