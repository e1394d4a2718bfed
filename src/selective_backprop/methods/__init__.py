"""The named methods. Each is a few lines that combine a scorer, a policy and a schedule.

| method | where scores come from | what is trained on |
| --- | --- | --- |
| traditional | | everything |
| selective_backprop | loss in a selection pass | chance = percentile ** beta |
| stale_selective_backprop | the same, every n-th epoch | chance = percentile ** beta |
| predicted_selective_backprop | predicted from past selection passes | chance = percentile ** beta |
| distance_backprop | squared softmax error in a selection pass | chance = score, clipped |
| expected_selective_backprop | loss in a selection pass | everything, weighted by percentile ** beta |
| ledger_backprop | loss in training, no selection pass | the hardest that carry 95% of the loss |
| ledger_percentile | loss in training, no selection pass | chance = percentile ** beta |
| infobatch | loss in training, no selection pass | all above the mean, some below, weighted up |
| kath18 | loss or gradient bound in a selection pass | draws in proportion to the score |
| composer_backprop | loss in a selection pass, in a window | a fixed share of each candidate batch |
| top_k | loss in a selection pass | the highest of each candidate batch |
| proxy_backprop | loss of a small network that learns alongside | the highest of each candidate batch |
| random_backprop | | the same chance for all |
| repeated_random | | a new random subset each epoch |
| diet | any of these | what a pruning before training left |

The first argument of a method is `selectivity`, the share that is kept, or there is none; everything else is given by
name. Nearly every method also takes the options of `Schedule`: warmup_epochs, start, end, interrupt.
"""

from selective_backprop.methods.batchwise import composer_backprop, kath18, proxy_backprop, top_k
from selective_backprop.methods.passless import (
    infobatch,
    ledger_backprop,
    ledger_percentile,
    random_backprop,
    repeated_random,
    traditional,
)
from selective_backprop.methods.pruned import diet
from selective_backprop.methods.selective import (
    distance_backprop,
    expected_selective_backprop,
    predicted_selective_backprop,
    selective_backprop,
    stale_selective_backprop,
)

__all__ = [
    "composer_backprop",
    "diet",
    "distance_backprop",
    "expected_selective_backprop",
    "infobatch",
    "kath18",
    "ledger_backprop",
    "ledger_percentile",
    "predicted_selective_backprop",
    "proxy_backprop",
    "random_backprop",
    "repeated_random",
    "selective_backprop",
    "stale_selective_backprop",
    "top_k",
    "traditional",
]
