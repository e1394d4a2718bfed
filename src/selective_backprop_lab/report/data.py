"""What the ledgers say about the data: the easiest and hardest examples, and what scores would prune."""

from __future__ import annotations

import numpy as np

from selective_backprop_lab.report.comparisons import Comparison
from selective_backprop_lab.report.figures import Line, Part, Table
from selective_backprop_lab.report.images import Examples
from selective_backprop_lab.report.logs import Log, highest, lowest, mean_loss, read_logs
from selective_backprop_lab.report.material import Material
from selective_backprop_lab.report.pruning import pruning_parts

READING = (
    "Easy examples are learned early, and hard ones keep a high loss; among the hardest are those whose label is wrong."
)
_PER_CLASS, _MOST_CLASSES = 8, 10


def about_data(comparison: Comparison, material: Material) -> list[Part]:
    """Galleries, and what scores would prune. A data set is shown once: a sweep has many workloads that are alike."""
    logs, dataset = read_logs(comparison, material), str(comparison.runs[0].recipe["dataset"])
    if not logs or dataset in material.pictured:
        return []
    material.pictured.add(dataset)
    # Traditional has losses from every epoch, and no selection has biased them.
    log = logs.get(comparison.reference or "") or next(iter(logs.values()))
    examples = Examples.of(log.run, log.num_examples, material.load, material.images)
    return [*_galleries(log, examples), *pruning_parts(logs, examples, material)]


def _galleries(log: Log, examples: Examples) -> list[Part]:
    if examples.data is None:
        return []
    losses = mean_loss(log)
    parts: list[Part] = []
    for title, rank in (("Easiest", lowest), ("Hardest", highest)):
        rows: list[Line] = []
        for label, name in list(enumerate(examples.data.classes))[:_MOST_CLASSES]:
            mine = rank(np.where(examples.labels == label, losses, np.nan), _PER_CLASS)
            heading = f"{label}: {name}" if name != str(label) else name
            rows.append([heading, *(examples.show(id) for id in mine)])
        words = f"{title} examples of each class, by mean loss ({log.run.label}, seed {log.run.seed})"
        parts.append(Table(title.lower(), words, [], rows))
    return parts
