"""How methods are called: one rule for all of them."""

import inspect

import pytest

import selective_backprop as sb

NAMES = sb.methods.__all__


@pytest.mark.parametrize("name", NAMES)
def test_the_first_argument_is_the_share_that_is_kept_or_there_is_none(name):
    parameters = list(inspect.signature(getattr(sb.methods, name)).parameters.values())
    given_by_place = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL)]
    assert given_by_place in ([], ["selectivity"])
    assert "selectivity" in given_by_place or all(one.name != "selectivity" for one in parameters)
    if given_by_place and not any(one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in parameters):
        assert getattr(sb.methods, name)(0.3).policy.selectivity == 0.3


def test_options_that_a_method_does_not_have_are_refused():
    with pytest.raises(TypeError, match="positional"):
        sb.ledger_backprop(0.3)
    with pytest.raises(TypeError, match=r"loss_share.* beta"):
        sb.methods.ledger_percentile(0.5, loss_share=0.9)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("selective_backprop", "selectivity"),
        ("selective_backprop", "unbiased"),
        ("selective_backprop", "history_size"),
        ("selective_backprop", "warmup_epochs"),
        ("selective_backprop", "start"),
        ("selective_backprop", "interrupt"),
        ("stale_selective_backprop", "every"),
        ("ledger_backprop", "loss_share"),
        ("ledger_backprop", "max_age"),
        ("ledger_percentile", "max_age"),
        ("infobatch", "prune"),
        ("kath18", "threshold"),
        ("composer_backprop", "interrupt"),
        ("repeated_random", "selectivity"),
        ("top_k", "selectivity"),
    ],
)
def test_options_that_are_still_text_are_refused_by_their_name(name, option):
    """A command line or a file of settings gives "0.5" and "False" unless somebody turns them into numbers."""
    with pytest.raises((TypeError, ValueError), match=f"{option} must be .*'0.5'"):
        getattr(sb.methods, name)(**{option: "0.5"})
