"""The state of a loader as of the batch that was taken last, not of the batch that was read last.

A loader of accelerate has a flag for the last batch, which ``accumulate`` uses. A loader with ``state_dict``
has its position. Both change when a batch is read, and batches are read ahead. So the state is stored with
each batch, and takes effect when that batch is handed over.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Iterator
from typing import Any

#: The attributes that accelerate's loaders change while they are iterated over.
_ACCELERATES = ("end_of_dataloader", "remainder", "iteration", "dl_state_dict")


def follower(loader: Any, owner: Any, ordinal: int | None) -> Follower:
    """Return the follower of this loader, for the prefetcher ``owner`` whose batches go to this GPU."""
    if isinstance(getattr(loader, "_follower", None), Follower):
        return _OfPrefetcher(loader)
    accelerate = sys.modules.get("accelerate.data_loader")
    mixin = getattr(accelerate, "DataLoaderStateMixin", None)
    if mixin is not None and issubclass(type(loader), mixin):
        return _OfAccelerate(loader, accelerate, owner, ordinal)
    return _Stateful(loader) if has_state(loader) else Follower(loader)


def has_state(loader: Any) -> bool:
    """Return whether a loader has a state that it can continue from."""
    # All loaders of accelerate have the methods, but only stateful loaders have the state.
    if hasattr(type(loader), "adjust_state_dict_for_prefetch") and "dl_state_dict" not in vars(loader):
        return False
    return all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict"))


class Follower:
    """The follower of a loader that has no state apart from its batches."""

    #: Whether `note` has to be called after each batch.
    notes = False

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def begin(self) -> Iterator[Any]:
        """Begin an iteration, in the caller's thread."""
        return iter(self.loader)

    def note(self) -> Any:
        """Return the loader's present state. The reading thread calls this after each batch and at the end.
        """
        return None

    def taken(self, note: Any, is_first: bool) -> None:
        """Make a stored state the current one when its batch is handed over. This runs in the caller's
        thread.
        """

    def ended(self, note: Any) -> None:
        """Make the state at the end the current one when the caller has reached the end. This runs in the
        caller's thread.
        """

    def state(self) -> Any:
        """Return the state as of the batch that the caller took last."""
        return self.loader.state_dict()

    def load_state(self, state: Any) -> None:
        """Make the next iteration continue from a state."""
        self.loader.load_state_dict(state)


class _NoState:
    """Replaces a state that could not be read, and has the error."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Stateful(Follower):
    """The follower of a loader with ``state_dict``, such as torchdata's ``StatefulDataLoader``."""

    notes = True

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._state: Any = None

    def begin(self) -> Iterator[Any]:
        source: Iterator[Any] = iter(self.loader)
        self._state = self.note()
        return source

    def note(self) -> Any:
        try:
            # The loader may change the returned object later, so it is copied.
            return copy.deepcopy(self.loader.state_dict())
        except Exception as error:  # noqa: BLE001 - raised in the caller's thread if the state is asked for.
            return _NoState(error)

    def taken(self, note: Any, is_first: bool) -> None:
        self._state = note

    def ended(self, note: Any) -> None:
        self._state = note

    def state(self) -> Any:
        if isinstance(self._state, _NoState):
            raise self._state.error
        return super().state() if self._state is None else self._state

    def load_state(self, state: Any) -> None:
        super().load_state(state)
        self._state = None


class _OfAccelerate(Follower):
    """The follower of a loader that accelerate prepared.

    The iteration runs over a twin: a second loader object with the same data, whose flags accelerate does not
    see. When a batch is handed over, its flags are set on the loader and on the prefetcher, which accelerate
    takes for the active loader.
    """

    notes = True

    def __init__(self, loader: Any, accelerate: Any, owner: Any, ordinal: int | None) -> None:
        super().__init__(loader)
        state = loader.gradient_state
        dispatcher = getattr(accelerate, "DataLoaderDispatcher", None)
        if dispatcher is not None and issubclass(type(loader), dispatcher) and loader.state.num_processes > 1:
            raise ValueError(
                "accelerate hands out the batches of this loader by collective calls, which all ranks have to"
                " make in one order, and a thread that reads ahead would make them concurrently with "
                "those of the training; prepare the loader with "
                "DataLoaderConfiguration(dispatch_batches=False)"
            )
        self._accelerate = accelerate
        # A weak reference, since the prefetcher holds this object.
        self._owner = weakref.ref(owner)
        self._ordinal = ordinal
        self._state = state
        self._twin = object.__new__(type(loader))

    def begin(self) -> Iterator[Any]:
        loader, twin = self.loader, self._twin
        twin.__dict__.update(vars(loader))
        twin.gradient_state = _Unseen()
        device: Any = getattr(loader, "device", None)
        is_there = getattr(device, "type", None) == "cuda" and (device.index or 0) == self._ordinal
        if is_there:
            # The twin would upload on the default stream, after the training work there.
            twin.device = None
        if getattr(loader, "rng_types", None) is not None:
            # This is a collective call, which has to be made in the training thread.
            self._accelerate.synchronize_rng_states(loader.rng_types, loader.synchronized_generator)
            twin.rng_types = None
        return iter(twin)

    def note(self) -> Any:
        said = {name: vars(self._twin)[name] for name in _ACCELERATES if name in vars(self._twin)}
        if "dl_state_dict" in said:
            said["dl_state_dict"] = copy.deepcopy(said["dl_state_dict"])
        return said

    def taken(self, note: Any, is_first: bool) -> None:
        if is_first:
            self._state._add_dataloader(self._owner())
        self._say(note)

    def ended(self, note: Any) -> None:
        self._say(note)
        self._state._remove_dataloader(self._owner())

    def _say(self, note: Any) -> None:
        vars(self.loader).update(note)
        for name in ("end_of_dataloader", "remainder"):
            object.__setattr__(self._owner(), name, note.get(name, getattr(self.loader, name)))


class _OfPrefetcher(Follower):
    """The follower of another prefetcher, whose batches are taken by our thread, not by the caller."""

    notes = True
    _batches: Any = None

    def begin(self) -> Iterator[Any]:
        self._batches = self.loader._begin(None)
        return self._batches  # type: ignore[no-any-return]

    def note(self) -> Any:
        return self._batches.note

    def taken(self, note: Any, is_first: bool) -> None:
        self.loader._follower.taken(note, is_first)

    def ended(self, note: Any) -> None:
        self.loader._follower.ended(note)

    def state(self) -> Any:
        return self.loader._follower.state()


class _Unseen:
    """Replaces accelerate's state for the twin that reads ahead."""

    def _add_dataloader(self, loader: Any) -> None:
        pass

    def _remove_dataloader(self, loader: Any) -> None:
        pass
