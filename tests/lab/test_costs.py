"""What scoring with a smaller network costs."""

import pytest
import torch
from torch import nn

import selective_backprop as sb
from selective_backprop_lab.runs.costs import scoring_cost


def test_a_proxy_that_learns_from_its_selection_costs_less():
    model, proxy = nn.Linear(6, 4), nn.Linear(6, 2)
    example = torch.zeros(1, 6)
    whole, half = (
        scoring_cost(sb.scorers.proxy(proxy, train_every=4, train_share=share), model, example) for share in (1.0, 0.5)
    )
    assert (whole.per_scored, whole.per_offered) == pytest.approx((0.5 + 0.01, 3 * 0.5 / 4))
    # Of 100 candidates, 60 are scored. The proxy learns from half of these, and from all that it only watches.
    cost = half.per_scored * 60 + half.per_offered * 100
    assert cost == pytest.approx(60 * (0.5 + 0.01) + (30 + 40) * 3 * 0.5 / 4)
