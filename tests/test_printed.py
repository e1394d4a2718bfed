"""What methods and loaders look like when they are printed."""

import pytest
import torch
from torch import nn

import selective_backprop as sb
from tests.contracts.methods import METHODS
from tests.helpers import make_loader


@pytest.mark.parametrize("name", METHODS)
def test_no_addresses_in_what_is_printed(name):
    method = METHODS[name](0.5)
    for part in (method, method.policy, method.scorer, method.schedule):
        assert " at 0x" not in repr(part)
        assert len(repr(part)) < 250, repr(part)
    assert repr(method) == repr(METHODS[name](0.5))


@pytest.mark.parametrize(
    ("method", "printed"),
    [
        (sb.traditional(), "traditional()"),
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
    ],
)
def test_a_method_is_printed_as_a_call(method, printed):
    assert repr(method) == printed


def test_a_loader_is_printed_with_its_method_and_epoch():
    loader = make_loader(sb.top_k(0.5), batch_size=8)
    list(loader)
    for part in (repr(loader.method), "13 candidate batches of 16", "training batches of 8", "epoch 1"):
        assert part in repr(loader)
    stream = sb.SelectiveLoader(iter([]), nn.Linear(2, 2), nn.MSELoss(), sb.top_k(0.5))
    assert "epoch 0" in repr(stream)


def test_a_part_of_a_users_own_shows_what_it_kept():
    class Mine(sb.policies.TopKPolicy):
        def __init__(self, *, selectivity, colour="red", lost=3):
            super().__init__(selectivity=selectivity)
            self.colour = colour

    assert repr(Mine(selectivity=0.5, colour="blue")) == "Mine(selectivity=0.5, colour='blue')"
