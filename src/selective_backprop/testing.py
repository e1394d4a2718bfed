"""Checks that any policy or scorer keeps its promises. Run them on your own ones too.

>>> from selective_backprop.policies import PercentilePolicy
>>> check_policy(lambda: PercentilePolicy(selectivity=0.5))
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from selective_backprop.types import Candidates, Policy, Scorer, Selection, Task


def global_random_states() -> list[Any]:
    """Return the global random states of torch, Python and numpy, to compare them before and after."""
    numpy = sys.modules.get("numpy")
    numpy_state = (
        [part.tolist() if hasattr(part, "tolist") else part for part in numpy.random.get_state()] if numpy else []
    )
    return [torch.get_rng_state().tolist(), random.getstate(), numpy_state]


def model_trace(model: nn.Module) -> list[Any]:
    """Return everything about a model that scoring must not change."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [
        [(name, tensor.detach().clone()) for name, tensor in tensors],
        [(name, None if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()],
        [(name, module.training) for name, module in model.named_modules()],
    ]


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal bit for bit, also tensors and containers of tensors."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b) or (a is not None and bool(a != a) and bool(b != b))  # NaN is not equal to itself


def _bits(values: Tensor) -> Tensor:
    return values.detach().flatten().contiguous().view(torch.uint8)


def check_policy(
    make_policy: Callable[[], Policy], *, prefers_high_scores: bool = True, num_candidates: int = 48, draws: int = 400
) -> None:
    """Assert that a policy keeps its promises.

    Args:
        make_policy: makes a new policy each time, so that every check starts from the beginning.
        prefers_high_scores: whether the largest score must have the largest probability.
        num_candidates: size of the trial batches.
        draws: number of trials to measure frequencies. The tolerance is five standard deviations, plus one draw.
    """
    scores = torch.rand(num_candidates, generator=torch.Generator().manual_seed(1)) * 5
    policy = make_policy()
    assert isinstance(policy, Policy), f"a policy must be a subclass of sb.policies.Policy, got {policy!r}"
    before, given = global_random_states(), scores.clone()
    selection = make_policy().select(scores, _generator(0))
    assert same(before, global_random_states()), "select() must draw from the given generator alone"
    assert torch.equal(scores, given), "select() must not change the scores"
    for values in (scores, scores[:1], torch.full((8,), 2.5), scores * 1e4):
        _check_selection(make_policy(), values)
    assert same(_tensors(selection), _tensors(make_policy().select(scores, _generator(0)))), (
        "the same scores and the same generator must give the same selection"
    )
    if prefers_high_scores:
        chance = selection.probabilities
        assert chance[scores.argmax()] == chance.max() > 0, "the largest score must have the largest probability"
    order = torch.randperm(num_candidates, generator=_generator(2))
    permuted = make_policy().select(scores[order], _generator(0))
    assert torch.allclose(permuted.probabilities, selection.probabilities[order]), (
        "permuting the scores must permute the probabilities"
    )
    _check_frequencies(make_policy, scores, draws)
    _check_resume(make_policy, scores)


def _check_selection(policy: Policy, scores: Tensor) -> None:
    selection, size = policy.select(scores, _generator(0)), len(scores)
    positions, weights, chance = selection.positions, selection.weights, selection.probabilities
    assert positions.dtype == torch.int64 and positions.dim() == 1, "positions must be a 1-D int64 tensor"
    assert bool((positions.diff() >= 0).all()), "positions must rise"
    assert policy.with_replacement or bool((positions.diff() > 0).all()), (
        "a candidate was selected twice: such a policy needs with_replacement = True"
    )
    assert len(positions) == 0 or 0 <= int(positions[0]) <= int(positions[-1]) < size, "positions must be candidates"
    assert weights.shape == positions.shape, "one weight per selected candidate"
    assert bool(torch.isfinite(weights).all()) and bool((weights >= 0).all()), "weights must be finite and >= 0"
    assert policy.weighting != "none" or bool((weights == 1).all()), (
        'a policy that gives other weights than 1 needs weighting = "biased" or "unbiased"'
    )
    assert chance.shape == (size,), "one probability per candidate"
    assert bool(((chance >= 0) & (chance <= 1)).all()), "probabilities must be in [0, 1]"


def _check_frequencies(make_policy: Callable[[], Policy], scores: Tensor, draws: int) -> None:
    generator = _generator(3)
    included = torch.zeros(len(scores), dtype=torch.float64)
    for _ in range(draws):
        selection = make_policy().select(scores, generator)
        included[list(set(selection.positions.tolist()))] += 1
    chance = selection.probabilities.to(torch.float64)
    tolerance = 5 * (chance * (1 - chance) / draws).sqrt() + 1 / draws
    worst = int(((included / draws - chance).abs() - tolerance).argmax())
    assert abs(included[worst] / draws - chance[worst]) <= tolerance[worst], (
        f"candidate {worst} was included in {included[worst] / draws:.3f} of {draws} draws, "
        f"its probability is {chance[worst]:.3f}"
    )


def _check_resume(make_policy: Callable[[], Policy], scores: Tensor) -> None:
    policy, resumed = make_policy(), make_policy()
    for _ in range(3):
        policy.select(scores, _generator(4))
    resumed.load_state_dict(copy.deepcopy(policy.state_dict()))
    later = scores.flip(0) * 0.9
    assert same(_tensors(policy.select(later, _generator(5))), _tensors(resumed.select(later, _generator(5)))), (
        "a policy with its state loaded must select as the one that was saved"
    )


def check_scorer(scorer: Scorer, candidates: Candidates, task: Task) -> None:
    """Assert that scoring gives one finite score per candidate, and changes neither the model nor random states."""
    assert isinstance(scorer, Scorer), f"a scorer must be a subclass of sb.scorers.Scorer, got {scorer!r}"
    data = copy.deepcopy(candidates.data)
    loss = task.loss.loss_fn if isinstance(task.loss.loss_fn, nn.Module) else nn.Module()
    trace, states, loss_trace = model_trace(task.model), global_random_states(), model_trace(loss)
    scores = scorer.score(candidates, task)
    assert scores.shape == (candidates.size,), f"expected {candidates.size} scores, got shape {tuple(scores.shape)}"
    assert bool(torch.isfinite(scores).all()), "scores must be finite"
    assert not scores.requires_grad, "scores must not carry gradients"
    assert same(trace, model_trace(task.model)), "scoring changed the model"
    assert same(loss_trace, model_trace(loss)), "scoring changed the loss module"
    assert same(states, global_random_states()), "scoring drew from a global random state"
    assert same(data, candidates.data), "scoring changed the candidates"
    assert same(scores, scorer.score(candidates, task)), "scoring twice must give the same scores"


def _tensors(selection: Selection) -> list[Tensor]:
    return [selection.positions, selection.weights, selection.probabilities]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
