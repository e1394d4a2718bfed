"""Every method there is, by selectivity. The promises are tested for all of them, without special cases."""

import inspect

import torch

from selective_backprop import methods
from selective_backprop.method import Method
from selective_backprop.scorers import PipelinedScorer
from selective_backprop.scorers.proxies import proxy
from tests.helpers import NUM_DIGITS, by_class, make_model

CLASSES = torch.arange(NUM_DIGITS) % 3
SCORES = torch.rand(NUM_DIGITS, generator=torch.Generator().manual_seed(0))


def some(name, **options):
    """A method that takes its selectivity as its first argument."""
    return lambda selectivity: getattr(methods, name)(selectivity, **options)


METHODS = {
    "traditional": lambda selectivity: methods.traditional(),
    "selective_backprop": some("selective_backprop"),
    "selective_backprop, scoring in train mode": some("selective_backprop", scoring="train"),
    "selective_backprop, proxy trained before": some("selective_backprop", scoring=proxy(make_model(seed=8), 0)),
    "selective_backprop, warm-up and interrupt": some("selective_backprop", warmup_epochs=1, interrupt=3),
    "selective_backprop, window": some("selective_backprop", start=0.3, end=0.8),
    "selective_backprop, unbiased": some("selective_backprop", unbiased=True, max_weight=5),
    "selective_backprop, fixed size": some("selective_backprop", fixed_size=True),
    "selective_backprop, classes": lambda share: by_class(methods.selective_backprop(share), CLASSES),
    "selective_backprop, pipelined": some("selective_backprop", scoring="pipelined"),
    "selective_backprop, pipelined and interrupted": some("selective_backprop", scoring="pipelined", interrupt=3),
    "stale_selective_backprop, pipelined": some("stale_selective_backprop", every=2, scoring=PipelinedScorer()),
    "stale_selective_backprop": some("stale_selective_backprop", every=2),
    "top_k, proxy, warm-up": some("top_k", warmup_epochs=0.5, scoring=proxy(make_model(seed=8), 2)),
    "stale_selective_backprop, proxy": some("stale_selective_backprop", every=2, scoring=proxy(make_model(seed=8), 1)),
    "stale_selective_backprop, warm-up": some("stale_selective_backprop", every=3, warmup_epochs=0.5),
    "stale_selective_backprop, classes, unbiased": lambda share: by_class(
        methods.stale_selective_backprop(share, unbiased=True), CLASSES
    ),
    "predicted_selective_backprop": some("predicted_selective_backprop", every=2),
    "distance_backprop": lambda minimum: methods.distance_backprop(minimum=minimum),
    "expected_selective_backprop": some("expected_selective_backprop"),
    "ledger_backprop": lambda share: methods.ledger_backprop(loss_share=share, max_age=2),
    "ledger_backprop, classes": lambda share: methods.ledger_backprop(loss_share=share, classes=CLASSES),
    "ledger_percentile": some("ledger_percentile"),
    "infobatch": lambda selectivity: methods.infobatch(prune=1 - selectivity, until=0.7),
    "kath18": lambda selectivity: methods.kath18(selectivity, threshold=1.05),
    "kath18, unbiased": lambda selectivity: methods.kath18(
        selectivity, unbiased=True, variable_start=False, score="gradient_norm"
    ),
    "composer_backprop": lambda keep: methods.composer_backprop(keep),
    "top_k": some("top_k"),
    "proxy_backprop": some("proxy_backprop", proxy=make_model(seed=8), train_every=2, train_share=0.4),
    "top_k, proxy": some("top_k", scoring=proxy(make_model(seed=8), train_every=2)),
    "random_backprop": some("random_backprop"),
    "random_backprop, window and interrupt": some("random_backprop", start=0.2, end=0.7, interrupt=4),
    "repeated_random": some("repeated_random"),
    "diet": lambda selectivity: methods.diet(
        method=methods.selective_backprop(selectivity), scores=SCORES, prune=0.25 if selectivity < 1 else 0
    ),
    "diet, stale": lambda selectivity: methods.diet(
        method=methods.stale_selective_backprop(selectivity, every=2),
        scores=SCORES,
        prune=0.25 if selectivity < 1 else 0,
    ),
}

KINDS = {
    name: METHODS[name]
    for name in (
        "selective_backprop",  # a selection pass
        "selective_backprop, warm-up and interrupt",  # on and off within an epoch
        "selective_backprop, pipelined",  # scoring in the background
        "top_k, proxy",  # another model scores, and learns
        "stale_selective_backprop",  # epochs planned by scores
        "ledger_percentile",  # epochs planned by training losses
        "infobatch",  # the same, with weights
        "kath18",  # draws with replacement
        "diet",  # pruned
    )
}
"""One method of each kind: for what is tested at several settings. A path through the loader that none takes is new."""


def test_every_method_is_in_the_table():
    assert {name.split(",")[0] for name in METHODS} == set(methods.__all__)
    assert all(isinstance(make(0.5), Method) for make in METHODS.values())
    for name in methods.__all__:
        assert f"| {name} |" in inspect.getdoc(methods), "the docstring lists every method"
