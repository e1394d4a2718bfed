"""Runs made up from errors and costs, whose reports can be told beforehand."""

from pathlib import Path

from selective_backprop_lab.report.runs import Run

SECONDS = {"loading": 1.0, "selection": 2.0, "forward": 3.0, "backward": 6.0, "other": 0.5, "evaluation": 100.0}


def made_up_run(
    label, errors, *, method=None, seed=0, trained=100, scored=0, epochs=None, path=None, data=None, **config
):
    """Each epoch offers 100 examples in batches of 10 and takes 12.5 seconds beside its evaluation."""
    records = [
        {
            "epoch": i,
            "test_error": error,
            "offered": 100,
            "trained": trained,
            "scored": scored,
            "skipped_before_loading": 100 - trained if not scored else 0,
            "batches": trained // 10,
            "compute": (scored + 3 * trained) / 300,
            "seconds": SECONDS,
        }
        for i, error in enumerate(errors)
    ]
    recipe = {"dataset": "digits", "model": "small_cnn", "epochs": epochs or len(errors), "batch_size": 10, "lr": 0.1}
    recipe |= config.pop("recipe", {})
    settings = {"method": method or label, "seed": seed, "recipe": recipe, "options": {}, "selectivity": 0.5}
    where = path or Path("runs") / label / f"seed-{seed}"
    return Run(where, settings | config, {"commit": "abc"}, records, label, data=data or {})
