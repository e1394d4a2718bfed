"""The parts of a method in a run: its own scorer, policy and schedule, and the generator that they draw from.

# N = candidates
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from selective_backprop.distributed.team import Team
from selective_backprop.losses import NegativeScoresError, require_not_negative
from selective_backprop.method import Method
from selective_backprop.policies import GroupedPolicy
from selective_backprop.sampler.id_batches import NO_IDS
from selective_backprop.sampler.share_check import ShareCheck
from selective_backprop.types import Selection


class Parts:
    """A run's own copies of a method's scorer, policy and schedule.

    Args:
        method: the method.
        num_epochs: length of the run; None if not known.
        seed: seed of the generator. Ranks that train together draw the same numbers from it.
        team: the ranks that train together.
    """

    def __init__(self, method: Method, *, num_epochs: int | None, seed: int, team: Team) -> None:
        self.method = method
        self.num_epochs = num_epochs
        self.scorer = copy.deepcopy(method.scorer)
        self.policy = copy.deepcopy(method.policy)
        self.schedule = copy.deepcopy(method.schedule)
        self.generator = torch.Generator().manual_seed(seed)
        self.share_check = ShareCheck(method, self.policy, quiet=not team.is_first)
        self.learns_losses = method.scorer.needs.training_losses or method.schedule.observes_losses
        """Whether selection depends on training losses."""
        self.mixes_batches = not method.schedule.never_on and method.policy.selectivity != 1
        """Whether examples of different candidate batches may share a training batch."""
        self.score_is = f"{method.scorer.score_name} in a selection pass"
        """What errors call a score."""

    def select(self, scores: Tensor, groups: Tensor | None, *, own: Tensor, ids: Tensor | None) -> Selection:
        """Let the policy select among candidates of all ranks. Every rank makes the same selection.

        Args:
            scores, groups: scores and groups of the candidates of all ranks.
            own, ids: scores and ids of this rank's candidates, to name them in errors.
        """
        if not scores.numel():
            return Selection(NO_IDS, torch.empty(0), torch.empty(0, dtype=torch.float64))
        self.schedule.observe(scores)
        try:
            if groups is None:
                selection = self.policy.select(scores, self.generator)
            else:
                assert isinstance(self.policy, GroupedPolicy)  # Method has checked it
                selection = self.policy.select_in_groups(scores, self.generator, groups)
        except NegativeScoresError:
            require_not_negative(own, ids, self.score_is)  # the same error with ids, if they are this rank's
            raise
        self.share_check.count(scores.numel(), selection.positions.numel())
        return selection

    def why_all(self, epoch: int) -> str:
        """Say why this planned epoch trains on everything; "" if it does not, or if the user asked for it."""
        return self.share_check.why_all(epoch, self.scorer.explanation())

    def try_policy(self, scores: Tensor, ids: Tensor | None) -> None:
        """Raise at once if the policy cannot take such scores, and not only when selection is switched on."""
        try:
            copy.deepcopy(self.policy).select(scores, torch.Generator())
        except NegativeScoresError:
            require_not_negative(scores, ids, self.score_is)

    def groups_of(self, ids: Tensor | None) -> Tensor | None:
        """Return the group of each example, by its id. None if the method has no groups."""
        groups = self.method.groups
        return None if groups is None else groups[NO_IDS if ids is None else ids]

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "scorer": self.scorer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "generator": self.generator.get_state(),
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise if a saved state does not fit. It is tried on copies, so nothing changes."""
        parts = {name: getattr(self.method, name) for name in ("policy", "scorer", "schedule")}
        for name, part in {**parts, "generator": None}.items():
            try:
                if part is None:
                    torch.Generator().set_state(state[name])
                else:
                    copy.deepcopy(part).load_state_dict(state[name])
            except Exception as error:  # any error: the part may be the user's own class
                raise ValueError(
                    f"the saved state of the {name} does not fit {part or 'a generator'}: it was saved by another one, "
                    f"or it is damaged ({type(error).__name__}: {error})"
                ) from error

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.scorer.load_state_dict(state["scorer"])
        self.schedule.load_state_dict(state["schedule"])
        self.generator.set_state(state["generator"])
