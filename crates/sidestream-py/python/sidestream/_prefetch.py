"""``prefetch``: uploads batches to the device before the loop takes them."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from sidestream import _follow, _hand_over, _leaves, _ranks, _sidestream, _waits
from sidestream import _units as units
from sidestream._arguments import items, one_of, warn_of_samples, whole
from sidestream._feed import Entry, Feed, Noted
from sidestream._results import Result

if TYPE_CHECKING:
    from typing_extensions import Self

#: Maximum ``depth``: memory would not suffice for more batches.
MOST_DEPTH = 4096

#: The figures that a ring counts.
_OF_RING = ("bytes", "bytes_from_pinned", "slots", "grown", "retired", "pinned_bytes")

Batch = TypeVar("Batch")


@overload
def prefetch(
    loader: Iterable[Batch],
    device: Any = None,
    depth: int = 2,
    transform: None = None,
    *,
    keep: Literal["grow", "copy"] = "grow",
    stream: Any = None,
    max_pinned: int | None = None,
) -> Prefetcher[Batch]: ...
# `transform` has a default here only because it follows arguments that have one.
@overload
def prefetch(
    loader: Iterable[Any],
    device: Any = None,
    depth: int = 2,
    transform: Callable[[Any], Batch] = ...,
    *,
    keep: Literal["grow", "copy"] = "grow",
    stream: Any = None,
    max_pinned: int | None = None,
) -> Prefetcher[Batch]: ...

def prefetch(
    loader: Iterable[Any],
    device: Any = None,
    depth: int = 2,
    transform: Callable[[Any], Any] | None = None,
    *,
    keep: Literal["grow", "copy"] = "grow",
    stream: Any = None,
    max_pinned: int | None = None,
) -> Prefetcher[Any]:
    """Iterate over the batches of ``loader`` on a device, each uploaded while the loop computes on earlier
    ones.

    ``loader`` yields tensors, NumPy arrays, or nested structures of them, pinned or not: dictionaries and
    other mappings, lists, tuples, named tuples, dataclasses and ``TensorDict`` objects. A batch comes out
    with the same structure and with its arrays on the device. Several threads pack each batch into pinned
    memory, and one copy on a separate stream uploads it; a pinned tensor of 256 KiB or more is copied
    directly. Values that are not arrays of numbers are passed through, and so are tensors that are already on
    the device. An object of another class that holds tensors and has a method ``to`` is moved to a GPU with
    ``to`` when you take its batch, not ahead of that.

    With PyTorch imported the arrays become ordinary tensors with the values that ``.to(device)`` would give.
    Without it, and on simulated devices, they become ``DeviceArray``.

    **Ordering.** The stream that is current where a batch is taken waits for the upload and the transform of
    that batch. The host waits only for the loader.

    **How long a batch is valid.** A batch is valid as long as you hold one of its tensors or a view of one:
    for work on the stream that was current where the batch was taken, on every stream named with
    ``tensor.record_stream(stream)``, and on the stream of a library that takes a tensor with ``from_dlpack``.
    These other streams must wait for the first one. When the last tensor is gone, the next upload into its
    memory waits for the work that was submitted to these streams by then. It does not wait for streams that
    were not named, or for work that is submitted after the last tensor is gone.

    Args:
        loader: Any iterable, such as a ``torch.utils.data.DataLoader``. ``iter(loader)`` is called in your
            thread, and a thread of the prefetcher pulls the batches ahead of you: batches that you do not
            take are lost. When the loader makes the next batch, it may refill arrays of numbers that go to a
            device, but no values that are passed through, and with ``"cpu"`` no arrays at all.
        device: ``"cuda"``, ``"cuda:1"``, a ``torch.device`` or a number; ``"cpu"``, where batches are only
            read ahead; ``"sim:h200"`` for a simulated GPU. By default PyTorch's current CUDA device if there
            is one, otherwise ``"cpu"``.
        depth: Number of batches that fit in device memory at once, including the one in use, from 1 to 4,096;
            a transform adds one more. Each array begins at a multiple of 512 bytes. In a plain ``for`` loop
            with ``keep="grow"``, 1 becomes 2, because the loop variable holds a batch while the next one is
            taken. On ``"cpu"``, the number of batches that are read ahead.
        transform: A function from batch to batch, on the device. It runs in your thread, with your autocast
            and grad modes, when its batch is requested, on a separate stream that waits for the work that was
            submitted to your stream before the previous batch was handed out. So it must not read data that
            the body of the loop writes, unless it waits: ``torch.cuda.current_stream().wait_stream(stream)``,
            where ``stream`` is the loop's. A transform that returns tensors inside an opaque object waits for
            all earlier steps. Random numbers are drawn as in a plain loop. On ``"cpu"`` and for
            ``DeviceArray`` the transform is simply called.
        keep: The behaviour when you hold ``depth`` batches and take another one: ``"grow"`` adds memory for
            one more, which stays; ``"copy"`` gives you a copy of each batch, so that the memory never grows.
        stream: The stream on which batches are taken, instead of the current one. A stream of another library
            must live until the batches are gone. A simulated device has no current stream: by default the
            prefetcher makes one.
        max_pinned: Maximum bytes of pinned memory into which batches are packed. By default twice the bytes
            of the largest batch, and up to a quarter more if batches grow, or the memory that an earlier
            prefetcher has left. If only one batch fits, packing waits for the previous upload. A batch that
            does not fit raises a ``ValueError`` where it is taken.

    Returns:
        A ``Prefetcher``, which can be iterated once for each epoch and has ``statistics``.

    Raises:
        TypeError: ``loader`` cannot be iterated over, or is one tensor, a string, a dictionary or a model;
            ``device`` names no device; or an argument has the wrong type. While iterating: a batch holds a
            sparse, nested or quantized tensor, or a type that GPUs lack; the message says where in the batch.
        ValueError: An argument is out of range or not one of its values.
        DeviceError: The device cannot be opened.
        torch.cuda.OutOfMemoryError: While iterating: there is no memory for a batch, even after PyTorch has
        freed its unused memory. Without PyTorch a ``MemoryError``.
    """
    warn_of_samples(loader, stacklevel=2)
    kind: Any = _StatefulPrefetcher if _follow.has_state(loader) else Prefetcher
    made = kind(loader, device, depth, transform, keep=keep, stream=stream, max_pinned=max_pinned)
    return made  # type: ignore[no-any-return]


class Prefetcher(Generic[Batch]):
    """Batches of a loader that are on the device before they are requested. ``prefetch`` makes these, and its
    documentation has the arguments and the ordering.

    It can be iterated again and again, as the loader can. A new iteration ends the one before, and an
    iteration that is left early ends with its iterator. ``len``, ``break``, exceptions and Ctrl-C work as
    with the loader alone. Attributes of the loader, such as ``dataset``, ``batch_size``, ``sampler`` and
    ``set_epoch``, are read and set through the prefetcher. If the loader has ``state_dict`` and
    ``load_state_dict``, so does the prefetcher; there they count the batches that you took. The state of a
    loader that accelerate prepared also follows the batches that you took.

    **Threads.** A thread of the prefetcher reads the batches. It ends with the epoch, with the iterator, with
    ``close()`` or at the end of the program. Batches before an error of the loader are delivered; then the
    error is raised in your thread, with its traceback. When an iteration begins, the thread takes over your
    context variables, grad and inference mode, ``torch.autocast``, ``with torch.device(...)`` and other
    ``TorchFunctionMode``; its current device is the target device. It does not take over a
    ``threading.local``, saved-tensor hooks, a ``TorchDispatchMode``, the profiler's regions or the current
    stream.

    **Limits.**

    - Batches that were read ahead and not taken are lost: after a ``break`` out of a generator, ``depth`` or
      a few more. To stop after a fixed number, pass ``itertools.islice(loader, n)``.
    - An opaque object that cannot be moved is passed through, and its tensors stay on the host. If the first
      batch of an iteration has such objects, a ``UserWarning`` names each class once. No object is moved to a
      simulated device, and a ``TensorDict`` comes out there as a ``dict``.
    - If both a loader without workers and the loop draw random numbers, they draw from one generator in a
      different order than in a plain loop.
    - A CUDA graph may be captured while the prefetcher works. In the capture no batch can be taken, copied,
      or read with ``numpy()``. Do not close the prefetcher, let batches grow, or call ``empty_cache`` then:
      memory is not given back during a capture. A batch that is dropped while its own stream is being
      captured keeps its memory until the prefetcher is closed.
    - A forked child cannot iterate its parent's prefetcher.
    - Without PyTorch, ``keep="copy"`` allocates device memory for every batch.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: Any = None,
        depth: int = 2,
        transform: Callable[[Any], Any] | None = None,
        *,
        keep: Literal["grow", "copy"] = "grow",
        stream: Any = None,
        max_pinned: int | None = None,
    ) -> None:
        """Take the arguments of ``prefetch``."""
        depth = whole("depth", depth, 1, "the number of batches to have on the device")
        if depth > MOST_DEPTH:
            raise ValueError(
                f"depth is {depth}; give at most {MOST_DEPTH} batches, for each of which there is memory"
            )
        one_of("keep", keep, ("grow", "copy"))
        if max_pinned is not None:
            max_pinned = whole("max_pinned", max_pinned, 1, "the maximum bytes of pinned memory")
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is {transform!r}; give a function from batch to batch")
        if hasattr(device, "__iter__") and not isinstance(device, str):
            if isinstance(loader, str) or not hasattr(loader, "__iter__"):
                raise TypeError("loader and device are swapped; give prefetch(loader, device)")
        items("loader", loader)
        self._loader = loader
        self._depth = depth
        self._transform = transform
        self._target = _hand_over.target(device, keep == "copy", stream, depth)
        # One batch is in use, and another may still use its slot for its transform when the next batch comes.
        slots = depth + 1 if transform is not None and self._target.transforms_ahead else depth
        self._ring = (
            None
            if self._target.ring_device is None
            else _sidestream.Ring(self._target.ring_device, slots, max_pinned)
        )
        self._device = "cpu" if self._ring is None else self._ring.device
        self._grows = keep == "grow"
        self._noted = Noted()
        self._feed: Feed | None = None
        self._is_closed = False
        self._process = os.getpid()
        self._follower = _follow.follower(loader, self, self._target.ordinal)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the loader, such as ``dataset``, ``batch_size``, ``sampler`` or
        ``set_epoch``.
        """
        if not name.startswith("_"):
            try:
                return getattr(self._loader, name)
            except AttributeError:
                pass
            kind = type(self._loader).__name__
            raise AttributeError(
                f"neither the Prefetcher nor the {kind} in it has an attribute {name!r}", name=name, obj=self
            )
        raise AttributeError(f"a Prefetcher has no attribute {name!r}", name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the loader if the loader has it, otherwise of the prefetcher."""
        is_own = name.startswith("_") or hasattr(type(self), name)
        if not is_own and hasattr(self._loader, name):
            setattr(self._loader, name, value)
        else:
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        """Return the length of the loader.

        Raises:
            TypeError: The loader has no length.
        """
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        """Begin an iteration. ``iter(loader)`` is called here, in your thread."""
        _ranks.warn(self._loader, stacklevel=2)
        batches = self._begin(self._follower if self._follower.notes else None)
        batches.unknown = _ranks.unknown_to_accelerate(self._loader)
        return batches

    def _begin(self, follower: _follow.Follower | None) -> _Batches[Batch]:
        self._refuse_child()
        if self._is_closed:
            raise ValueError("the prefetcher was closed; make another")
        self._end()
        self._feed = Feed(
            self._follower,
            self._ring,
            self._target,
            depth=self._depth,
            grows=self._grows,
            noted=self._noted,
            are_new=_leaves.makes_each_anew(self._loader),
        )
        return _Batches(self, self._feed, follower)

    def _refuse_child(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "this process was forked from the one that made the prefetcher, and has neither its thread "
                "nor its device; call sidestream.prefetch here"
            )

    def close(self) -> None:
        """End the iteration and the thread, and leave the memory to the next prefetcher. Batches that you
        hold stay valid.

        The next prefetcher on the same device reuses the device memory, pinned memory, streams and threads,
        and ``sidestream.empty_cache()`` gives the memory back.

        Blocks while the loader is making a batch, for at most 10 seconds; ``close()`` and the end of the
        program share these 10 seconds. The thread ends, and its memory is left, as soon as the loader has
        given the batch.
        """
        if os.getpid() != self._process or self._is_closed:
            return
        self._is_closed = True
        feed, self._feed = self._feed, None
        if feed is not None:
            try:
                feed.end()
            finally:
                feed.close_ring()
        elif self._ring is not None:
            self._ring.close()

    def __del__(self) -> None:
        # Close the ring here, so that the next prefetcher can reuse the memory at once, not only after the
        # thread releases it.
        feed: Feed | None = getattr(self, "_feed", None)
        if feed is not None and sys is not None:
            feed.stop()
            feed.close_ring()

    def _end(self) -> None:
        if self._feed is not None:
            self._feed.stop()
            # A loader may have a single iterator, from which two threads must not request batches at once.
            self._feed.join()
            self._feed = None

    def __enter__(self) -> Self:
        """Return the prefetcher; ``with`` closes it at the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the prefetcher."""
        self.close()

    @property
    def statistics(self) -> PrefetchStatistics:
        """Counts and times of all iterations so far."""
        self._refuse_child()
        of_ring: dict[str, Any] = self._ring.statistics() if self._ring else dict.fromkeys(_OF_RING, 0)
        return PrefetchStatistics(
            device=self._device,
            batches=self._noted.given,
            elapsed_s=self._noted.elapsed_s,
            waited_for_loader_s=self._noted.loader_s,
            waited_for_slots_s=self._noted.slots_s,
            warnings=(*self._noted.warnings, *of_ring.pop("warnings", ())),
            **of_ring,
        )

    def __repr__(self) -> str:
        return f"<Prefetcher of {type(self._loader).__name__} to {self._device}, depth {self._depth}>"


