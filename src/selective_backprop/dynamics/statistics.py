"""Statistics of training dynamics. All are pure functions of arrays with one row per epoch and one column per example.

Selection leaves gaps: an example that was skipped has no fresh value in that epoch, so it has NaN. Each function says
how it deals with gaps.

# E = epochs, M = examples, C = classes
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_BINS = 512
_AFTER_KNEE = 4  # epochs from the knee on, before the network has memorised much
_PRIOR = 5  # examples that a group's share is drawn towards that of all by
_LEAST_SHARE = 0.02
_SHARE_OF_NEIGHBOURS = 0.75


def carried_forward(values: Array) -> Array:
    """Fill each gap with the last value before it. Gaps before an example's first value stay.

    Selection by loss skips an example because its last loss was low, so its last value is the best guess about it.

    >>> carried_forward(np.array([[1.0, np.nan], [np.nan, 2.0], [3.0, np.nan]])).tolist()
    [[1.0, nan], [1.0, 2.0], [3.0, 2.0]]
    """
    result = values.copy()
    for epoch in range(1, len(result)):
        np.copyto(result[epoch], result[epoch - 1], where=np.isnan(result[epoch]))
    return result


def time_mean(values: Array, weights: Array | None = None) -> Array:
    """Average over epochs: (M,). Gaps count with the last value before them; see `carried_forward`.

    Applied to margins, it is the area under the margin (AUM) of Pleiss et al. 2020, https://arxiv.org/abs/2001.10528.
    Applied to probabilities of the label, it is the confidence of Swayamdipta et al. 2020,
    https://arxiv.org/abs/2009.10795.

    weights: (E,) weight of each epoch; by default all alike.

    >>> time_mean(np.array([[1.0, np.nan], [np.nan, 2.0], [4.0, np.nan]])).tolist()
    [2.0, 2.0]
    """
    filled = carried_forward(values).astype(np.float64)
    weights = np.ones(len(filled)) if weights is None else weights
    known = ~np.isnan(filled)
    total = (np.where(known, filled, 0.0) * weights[:, None]).sum(0)
    count = (known * weights[:, None]).sum(0)
    return np.asarray(np.divide(total, count, out=np.full(filled.shape[1], np.nan), where=count > 0))


def variability(values: Array) -> Array:
    """Standard deviation over the epochs in which the example was seen: (M,); NaN if it was never seen.

    Gaps are left out: a value that was carried forward would make an example look steadier than it is.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # an example that was never seen
        return np.asarray(np.nanstd(values.astype(np.float64), axis=0))


def forgetting_events(margins: Array) -> Array:
    """Count how often each example went from predicted right to predicted wrong: (M,) int64.

    It compares each value with the one before it, however long ago that was. So with selection it is a lower bound:
    what was forgotten and learned again between two looks is not counted.

    Toneva et al. 2019, https://arxiv.org/abs/1812.05159.

    >>> forgetting_events(np.array([[1.0, -1.0], [np.nan, 1.0], [-1.0, 1.0]])).tolist()
    [1, 0]
    """
    before = carried_forward(margins)[:-1]
    return np.asarray(((before > 0) & (margins[1:] <= 0)).sum(0))


def first_learned(margins: Array) -> Array:
    """Return the first epoch in which each example was predicted right: (M,) int64; -1 if it never was.

    With selection it is an upper bound: the example may have been learned in the gap before.

    >>> first_learned(np.array([[-1.0, -1.0], [1.0, np.nan]])).tolist()
    [1, -1]
    """
    right = margins > 0
    return np.where(right.any(0), right.argmax(0), -1)


def last_seen(values: Array) -> Array:
    """Return the last epoch in which each example was seen: (M,) int64; -1 if it never was."""
    seen = ~np.isnan(values)
    return np.where(seen.any(0), len(values) - 1 - seen[::-1].argmax(0), -1)


def agreement(margins: Array) -> Array:
    """Return the share of examples whose prediction agrees with their label, in each epoch: (E,).

    Examples that were skipped count with their last prediction before.
    """
    filled = carried_forward(margins)
    known = (~np.isnan(filled)).sum(1)
    return np.asarray((filled > 0).sum(1) / np.maximum(known, 1))


def knowledge_weights(margins: Array, num_classes: int) -> Array:
    """Weight epochs by what the network knew in them: (agreement - chance) ** 2, scaled to a sum of 1.

    A margin from an epoch in which the network could hardly tell classes apart says nothing about labels.
    """
    above = np.maximum(agreement(margins) - 1 / num_classes, 1e-3) ** 2
    return np.asarray(above / above.sum())


