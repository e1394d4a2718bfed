"""For policies that remember nothing."""

from __future__ import annotations

from typing import Any

from selective_backprop.description import Described


class Stateless(Described):
    """An empty state to save and load."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
