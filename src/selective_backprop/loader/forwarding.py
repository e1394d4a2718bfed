"""The attributes of the user's loader, for loops and frameworks that ask for them."""

from __future__ import annotations

from typing import Any

from selective_backprop.loader.source import Source


class _OfTheLoader:
    """An attribute of the user's loader: read here, set there."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance._source.user_loader, self.name)

    def __set__(self, instance: Any, value: Any) -> None:
        raise AttributeError(
            f"{self.name} belongs to the loader inside and can only be read here: set it when you make your DataLoader"
        )


class LoaderAttributes:
    """Whatever the user's loader has, read-only: `loader.dataset` is the user's data set, whole.

    Its own names come first: `batch_size` is that of training.
    """

    _source: Source

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
        """What neither this class nor an instance of it has."""
        if name.startswith("_"):  # also before there is a source
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        loader = self._source.user_loader
        try:
            return getattr(loader, name)
        except AttributeError:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}, and neither has the loader inside, a "
                f"{type(loader).__name__}"
            ) from None
