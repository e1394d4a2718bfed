"""How methods are called: one rule for all of them."""

import inspect

import pytest
import torch

import selective_backprop as sb
from selective_backprop.methods import __all__ as NAMES
from selective_backprop.methods.options import PercentileOptions, ScheduleOptions, WindowOptions
from selective_backprop.scorers.selection_record import SelectionRecord

SHARED = (PercentileOptions, ScheduleOptions, WindowOptions)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_argument_is_the_share_that_is_kept_or_there_is_none(name):
    parameters = inspect.signature(getattr(sb.methods, name)).parameters.values()
    given_by_place = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL)]
    assert given_by_place in ([], ["selectivity"])
    assert "selectivity" in given_by_place or all(one.name != "selectivity" for one in parameters)


@pytest.mark.parametrize(
    "make",
    [
        sb.selective_backprop,
        sb.stale_selective_backprop,
        sb.kath18,
        sb.composer_backprop,
        sb.top_k,
        sb.random_backprop,
        sb.repeated_random,
        sb.methods.ledger_percentile,
        sb.methods.predicted_selective_backprop,
        sb.methods.expected_selective_backprop,
    ],
)
def test_the_share_is_the_one_that_is_kept(make):
    assert make(0.3).policy.selectivity == 0.3


def test_the_method_that_we_recommend_first_has_at_most_eleven_options():
    parameters = inspect.signature(sb.ledger_backprop).parameters
    own = [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY]
    assert len(own) + len(WindowOptions.__optional_keys__) <= 11
    with pytest.raises(TypeError, match="positional"):
        sb.ledger_backprop(0.3)


def test_options_that_a_method_does_not_have_are_refused():
    with pytest.raises(TypeError, match="ledger_percentile has no option loss_share; there are beta, end"):
        sb.methods.ledger_percentile(0.5, loss_share=0.9)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "traditional"])
def test_options_that_are_still_text_are_refused_by_their_name(name):
    """A command line or a file of settings gives "0.5" and "False" unless somebody turns them into numbers."""
    make, record = getattr(sb.methods, name), SelectionRecord(2)
    record.add_ids(torch.tensor([0]))
    given = {
        "diet": {"method": sb.traditional(), "scores": [0.1, 0.2]},
        "recorded_backprop": {"record": record},
    }
    options = {}
    for one in inspect.signature(make).parameters.values():
        kinds = next((kind.__annotations__ for kind in SHARED if kind.__name__ in str(one.annotation)), None)
        options |= {one.name: one.annotation} if kinds is None else {key: str(kind) for key, kind in kinds.items()}
    tried = 0
    for option, kind in options.items():
        if any(word in kind for word in ("int", "float", "bool")) and "Sequence" not in kind:
            with pytest.raises((TypeError, ValueError), match=f"{option} must be .*got .*'0.5'"):
                make(**given.get(name, {}), **{option: "0.5"})
            tried += 1
    assert tried
