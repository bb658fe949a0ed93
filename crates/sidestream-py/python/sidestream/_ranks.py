"""Says so where several ranks would go through the same data."""

from __future__ import annotations

import sys
import warnings
from typing import Any

#: Samplers of PyTorch's that know nothing of ranks.
_WHOLE = ("SequentialSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")

_said: set[str] = set()


def warn(loader: Any, stacklevel: int) -> None:
    """Warn once in a program of a loader that gives every rank all of its data."""
    world = _world()
    if world > 1 and _is_plain(loader) and _gives_all(loader):
        _warn_once(
            "ranks",
            f"each of the {world} ranks goes through all that this DataLoader has, unless its data set is one"
            " rank's part already: give it sampler=DistributedSampler(dataset), or prefetch what accelerate "
            "or Lightning have made of it, sidestream.prefetch(accelerator.prepare(loader)) or "
            "callbacks=[sidestream.lightning.Prefetch()]",
            stacklevel,
        )


def unknown_to_accelerate(loader: Any) -> Unknown | None:
    """Return what looks whether a loop over this loader accumulates gradients by accelerate, if that has not
    prepared it.
    """
    steps = _accumulated()
    if steps < 2 or not _is_plain(loader):
        return None
    batches = len(loader) if hasattr(loader.dataset, "__len__") else None
    # Where it comes out even, the last batch of the loop is one at which accelerate steps.
    return None if batches is not None and batches % steps == 0 else Unknown(steps)


class Unknown:
    """A loop over a loader that accelerate does not know."""

    def __init__(self, steps: int) -> None:
        """Begin where nothing of the loop has run."""
        self._steps = steps
        self._state: Any = sys.modules["accelerate.state"].GradientState()
        self._before = self._state.sync_gradients

    def look(self, stacklevel: int) -> None:
        """Warn once in a program if a step of the loop has accumulated: that changes whether the next one
        does.
        """
        if self._state.sync_gradients is not self._before and not self._state.in_dataloader:
            _warn_once(
                "accelerate",
                f"accelerate accumulates gradients over {self._steps} batches and does not know this "
                "DataLoader, so that it does not step at its end: prefetch the one that it has prepared, "
                "sidestream.prefetch(accelerator.prepare(loader))",
                stacklevel,
            )


def _is_plain(loader: Any) -> bool:
    # What other loaders do is not known, and those that accelerate or Lightning have prepared are shared out.
    data = getattr(sys.modules.get("torch.utils.data"), "DataLoader", None)
    return data is not None and type(loader) is data


def _warn_once(what: str, text: str, stacklevel: int) -> None:
    if what not in _said:
        _said.add(what)
        warnings.warn(text, stacklevel=stacklevel + 2)


def _world() -> int:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


def _gives_all(loader: Any) -> bool:
    """Tell whether every part of the loader is one that knows nothing of ranks."""
    data: Any = sys.modules["torch.utils.data"]
    if isinstance(loader.dataset, data.IterableDataset):
        # It may ask for its rank itself.
        return False
    batches = loader.batch_sampler
    if batches is not None and type(batches) is not data.BatchSampler:
        return False
    sampler = loader.sampler if batches is None else batches.sampler
    return type(sampler) in [getattr(data, name) for name in _WHOLE]


def _accumulated() -> int:
    """Over how many batches an `Accelerator` of this program gathers gradients; 1 where there is none."""
    known = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    if known is None or not getattr(known, "_shared_state", None):
        return 1
    return int(known().num_steps)
