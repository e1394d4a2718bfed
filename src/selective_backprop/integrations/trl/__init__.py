"""Selective-Backprop in TRL: fine-tuning language models on the examples that a method selects.

`SelectiveSFTTrainer` replaces SFTTrainer. `SelectiveDPOTrainer` and `SelectiveRewardTrainer` select preference pairs.
For another TRL trainer, put the mixin first: `class Mine(SelectiveTRLTrainer, OtherTrainer)`.
"""

from selective_backprop.integrations.trl.listening import SelectiveTRLTrainer
from selective_backprop.integrations.trl.preference import SelectiveDPOTrainer, SelectiveRewardTrainer
from selective_backprop.integrations.trl.sft import SelectiveSFTTrainer

__all__ = ["SelectiveDPOTrainer", "SelectiveRewardTrainer", "SelectiveSFTTrainer", "SelectiveTRLTrainer"]
