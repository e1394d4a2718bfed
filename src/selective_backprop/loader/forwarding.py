"""Gives access to the attributes of the user's loader, for training loops and frameworks that read them."""

from __future__ import annotations

from typing import Any

from selective_backprop.loader.source import AnySource


class _OfTheLoader:
    """An attribute of the user's loader that can be read but not set on a SelectiveLoader."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance._source.user_loader, self.name)

    def __set__(self, instance: Any, value: Any) -> None:
        raise AttributeError(
            f"{self.name} belongs to your DataLoader and can only be read here: set it when you make the DataLoader"
        )


class LoaderAttributes:
    """Lets attributes of the user's loader be read: `loader.dataset` is the user's whole data set.

    Where SelectiveLoader has an attribute of the same name, that one counts: `batch_size` is the size of training
    batches.
    """

    _source: AnySource

    dataset = _OfTheLoader()
    sampler = _OfTheLoader()
    batch_sampler = _OfTheLoader()
    drop_last = _OfTheLoader()
    collate_fn = _OfTheLoader()
    num_workers = _OfTheLoader()
    prefetch_factor = _OfTheLoader()
    persistent_workers = _OfTheLoader()
    worker_init_fn = _OfTheLoader()
    multiprocessing_context = _OfTheLoader()
    generator = _OfTheLoader()
    timeout = _OfTheLoader()
    pin_memory = _OfTheLoader()
    in_order = _OfTheLoader()

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
