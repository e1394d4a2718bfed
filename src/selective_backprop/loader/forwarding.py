"""Gives access to the attributes of the user's loader, for training loops and frameworks that read them."""

from __future__ import annotations

from typing import Any

from selective_backprop.loader.source import AnySource

_OF_THE_LOADER = {
    *("dataset", "sampler", "batch_sampler", "drop_last", "collate_fn", "generator", "timeout", "pin_memory"),
    *("num_workers", "prefetch_factor", "persistent_workers", "worker_init_fn", "multiprocessing_context", "in_order"),
}


class LoaderAttributes:
    """Lets attributes of the user's loader be read: `loader.dataset` is the user's whole data set.

    Where SelectiveLoader has an attribute of the same name, that one counts: `batch_size` is the size of training
    batches.
    """

    _source: AnySource

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to set what belongs to the user's loader, which would not notice."""
        if name in _OF_THE_LOADER:
            raise AttributeError(
                f"{name} belongs to your DataLoader and can only be read here: set it when you make the DataLoader"
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Look up a name that SelectiveLoader does not have on the user's loader."""
        if name.startswith("_"):  # includes `_source`, which may not be set yet
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        loader = self._source.user_loader
        try:
            return getattr(loader, name)
        except AttributeError:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}, and neither has your loader, a "
                f"{type(loader).__name__}"
            ) from None
