"""Checkpoints of two ranks of which a file is damaged: the one before is used, by as many ranks or others."""

import itertools
import shutil
import warnings

import selective_backprop as sb
from selective_backprop.testing import same
from tests.distributed.test_checkpoints import EPOCHS, Run, by_percentile, check_nothing_lost, resume
from tests.distributed.threads import run_phases
from tests.torture.files import DAMAGES

FIRST, SECOND = 2, 4  # steps after which there are checkpoints, both in the first epoch


def save_twice(ranks, folder, name):
    run, saved = Run(ranks, by_percentile()), {}

    def save(step):
        if step in (FIRST, SECOND):
            sb.save_checkpoint(folder / name, run.loader, **run.parts)
            saved.update(run.result() if step == FIRST else {})

    run.train(on_step=save)
    return run.result() | {"saved": saved}


def damage_each(ranks, folder, name):
    """A copy of the checkpoints for every file that may be damaged, and every way."""
    files = sorted(file.name for file in (folder / name / "checkpoint-2").iterdir())
    for number, (file, damage) in enumerate(itertools.product(files, DAMAGES.values())):
        copy = shutil.copytree(folder / name, folder / f"{name}-{number}")
        damage(copy / "checkpoint-2" / file)
    return files


def resume_each(ranks, folder, name, epochs):
    """From every copy, and how often it was told that the newest cannot be used."""
    results = []
    for copy in sorted(path.name for path in folder.glob(f"{name}-*")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = resume(ranks, folder, copy, by_percentile, epochs)
        told = [str(one.message) for one in caught if "as newer checkpoints are damaged" in str(one.message)]
        results.append(result | {"told": len(told)})
    return results


def damaged(scratch):
    """Each file, in each way, of a checkpoint of two ranks and of one; on as many ranks and on the other number."""
    phases = []
    for name, size in (("two", 2), ("one", 1)):
        phases += [(size, save_twice, (name,)), (1, damage_each, (name,))]
        phases += [(size, resume_each, (name, EPOCHS)), (3 - size, resume_each, (name, 1))]
    results, times = run_phases(phases, scratch), 0
    for saved, (files,), as_many, others in (results[:4], results[4:]):
        assert files == [f"rank-{rank}.pt" for rank in range(len(saved))]
        assert len(as_many[0]) == len(others[0]) == len(files) * len(DAMAGES)
        for resumed in zip(*as_many, strict=True):
            check_exact(saved, resumed)
        for resumed in zip(*others, strict=True):
            assert resumed[0]["told"] == 1
            check_nothing_lost(saved, resumed, 1)
        times += len(as_many[0])
    return times


def check_exact(saved, resumed):
    assert resumed[0]["told"] == 1
    for before, after in zip(saved, resumed, strict=True):
        assert same(after["ids"], before["ids"][FIRST:])
        for part in ("model", "optimizer", "ledger"):
            assert same(after[part], before[part]), part
