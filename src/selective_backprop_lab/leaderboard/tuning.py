"""Choosing each arm's settings on held-out training examples, with equally many settings to try for all.

Plain training comes first: of its rates, the one with the lowest error at the middle length. Its runs at all lengths
make the frontier. Every other arm takes, of its settings at the middle length, the one with the highest compute
multiplier against that frontier, which weighs error and compute together. If no setting reaches an error of the
frontier, there are only bounds, which say what a setting costs and nothing of its error. Then the lowest error decides.

The two baselines choose by the mean over several seeds, the other arms by one: a badly tuned baseline would flatter
every method. Where runs are long, all settings of a baseline get one seed, and only the best of them the others. Where
they are longer still, an arm tries three rates and nothing else, and takes the lowest error after the shortest length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from selective_backprop_lab.data.datasets import ImageSet
from selective_backprop_lab.files.reading import read_json
from selective_backprop_lab.files.writing import write_whole
from selective_backprop_lab.leaderboard.arms import PLAIN, RANDOM, Arm, untuned
from selective_backprop_lab.leaderboard.records import Cell, Outcome, Store
from selective_backprop_lab.leaderboard.running import Show, run_missing, settings_of
from selective_backprop_lab.leaderboard.workloads import Workload, find_workload
from selective_backprop_lab.runs.training import check
from selective_backprop_lab.study import frontier
from selective_backprop_lab.study.frontier import Bound, Frontier

TUNING_SEED = 1_000
"""Seed of all trials. No run on the test set has it."""
Chosen = dict[str, str]
"""The chosen setting of each arm."""


def tune(
    workload: Workload,
    arms: Sequence[Arm],
    data: ImageSet,
    store: Store,
    show: Show = lambda outcome, left: None,
) -> Chosen:
    """Choose a setting for each arm; run only the trials that are missing.

    Args:
        workload: what is trained.
        arms: the arms. Plain training must be among them, or have its records in the store.
        data: the workload's data with held-out examples in place of the test set.
        store: where records go.
        show: called after each run.
    """
    for arm in arms:
        for text in arm.trials:  # a mistake in the last one must not show only after hours of the others
            check(settings_of(workload, Cell(arm.name, text, workload.trial_length, TUNING_SEED, True)), data)
    by_name = {arm.name: arm for arm in arms}
    plain, one = by_name.pop(PLAIN), [TUNING_SEED]

    def cells(name: str, settings: Sequence[str], lengths: Sequence[int], seeds: Sequence[int]) -> list[Cell]:
        return [Cell(name, text, length, seed, True) for text in settings for length in lengths for seed in seeds]

    def best(arm: Arm, seeds: int, merit: Callable[[frontier.Budget], Any]) -> str:
        """The setting with the highest merit, after all had one seed and the finalists had as many as this."""
        left = list(arm.trials)
        for number in sorted({1, seeds}):
            wanted = cells(arm.name, left, [workload.trial_length], range(TUNING_SEED, TUNING_SEED + number))
            runs = run_missing(workload, wanted, data, store, show)
            tried = {text: _arm([run for run in runs if run.cell.setting == text]) for text in left}
            left = sorted(left, key=lambda text: merit(tried[text]), reverse=True)[: workload.finalists]
        return left[0]

    chosen = {PLAIN: best(plain, workload.baseline_seeds, lambda arm: -arm.error)}
    if workload.tune_rates_only:
        chosen |= {arm.name: best(arm, workload.baseline_seeds, lambda tried: -tried.error) for arm in by_name.values()}
    else:
        budgets = run_missing(workload, cells(PLAIN, [chosen[PLAIN]], workload.lengths, one), data, store, show)
        baseline = Frontier([_arm([run for run in budgets if run.cell.length == n]) for n in workload.lengths])
        for arm in by_name.values():
            seeds = workload.baseline_seeds if arm.name == RANDOM else 1
            chosen[arm.name] = best(arm, seeds, lambda tried: _merit(baseline, tried))
    for arm in untuned(workload):
        chosen[arm.name] = at_plain_rate(arm, chosen[PLAIN])
        # It is not tuned, but what it costs must be known.
        run_missing(workload, cells(arm.name, [chosen[arm.name]], [workload.middle], one), data, store, show)
    return chosen


def lengths_of(workload: Workload, arm: str, setting: str, store: Store) -> tuple[int, ...]:
    """Lengths that an arm is trained at, by what an epoch costs in its trial.

    Where arms are compared at equal compute, these are the lengths at which it costs about as much as plain training.
    The papers' workloads say how much longer an arm is trained. Otherwise the lengths are the workload's, and one at
    which it costs as much as the longest plain run. An arm that costs nearly as much as plain training has no further
    length.
    """
    if workload.settled is not None:
        return tuple(round(length * workload.settled[arm][1]) for length in workload.lengths)
    tried = (Cell(arm, setting, length, TUNING_SEED, True) for length in (workload.middle, workload.trial_length))
    trial = next((store.outcomes[cell] for cell in tried if cell in store.outcomes), None)
    if trial is None:
        raise ValueError(f"{arm} has no trial of {setting!r} in {store.file}: run leaderboard tune first")
    longer = max(1.0, trial.cell.length / trial.compute)
    if workload.at_equal_compute:
        return tuple(round(length * longer) for length in workload.lengths)
    longest = workload.lengths[-1]
    matched = round(longest * longer)
    return workload.lengths if matched <= longest else (*workload.lengths, matched)


def test_cells(workload: Workload, chosen: Chosen, seeds: int, trials: Store) -> list[Cell]:
    """All runs on the test set."""
    return [
        Cell(arm, setting, length, seed, False)
        for seed in range(seeds)
        for arm, setting in chosen.items()
        for length in lengths_of(workload, arm, setting, trials)
    ]


def chosen_settings(workload: str, records: Path) -> Chosen:
    """The setting of each arm: from a paper where the workload has them, else what tuning chose."""
    if settled := find_workload(workload).settled:
        return {arm: setting for arm, (setting, _) in settled.items()}
    file = records / f"{workload}.chosen.json"
    try:
        chosen = read_json(file) if file.exists() else {}
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}): delete it, and run leaderboard tune again") from None
    if not (isinstance(chosen, dict) and all(isinstance(setting, str) for setting in chosen.values())):
        raise ValueError(f"{file} must hold a setting for each arm, such as 'sb@0.5:rate=1', got {chosen!r:.80}")
    return chosen


def add_chosen(workload: str, records: Path, chosen: Chosen) -> None:
    """Write what tuning chose for some arms. Choices for others stay."""
    both = chosen_settings(workload, records) | chosen
    write_whole({records / f"{workload}.chosen.json": (json.dumps(both, indent=1) + "\n").encode()})


def at_plain_rate(arm: Arm, plain: str) -> str:
    """The setting of an arm that is not tuned, with the learning rate that plain training chose.

    >>> at_plain_rate(Arm("mine", ("sb@0.5:rate=1",)), "traditional:rate=2")
    'sb@0.5:rate=2'
    """
    return arm.trials[0].replace("rate=1", plain.partition(":")[2])


def _merit(baseline: Frontier, arm: frontier.Budget) -> tuple[bool, float]:
    """How good a setting is: its multiplier. Settings that do not reach the frontier come after, by their error."""
    multiple = baseline.multiple(arm)
    return (False, -arm.error) if multiple.bound is Bound.LESS else (True, multiple.value)


def _arm(runs: Sequence[Outcome]) -> frontier.Budget:
    return frontier.Budget(tuple(run.error for run in runs), tuple(run.compute for run in runs))