def selection_shift(margins: Array, others: Array, labels: Array) -> Array:
    """Estimate how much selection added to each margin: (E, M), 0 where everything was trained on.

    Where a network trains on a share r of the examples with label a and on a share s of those like them with label b,
    the odds that it learns for a against b are r / s times those in the data, so the difference of the two logits is
    larger by log(r / s). Selection by loss skips examples whose label fits. So it makes labels that do not fit look
    better than they are, most of all where all the others fit.

    The shares are those of the epoch before, among examples with the same label, the same best other class, and the
    same answer to whether the prediction was right. Examples like them with the other label are those with both classes
    exchanged and the opposite answer. Small groups are drawn towards the share of all examples with their answer.

    Args:
        margins: (E, M).
        others: (E, M) best class other than the label.
        labels: (M,) classes.
    """
    shift = np.zeros(margins.shape)
    filled, rivals, labels = carried_forward(margins), carried_forward(others), labels.astype(np.int64)
    for epoch in range(1, len(margins)):
        known = np.flatnonzero(~np.isnan(filled[epoch - 1]) & ~np.isnan(rivals[epoch - 1]))
        now = np.flatnonzero(~np.isnan(margins[epoch]) & ~np.isnan(others[epoch]))
        trained = ~np.isnan(margins[epoch - 1, known])
        if trained.all() or not len(now):
            continue
        right = filled[epoch - 1, known] > 0
        overall = [float(trained[right == answer].mean()) if (right == answer).any() else 1.0 for answer in (0, 1)]
        size = int(max(labels.max(), np.nanmax(others))) + 1
        groups = _group(labels[known], rivals[epoch - 1, known], right, size)
        keys, where = np.unique(groups, return_inverse=True)
        counts = np.bincount(where) + _PRIOR
        totals = np.bincount(where, weights=trained) + _PRIOR * np.asarray(overall)[keys % 2]
        shares = np.log(np.maximum(totals / counts, _LEAST_SHARE))
        usual = np.log(np.maximum(overall, _LEAST_SHARE))
        right = margins[epoch, now] > 0
        own = _group(labels[now], others[epoch, now], right, size)
        opposite = _group(others[epoch, now], labels[now], ~right, size)
        own_share, opposite_share = (_look_up(keys, shares, wanted, usual[wanted % 2]) for wanted in (own, opposite))
        shift[epoch, now] = own_share - opposite_share
    return shift


def _group(labels: Array, others: Array, right: Array, size: int) -> Array:
    """Return a number for each combination of label, best other class, and whether the prediction was right."""
    return np.asarray((labels.astype(np.int64) * size + others.astype(np.int64)) * 2 + right)


def _look_up(keys: Array, values: Array, wanted: Array, missing: Array) -> Array:
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], missing)


def label_scores(margins: Array, others: Array, labels: Array, num_classes: int) -> Array:
    """Score how well each label fits: (M,), lowest for labels that are probably wrong; NaN if it was never seen.

    It is the mean of the margins less `selection_shift`, with `knowledge_weights`. Only epochs count in which the
    example was seen: a value from long before, when the network knew less, would hide what was seen later.

    Args:
        margins: (E, M).
        others: (E, M) best class other than the label.
        labels: (M,) classes.
        num_classes: C.
    """
    corrected = margins - selection_shift(margins, others, labels)
    weights, seen = knowledge_weights(margins, num_classes)[:, None], ~np.isnan(corrected)
    total, count = (np.where(seen, corrected, 0.0) * weights).sum(0), (seen * weights).sum(0)
    return np.asarray(np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0))


def with_neighbours(scores: Array, votes: Array) -> Array:
    """Add what neighbours say to `label_scores`: (M,). Both count by their standard deviations, neighbours for 3/4.

    votes: (M,) as `neighbours.label_votes` computes them.
    """
    known = ~np.isnan(scores)
    spreads = [max(float(values[known].std()), 1e-12) if known.any() else 1.0 for values in (scores, votes)]
    # In units of the scores, so that a score of 0 still means that nothing speaks for or against the label.
    return np.asarray(scores + _SHARE_OF_NEIGHBOURS * votes * spreads[0] / spreads[1])


def top_probabilities(margins: Array, confidences: Array) -> Array:
    """Return the probability of the predicted class, from the margin and the probability of the label.

    >>> top_probabilities(np.log([[0.5, 4.0]]), np.array([[0.2, 0.8]])).round(3).tolist()
    [[0.4, 0.8]]
    """
    ratio = np.exp(np.minimum(0, margins))  # probability of the label over that of the predicted class
    return np.asarray(np.minimum(1.0, confidences / np.maximum(ratio, 1e-12)))


def knee(curve: Array, *, least: float = 0.08) -> int:
    """Find the epoch in which a rising curve flattens: where it is farthest above the line from its first to its last
    value. If it is nowhere `least` above that line, it still rises everywhere, and the answer is the last epoch.

    >>> knee(np.array([0.3, 0.6, 0.7, 0.72, 0.74])), knee(np.array([0.1, 0.2, 0.3]))
    (1, 2)
    """
    line = np.linspace(curve[0], curve[-1], len(curve))
    above = curve - line
    return int(above.argmax()) if above.max() >= least else len(curve) - 1


