"""For policies that remember nothing."""

from __future__ import annotations

from typing import Any


class Stateless:
    """An empty state to save and load."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
