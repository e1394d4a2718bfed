"""Pure tensor maths of selection. Nothing has state; only the two functions known from Composer take a model.

# N = candidates, K = selected
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from selective_backprop.inference import NoTrace
from selective_backprop.options import require_numbers

_INTERPOLATION = {3: "linear", 4: "bilinear", 5: "trilinear"}
_UNIT = 1 << 32  # probability 1 in the integer arithmetic of systematic_sample


def beta_from_selectivity(selectivity: float) -> float:
    """Compute the exponent for which percentile ** beta keeps this share: E[u ** beta] = 1 / (beta + 1).

    >>> beta_from_selectivity(0.25)
    3.0
    """
    require_numbers(selectivity=selectivity)
    if not 0 < selectivity <= 1:
        raise ValueError(f"selectivity must be in (0, 1], got {selectivity}")
    return 1 / selectivity - 1


def selectivity_from_beta(beta: float) -> float:
    """Compute the expected share of candidates that percentile ** beta keeps.

    >>> selectivity_from_beta(3)
    0.25
    """
    require_numbers(beta=beta)
    if not 0 <= beta < float("inf"):
        raise ValueError(f"beta must be a number >= 0, got {beta}")
    return 1 / (beta + 1)


def rank_percentiles(values: Tensor) -> Tensor:
    """Compute the mean-rank percentile of each value among all of `values`.

    >>> rank_percentiles(torch.tensor([1.0, 9.0, 4.0, 4.0])).tolist()
    [0.25, 1.0, 0.625, 0.625]
    """
    ordered, order = values.sort()
    _, ties = torch.unique_consecutive(ordered, return_counts=True)
    mean_ranks = ties.cumsum(0) - (ties - 1) / 2
    ranks = torch.empty(len(values), dtype=torch.float64)
    ranks[order] = mean_ranks.to(torch.float64).repeat_interleave(ties)
    return ranks.div_(len(values))


def spearman(a: Tensor, b: Tensor) -> float:
    """Compute Spearman's rank correlation of two (N,) tensors; NaN if one of them is constant. Ties share a mean rank.

    >>> round(spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 9.0])), 6)
    1.0
    """
    ranks = torch.stack([rank_percentiles(a), rank_percentiles(b)])
    if bool((ranks == ranks[:, :1]).all(1).any()):
        return float("nan")
    return float(torch.corrcoef(ranks)[0, 1])


def keep_probability(percentiles: Tensor, beta: float) -> Tensor:
    """Chance of training on each example: percentile ** beta.

    >>> keep_probability(torch.tensor([0.5, 1.0]), beta=2).tolist()
    [0.25, 1.0]
    """
    return percentiles.pow(beta)


def mean_keep_probability(below: Tensor, up_to: Tensor, total: int, beta: float) -> Tensor:
    """Compute the mean of percentile ** beta over each score's own part of a CDF.

    The parts of all scores cover [0, 1]. So the mean of their chances is 1 / (beta + 1), even if there are few scores
    or many ties.

    Args:
        below: for each score, how many of the `total` scores are smaller.
        up_to: for each score, how many of the `total` scores are not larger.
        total: number of scores in the CDF.
        beta: the exponent.

    >>> mean_keep_probability(torch.tensor([0, 1]), torch.tensor([1, 2]), total=2, beta=1).tolist()
    [0.25, 0.75]
    """
    if beta == 0:
        return torch.ones(below.shape, dtype=torch.float64)
    # Integrals are computed once at all ranks and then looked up, which halves the operations.
    grid = torch.arange(total + 1, dtype=torch.float64).div_(total)
    areas = grid.pow_(beta + 1).mul_(total / (beta + 1))
    return (areas.take(up_to) - areas.take(below)).div_(up_to - below).clamp_(max=1.0)


def excess_loss(losses: Tensor) -> Tensor:
    """Return how far each loss is above the smallest one.

    Label smoothing and other soft targets put a floor under every loss, and a Gaussian likelihood can be negative.
    Neither says who needs training. Adding a constant to all losses changes nothing here.

    >>> excess_loss(torch.tensor([0.5, 2.0])).tolist(), excess_loss(torch.tensor([-0.5, 2.0])).tolist()
    ([0.0, 1.5], [0.0, 2.5])
    """
    return losses - losses.min() if len(losses) else losses


def mean_of_easiest(losses: Tensor, share: float = 0.95) -> float:
    """Compute the mean of this share of the losses, the lowest ones, so that a few broken examples do not count.

    >>> mean_of_easiest(torch.tensor([1.0, 2.0, 3.0, 1e6]), share=0.75)
    2.0
    """
    return float(descending(losses)[len(losses) - math.ceil(share * len(losses)) :].mean()) if len(losses) else 0.0


def count_for_loss_share(ordered: Tensor, share: float, cap: float = float("inf")) -> int:
    """Count how many of the largest losses it takes to reach this share of their sum.

    Args:
        ordered: losses in falling order. Each counts by how far it is above the smallest.
        share: share of the sum.
        cap: no loss counts for more than this many times the mean.

    >>> count_for_loss_share(torch.tensor([2.0, 1.0, 0.0, 0.0]), share=0.6)
    1
    >>> one_high = torch.tensor([1000.0, *[1.0] * 99, 0.0])
    >>> count_for_loss_share(one_high, share=0.8), count_for_loss_share(one_high, share=0.8, cap=10)
    (1, 59)
    """
    if share == 1 or not len(ordered):
        return len(ordered)  # nothing may be skipped
    counted = excess_loss(ordered).to(torch.float64)
    if cap < float("inf"):
        counted = counted.clamp(max=cap * float(counted.mean()))
    sums = counted.cumsum(0)
    if sums[-1] <= 0:
        return len(ordered)  # all losses are equal
    # The small number corrects rounding errors: 0.9 of ten equal losses must be nine of them.
    return 1 + int(torch.searchsorted(sums, (share - 1e-9) * sums[-1]))


def descending(values: Tensor) -> Tensor:
    """Sort values in falling order.

    >>> descending(torch.tensor([-2.0, 3.0, -1.0, 0.0])).tolist()
    [3.0, 0.0, -1.0, -2.0]
    """
    if values.dtype != torch.float32:
        return values.sort(descending=True).values
    # Sorting integers takes a quarter of the time. As integers, the bits of positive floats rise with the floats, and
    # those of negative floats fall.
    bits = values.view(torch.int32)
    if not len(bits) or bits.min() >= 0:
        return bits.sort().values.flip(0).view(torch.float32)
    rising = bits ^ (bits >> 31 & 0x7FFFFFFF)
    ordered = rising.sort().values.flip(0)
    return (ordered ^ (ordered >> 31 & 0x7FFFFFFF)).view(torch.float32)


def is_outlier(losses: Tensor, *, ordered: Tensor | None = None) -> Tensor:
    """Find outliers among losses >= 0: (N,) bool.

    An outlier is more than 100 times as large as the bound below which 99% of the losses lie, or all but ten of them if
    that is more. So a loss is compared with other hard examples, not with the mean: if most examples are learned and a
    few are not, those few are no outliers. Nor are the examples of a rare class with more than ten of them. Among fewer
    than 20 losses there is no outlier, nor if the bound is 0: then nothing is left of all losses but these few.

    ordered: the same losses in falling order, if they are sorted already. This saves most of the time.

    >>> losses = torch.cat([torch.zeros(95), torch.tensor([2.0, 3.0, 5.0, 8.0, 900.0])])
    >>> is_outlier(losses).nonzero().flatten().tolist()
    [99]
    """
    if len(losses) < 20:
        return torch.zeros(len(losses), dtype=torch.bool)
    number = max(1 + int(0.99 * (len(losses) - 1)), len(losses) - 10)
    # torch.quantile takes no more than 2 ** 24 values.
    within = losses.kthvalue(number).values if ordered is None else ordered[-number]
    return (losses > 100 * within) & (within > 0)


def highest(scores: Tensor, num_selected: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Find the positions of the highest scores, rising, and each candidate's chance to be among them.

    Ties are decided by lot.

    >>> positions, chances = highest(torch.tensor([1.0, 9.0, 4.0, 1.0]), 3)
    >>> chances.tolist()
    [0.5, 1.0, 1.0, 0.5]
    """
    if not num_selected:
        return torch.empty(0, dtype=torch.int64), torch.zeros(len(scores), dtype=torch.float64)
    lowest_kept = scores.kthvalue(len(scores) - num_selected + 1).values
    chosen, chances = is_highest(scores, lowest_kept, num_selected, generator)
    return chosen.nonzero().flatten(), chances


