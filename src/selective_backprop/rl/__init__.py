"""Reinforcement learning with verifiable rewards: which rollouts to backpropagate.

| rule | what is backpropagated |
| --- | --- |
| drop_equal | the rollouts of groups whose rewards differ |
| downsample | the m of each such group whose rewards differ most |
"""

from selective_backprop.rl.rollouts import Rollouts, downsample, drop_equal

__all__ = ["Rollouts", "downsample", "drop_equal"]