def noise_rate(margins: Array, confidences: Array, *, anchors: float = 0.1) -> float:
    """Estimate the share of wrong labels, at most 1/2.

    Look at the examples on which the network is surest what they are, whatever their label says. Nearly all of those
    whose label disagrees have a wrong one, so the share that disagrees is the share of wrong labels. This is read up to
    the `knee` of `agreement`: afterwards the network memorises wrong labels. If the
    network is often wrong even where it is surest, the estimate is too high. If it memorises labels from the first
    epochs on, the estimate is too low.

    Args:
        margins: (E, M).
        confidences: (E, M) probability of the label.
        anchors: the share of examples that count as the surest ones.
    """
    last = knee(agreement(margins)) + 1
    # Each example counts with the look at which the network was surest about it. The last look would not do: selection
    # looks again at examples whose label disagrees, and less often at the others.
    top = np.nan_to_num(top_probabilities(margins[:last], confidences[:last]), nan=-1.0)
    look, top = top.argmax(0), top.max(0)
    known = np.flatnonzero(top >= 0)
    if not len(known):
        return 0.0
    surest = known[np.argsort(-top[known], kind="stable")[: max(1, round(anchors * len(known)))]]
    return float(min(0.5, (margins[look[surest], surest] <= 0).mean()))


def wrong_probability(margins: Array, confidences: Array, scores: Array, num_classes: int) -> Array:
    """Estimate the probability that each label is wrong: (M,), NaN for examples that were never seen.

    It needs no labels that are known to be right:

    1. `noise_rate` gives rho, the share of wrong labels.
    2. How often does the predicted class equal the label, among examples with the same probability of the predicted
       class? Divided by 1 - rho, this is how often the prediction is right. It says how far the network's probabilities
       can be trusted, and corrects those of the label. Later epochs, in which labels are memorised, do not count.
    3. Bayes' rule: a label that the network gives probability p is wrong with probability
       rho' (1 - p) / (rho' (1 - p) + (1 - rho) p), where rho' = rho / (C - 1), because a wrong label can be any of the
       other classes.
    4. The result is smoothed to a falling function of the scores, so that both give the same order.

    Args:
        margins: (E, M).
        confidences: (E, M) probability of the label.
        scores: (M,) how well each label fits, as `label_scores` and `with_neighbours` compute it.
        num_classes: C.
    """
    known = np.flatnonzero(~np.isnan(scores))
    result = np.full(len(scores), np.nan)
    if not len(known):
        return result
    weights = knowledge_weights(margins, num_classes)
    weights[knee(agreement(margins)) + _AFTER_KNEE :] = 0
    confident = time_mean(confidences, weights)[known]
    top = time_mean(top_probabilities(margins, confidences), weights)[known]
    rate = noise_rate(margins, confidences)
    agrees = time_mean(margins, weights)[known] > 0
    trust = isotonic(top, agrees.astype(np.float64)) / (1 - rate)
    trust = np.clip(trust, 1 / num_classes, 1 - 1e-4)
    share = np.clip(confident / np.maximum(1 - top, 1e-6), 0, 1)
    right = np.where(agrees, trust, (1 - trust) * share)
    other = rate / (num_classes - 1)
    wrong = other * (1 - right) / np.maximum(other * (1 - right) + (1 - rate) * right, 1e-12)
    result[known] = 1 - isotonic(scores[known], 1 - wrong)
    return result


def isotonic(positions: Array, values: Array) -> Array:
    """Fit a function of the positions that never falls, by least squares, and return it at each position.

    The pool-adjacent-violators algorithm. Many positions are first averaged in 512 bins of equally many.

    >>> isotonic(np.array([3.0, 1.0, 2.0]), np.array([5.0, 2.0, 1.0])).tolist()
    [5.0, 1.5, 1.5]
    """
    order = np.argsort(positions, kind="stable")
    parts = [part for part in np.array_split(order, min(_BINS, len(order))) if len(part)]
    means: list[float] = []
    sizes: list[int] = []
    counts: list[int] = []  # parts in each pool
    for part in parts:
        means.append(float(values[part].mean()))
        sizes.append(len(part))
        counts.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            mean, size, count = means.pop(), sizes.pop(), counts.pop()
            means[-1] = (means[-1] * sizes[-1] + mean * size) / (sizes[-1] + size)
            sizes[-1] += size
            counts[-1] += count
    result = np.empty(len(order))
    result[order] = np.repeat(means, sizes)
    return result


def suggested_labels(others: Array, confidences: Array) -> Array:
    """Return what each label should probably be if it is wrong: (M,) int64; -1 if nothing is known.

    Every epoch votes for its best class other than the label, with the weight 1 - probability of the label.

    Args:
        others: (E, M) best class other than the label.
        confidences: (E, M) probability of the label.
    """
    epochs, ids = np.nonzero(~np.isnan(others) & ~np.isnan(confidences))
    result = np.full(others.shape[1], -1, dtype=np.int64)
    if not len(ids):
        return result
    classes = others[epochs, ids].astype(np.int64)
    num_classes = int(classes.max()) + 1
    keys, where = np.unique(ids * num_classes + classes, return_inverse=True)
    votes = np.bincount(where, weights=1 - confidences[epochs, ids].astype(np.float64) + 1e-9)
    order = np.lexsort((votes, keys // num_classes))  # by example, most votes last
    result[keys[order] // num_classes] = keys[order] % num_classes
    return result
