"""Reinforcement learning with verifiable rewards: which prompts to generate from, and which rollouts to learn from.

| which prompts come next | what an epoch generates from |
| --- | --- |
| uniform | every prompt |
| greso | fewer of the prompts whose last groups of rewards were all equal |
| retire_mastered | all but the prompts that are mastered, and a few of those |
| near_half | the prompts whose pass rate is nearest to one half |

| which rollouts are backpropagated | |
| --- | --- |
| drop_equal | those of groups whose rewards differ |
| downsample | the m of each such group whose rewards differ most |
"""

from selective_backprop.prompt_ledger import PromptLedger, PromptRows
from selective_backprop.rl.accounting import RolloutStats
from selective_backprop.rl.methods import greso, near_half, retire_mastered, uniform
from selective_backprop.rl.rollouts import Rollouts, downsample, drop_equal

__all__ = [
    "PromptLedger",
    "PromptRows",
    "RolloutStats",
    "Rollouts",
    "downsample",
    "drop_equal",
    "greso",
    "near_half",
    "retire_mastered",
    "uniform",
]
