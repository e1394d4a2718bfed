"""Selective-Backprop in TRL: fine-tuning language models on the examples that a method selects.

`SelectiveSFTTrainer` replaces SFTTrainer. `SelectiveDPOTrainer` and `SelectiveRewardTrainer` select preference pairs.
`SelectiveGRPOTrainer` and `SelectiveRLOOTrainer` choose the prompts to generate from, and the rollouts to train on.
For another TRL trainer, put the mixin first: `class Mine(SelectiveTRLTrainer, OtherTrainer)`.
"""

from selective_backprop.integrations.trl.listening import SelectiveTRLTrainer
from selective_backprop.integrations.trl.online import SelectiveGRPOTrainer, SelectiveRLOOTrainer
from selective_backprop.integrations.trl.preference import SelectiveDPOTrainer, SelectiveRewardTrainer
from selective_backprop.integrations.trl.sft import SelectiveSFTTrainer

__all__ = [
    "SelectiveDPOTrainer",
    "SelectiveGRPOTrainer",
    "SelectiveRLOOTrainer",
    "SelectiveRewardTrainer",
    "SelectiveSFTTrainer",
    "SelectiveTRLTrainer",
]
