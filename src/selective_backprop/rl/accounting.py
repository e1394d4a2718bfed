"""What reinforcement learning costs: generated and trained tokens, rollouts and seconds, apart."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class RolloutStats:
    """Counts since training began, over all ranks. Seconds are those of this process.

    >>> stats = RolloutStats(rollouts=8, generated_tokens=80)
    >>> stats.since(RolloutStats(rollouts=4))["rollouts"]
    4
    """

    generations: int = 0
    """How often a batch was generated, refills included."""
    groups: int = 0
    """Groups of rollouts that were generated, one per prompt."""
    equal_groups: int = 0
    """Groups whose rewards were all equal: nothing is learned from them."""
    rollouts: int = 0
    """Rollouts that were generated."""
    trained_rollouts: int = 0
    """Rollouts that were backpropagated, each pass over them counted once."""
    generated_tokens: int = 0
    """Tokens that were generated."""
    trained_tokens: int = 0
    """Generated tokens that were backpropagated, each pass over them counted once."""
    generating_seconds: float = 0.0
    """Seconds spent on generating and on rewards."""
    training_seconds: float = 0.0
    """Seconds spent on forward and backward passes."""

    def since(self, then: RolloutStats) -> dict[str, float]:
        """Return what was added since `then`, an earlier copy."""
        before = asdict(then)
        return {name: value - before[name] for name, value in asdict(self).items()}