class _StatefulPrefetcher(Prefetcher[Batch]):
    """A prefetcher for a loader with ``state_dict``. The methods belong to the class, since protocols look
    for them there.
    """

    def state_dict(self) -> Any:
        """Return the loader's state as of the batch that you took last."""
        return self._follower.state()

    def load_state_dict(self, state_dict: Any) -> None:
        """Make the next iteration continue after the batch that was taken last when the state was saved. Ends
        a running iteration.
        """
        self._end()
        self._follower.load_state(state_dict)


@dataclass(frozen=True)
class PrefetchStatistics(Result):
    """Counts and times of a prefetcher so far. ``print`` shows it with the verdict.

    Attributes:
        device: The device that batches go to.
        batches: Number of batches that were taken.
        bytes: Bytes that were uploaded, including those of batches that were not taken.
        bytes_from_pinned: The part of these bytes that was copied directly from the loader's pinned memory.
        slots: Number of batches for which the device has memory.
        grown: Number of slots that were added because all others were held.
        retired: Number of slots that are not used again; ``warnings`` says why.
        pinned_bytes: Bytes of pinned memory into which batches are packed, and which the prefetcher keeps
            until it is closed.
        elapsed_s: Seconds from your first request for a batch to the last batch that you took, including your
            steps.
        waited_for_loader_s: Seconds that you waited for the loader to return a batch.
        waited_for_slots_s: Seconds that you waited while a batch was packed, or for device memory.
        warnings: Warnings about memory that is not used again, and about objects whose arrays stayed on the
            host.
    """

    device: str
    batches: int
    bytes: int
    bytes_from_pinned: int
    slots: int
    grown: int
    retired: int
    pinned_bytes: int
    elapsed_s: float
    waited_for_loader_s: float
    waited_for_slots_s: float
    warnings: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """One sentence: whether the loader keeps up, or by how much the loop could be faster at most."""
        return _waits.verdict(
            self.batches, "batches", self.waited_for_loader_s, self.elapsed_s, "was spent waiting for it"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a new dictionary, of the schema ``sidestream.prefetch/1``."""
        return {
            "schema": "sidestream.prefetch/1",
            **asdict(self),
            "warnings": list(self.warnings),
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        batches = "1 batch" if self.batches == 1 else f"{self.batches} batches"
        if self.device == "cpu":
            waited = f"waited {self.waited_for_loader_s:.3f} s of {self.elapsed_s:.3f} s for the loader"
            return f"{batches} read ahead on the CPU\n{waited}\n{self.verdict}"
        lines = [
            (
                f"{batches} to {self.device}: {units.size(self.bytes)}, {units.size(self.bytes_from_pinned)} "
                "of it from pinned memory, copied directly"
            ),
            (
                f"memory for {self.slots} batches, {self.grown} of them added because all others were held; "
                f"{units.size(self.pinned_bytes)} of pinned memory for packing"
            ),
            (
                f"of {self.elapsed_s:.3f} s, waited {self.waited_for_loader_s:.3f} s for the loader and "
                f"{self.waited_for_slots_s:.3f} s for packing and memory"
            ),
            self.verdict,
        ]
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


class _Batches(Iterator[Batch]):
    """One iteration over a prefetcher."""

    def __init__(self, owner: Prefetcher[Batch], feed: Feed, follower: _follow.Follower | None) -> None:
        self._owner = owner
        self._feed = feed
        #: Receives the state of each batch that is taken. None if there is no state to follow, or another
        #: object receives it.
        self._follower = follower
        #: Watches for a loader that accelerate did not prepare.
        self.unknown: _ranks.Unknown | None = None
        #: The loader's state as of the batch that was taken last.
        self.note: Any = None
        self._is_first = True
        self._target = owner._target
        self._is_over = False
        #: Number of batches of earlier iterations.
        self._before = owner._noted.given
        #: Time at which the last batch was handed out; None before the first request.
        self._since: float | None = None
        self._transformer: _hand_over.Transformer | None = None
        if owner._transform is not None and self._target.transforms_ahead:
            self._transformer = _hand_over.Transformer(self._target, owner._transform)

    def __next__(self) -> Batch:
        if self._is_over:
            raise StopIteration
        if self.unknown is not None:
            self.unknown.look(stacklevel=2)
        if self._since is None:
            self._since = time.perf_counter()
        entry = self._next()
        noted = self._owner._noted
        while noted.unsaid:
            warnings.warn(noted.unsaid.popleft(), stacklevel=2)
        self.note = entry.note
        if self._follower is not None:
            self._follower.taken(entry.note, self._is_first)
            self._is_first = False
        batch = self._plain(entry) if self._transformer is None else self._transformer.apply(entry)
        noted.given += 1
        now = time.perf_counter()
        noted.elapsed_s += now - self._since
        self._since = now
        return batch  # type: ignore[no-any-return]

    def _plain(self, entry: Entry) -> Any:
        batch = self._target.hand_over(entry)
        transform = self._owner._transform
        return batch if transform is None else transform(batch)

    def _next(self) -> Entry:
        try:
            entry = self._feed.take()
        except Exception:
            self._is_over = True
            raise
        if entry is not None:
            return entry
        self._is_over = True
        if self._feed.is_stopped:
            raise RuntimeError(
                "this iteration was ended by another one of this prefetcher, or by close(); use one "
                "iteration at a time"
            )
        self.note = self._feed.last_note
        if self._follower is not None:
            self._follower.ended(self._feed.last_note)
        loader = self._owner._loader
        if 0 < self._owner._noted.given == self._before and isinstance(loader, Iterator):
            warnings.warn(
                f"loader is a {type(loader).__name__}, which an earlier iteration used up, so that this one "
                "has no batches; give what it is made from, such as the DataLoader",
                stacklevel=3,
            )
        raise StopIteration

    def close(self) -> None:
        """End the iteration."""
        self._is_over = True
        self._feed.stop()

    def __del__(self) -> None:
        # At the end of the interpreter the module may no longer exist; `atexit` has then ended the thread.
        feed: Feed | None = getattr(self, "_feed", None)
        if feed is not None and sys is not None:
            feed.stop()
