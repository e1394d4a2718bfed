"""How methods are called: one rule for all of them."""

import inspect

import pytest

import selective_backprop as sb
from selective_backprop.methods import __all__ as NAMES
from selective_backprop.methods.options import WindowOptions


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
        sb.methods.diverse,
        sb.methods.tail_sft,
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