def is_highest(
    scores: Tensor, lowest_kept: Tensor, num_selected: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Find which scores are among the highest, and the chance of each: both (N,). lowest_kept: the lowest of them."""
    chosen, tied = scores > lowest_kept, (scores == lowest_kept).nonzero().flatten()
    chances = chosen.to(torch.float64)
    needed = num_selected - int(chosen.count_nonzero())
    chosen[tied[torch.randperm(len(tied), generator=generator)[:needed]]] = True
    chances[tied] = needed / len(tied)
    return chosen, chances


def softmax_distance(outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute the L2 distance between softmax(outputs) and the one-hot (or soft) target of each example.

    It is also the norm of the gradient of the cross-entropy with respect to the outputs. Up to a factor, that is an
    upper bound of the gradient norm with respect to all parameters (Katharopoulos and Fleuret 2018). So it is 0 for
    targets that are ignored, which are class indices below 0. Half precision is computed in float32: all easy examples
    would have the same distance otherwise.

    >>> softmax_distance(torch.tensor([[100.0, 0.0], [100.0, 0.0]]), torch.tensor([0, 1])).tolist()
    [0.0, 1.4142...]
    """
    if outputs.dim() != 2 or len(targets) != len(outputs):
        raise ValueError(
            f"outputs must be (examples, classes) with a target each, got {tuple(outputs.shape)} and "
            f"{tuple(targets.shape)}"
        )
    if (targets.dim() != 1 or targets.is_floating_point()) and targets.shape != outputs.shape:
        raise ValueError(
            f"targets must be class indices, shape (N,), or probabilities of the shape of outputs, "
            f"{tuple(outputs.shape)}; got {targets.dtype} of shape {tuple(targets.shape)}"
        )
    outputs = at_least_float32(outputs)
    counts = None
    if targets.dim() == 1:
        counts, targets = targets >= 0, F.one_hot(targets.long().clamp(min=0), outputs.shape[1])
    distances: Tensor = torch.linalg.vector_norm(outputs.softmax(1) - targets.to(outputs.dtype), dim=1)
    return distances if counts is None else distances * counts


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half precision to float32.

    >>> at_least_float32(torch.ones(1, dtype=torch.bfloat16)).dtype, at_least_float32(torch.ones(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))


def flip_coins(probabilities: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Flip an independent coin for each candidate. Returns the positions of those kept, rising.

    >>> flip_coins(torch.tensor([1.0, 0.0, 1.0])).tolist()
    [0, 2]
    """
    # rand is in [0, 1): probability 1 always keeps and probability 0 never does.
    coins = torch.rand(probabilities.shape, generator=generator, dtype=probabilities.dtype)
    return (coins < probabilities).nonzero().view(-1)


def fixed_size_probabilities(probabilities: Tensor, num_selected: int) -> Tensor:
    """Scale probabilities so that they add up to num_selected, none above 1: min(1, c * p) for the right c.

    >>> fixed_size_probabilities(torch.tensor([0.1, 0.1, 0.8]), 2).tolist()
    [0.5, 0.5, 1.0]
    """
    positive = int((probabilities > 0).sum())
    if not 0 <= num_selected <= positive:
        raise ValueError(f"cannot select {num_selected} of {positive} candidates with a positive probability")
    ordered, order = probabilities.to(torch.float64).sort(descending=True)
    rest = ordered.flip(0).cumsum(0).flip(0)  # sum from here to the end
    wanted = num_selected - torch.arange(len(ordered), dtype=torch.float64)
    # The largest are certain as long as their fair share of what is still wanted is 1 or more.
    certain = (wanted * ordered >= rest) & (wanted > 0)
    num_certain = int(certain.to(torch.int64).cumprod(0).sum())
    scaled = torch.ones_like(ordered)
    if num_certain < len(ordered):
        remainder = rest[num_certain].clamp_min(torch.finfo(torch.float64).tiny)  # all zero: nothing to scale
        scaled[num_certain:] = ordered[num_certain:] * (wanted[num_certain] / remainder)
    return torch.empty_like(scaled).index_copy_(0, order, scaled).clamp_(max=1.0)


def systematic_sample(probabilities: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw a sample of fixed size in which each candidate is included with exactly its probability. Returns positions.

    The probabilities are laid end to end on a line, and a comb with teeth 1 apart picks from it, from a random start.
    They must add up to a whole number, as those of `fixed_size_probabilities` do. Arithmetic is in integers (units of
    2**-32), so that rounding changes neither the size of the sample nor a probability of 0 or 1.

    >>> systematic_sample(torch.tensor([0.0, 1.0, 0.0, 1.0])).tolist()
    [1, 3]
    """
    shares = (probabilities.to(torch.float64) * _UNIT).round().to(torch.int64)
    num_selected = round(float(probabilities.sum()))
    missing = num_selected * _UNIT - int(shares.sum())
    if missing:
        if abs(missing) > _UNIT // 1000:
            raise ValueError(f"probabilities must add up to a whole number, got {float(probabilities.sum())}")
        middle = int((shares - _UNIT // 2).abs().argmin())  # the one furthest from 0 and 1 takes the rounding error
        shares[middle] += missing
    start = torch.randint(_UNIT, (1,), generator=generator, dtype=torch.int64)
    teeth = (shares.cumsum(0) - start + _UNIT - 1) // _UNIT
    return torch.diff(teeth, prepend=teeth.new_zeros(1)).nonzero().flatten()


def sample_of_size(
    chances: Tensor, scores: Tensor, num_selected: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Sample num_selected candidates in proportion to chances, spread evenly over easy and hard ones.

    Returns their positions, rising, and the probabilities of all candidates. Candidates without a chance are never
    sampled, even if there are too few others.

    >>> sample_of_size(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([3.0, 1.0, 2.0]), 3)[0].tolist()
    [1, 2]
    """
    probabilities = fixed_size_probabilities(chances, min(num_selected, int((chances > 0).sum())))
    order = scores.argsort()  # systematic sampling in this order spreads the sample
    return order[systematic_sample(probabilities[order], generator)].sort().values, probabilities


def should_selective_backprop(
    current_duration: float, batch_idx: int, start: float = 0.5, end: float = 0.9, interrupt: int = 2
) -> bool:
    """Whether selection is on: start <= current_duration < end, and not at every `interrupt`-th batch.

    >>> should_selective_backprop(0.6, batch_idx=0), should_selective_backprop(0.6, batch_idx=1)
    (True, False)
    """
    in_window = start <= current_duration < end
    return in_window and (interrupt == 0 or (batch_idx + 1) % interrupt != 0)


def select_using_loss(
    input: Tensor,
    target: Tensor,
    model: Callable[[Tensor], Tensor],
    loss_fun: Callable[..., Tensor],
    keep: float = 0.5,
    scale_factor: float = 1,
    *,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Select a part of a batch by loss: `max(1, int(N * keep))` examples, at full resolution, in their order.

    It can replace Composer's function of the same name, and rounds like it: from 7 examples, keep=0.5 gives 3. The
    chance of inclusion is percentile ** beta with beta = 1 / keep - 1, scaled to the fixed size. Scoring leaves no
    trace on the model.

    Args:
        input: the candidates, first dimension N.
        target: their targets, first dimension N.
        model: called on the (perhaps smaller) input; an `nn.Module` is put into eval mode meanwhile.
        loss_fun: a loss function that takes `reduction="none"`.
        keep: share of the batch to keep.
        scale_factor: if below 1, score on an input that is shrunk by this factor along all its spatial axes.
        generator: source of randomness; by default torch's global one.

    >>> net = torch.nn.Linear(8, 3)
    >>> x, y = select_using_loss(torch.randn(16, 8), torch.arange(16) % 3, net, F.cross_entropy, keep=0.25)
    >>> x.shape, y.shape
    (torch.Size([4, 8]), torch.Size([4]))
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep must be in (0, 1], got {keep}")
    if not callable(loss_fun):
        raise TypeError(f"Loss function must be callable, got {type(loss_fun).__name__}")
    if "reduction" not in inspect.signature(loss_fun).parameters:
        raise TypeError("Loss function `loss_fun` must take a keyword argument `reduction`.")
    if not len(input):
        raise ValueError("the batch has no examples to select from")
    small = shrink(input, scale_factor)
    num_selected = max(1, int(len(input) * keep))
    guard: Any = NoTrace(model)() if isinstance(model, torch.nn.Module) else torch.no_grad()
    with guard:
        # Copies, because the model or the loss may write to what it gets.
        losses = loss_fun(model(small.clone()), target.clone(), reduction="none").float().cpu()
    if losses.numel() != len(input):
        raise ValueError(
            f"one loss per example is needed: loss_fun gave losses of shape {tuple(losses.shape)} for "
            f"{len(input)} examples"
        )
    losses = losses.reshape(-1)
    if not bool(torch.isfinite(losses).all()):
        row = int((~torch.isfinite(losses)).nonzero()[0])
        raise ValueError(
            f"the loss of example {row} of the batch is {float(losses[row])}: selection needs finite losses"
        )
    middles = rank_percentiles(losses) - 0.5 / len(losses)
    chances = keep_probability(middles, beta_from_selectivity(keep))
    positions = sample_of_size(chances, losses, num_selected, generator)[0].to(input.device, non_blocking=True)
    return input[positions], target[positions]


def shrink(input: Tensor, scale_factor: float) -> Tensor:
    """Resize the spatial dimensions of (N, C, ...) by scale_factor, which may not exceed 1."""
    if scale_factor == 1:
        return input
    if input.dim() not in _INTERPOLATION:
        raise ValueError(f"Input must be 3D, 4D, or 5D if scale_factor != 1, got {input.dim()}")
    if not 0 < scale_factor <= 1:
        raise ValueError(f"scale_factor must be <= 1 and above 0, got {scale_factor}")
    mode = _INTERPOLATION[input.dim()]
    return F.interpolate(input, scale_factor=scale_factor, mode=mode, align_corners=False, recompute_scale_factor=False)
