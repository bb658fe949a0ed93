"""Downloads of results while the GPU continues to work, on a separate stream, and a mean of losses that never
blocks the loop.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Generator
from typing import Any, Generic, TypeVar

from sidestream import _sidestream, _tree
from sidestream._arguments import positive, truth

Tree = TypeVar("Tree")

#: The downloads of each device, by the device's number.
_sides: dict[int, _Side] = {}
#: Maximum number of elements of a small tensor. For such tensors, starting a copy costs the host more than
#: transferring the bytes.
_SMALL = 4096
#: Number of elements in a page of small results.
_PAGE = 1024
#: Number of scalars in a page. Their tensors are made in advance, since making a tensor takes as long as
#: sending one.
_NUMBERS = 128
#: Number of pending losses at which `update` checks for losses that have arrived.
_MANY = 32


def fetch(values: Tree, *, snapshot: bool = True) -> Fetched[Tree]:
    """Download tensors into pinned memory, and return a future of the same structure with CPU tensors.

    This replaces ``.item()``, ``.cpu()`` and ``.tolist()`` in a loop whose next steps do not depend on the
    value.

    **Ordering.** Neither the host nor the current stream waits for a download; the host does in ``result()``
    only. Tensors of up to 4,096 elements are written to pinned memory by a kernel on the current stream.
    Larger ones are copied on a separate stream, one for each device, after all work that was submitted to the
    current stream so far. Under a check all of them are copied on that stream.

    The values are those at the time of the call: the current stream first copies larger tensors on the
    device, so that later writes to them do not change the result. Small contiguous tensors of one type are
    joined into one download. With ``snapshot=False`` large tensors are not copied first; then nothing may
    write to them until the download is complete. They may be dropped at any time.

    Results require no grad. The pinned memory of a result stays allocated as long as the result is
    referenced. Small results share pages of 1,024 elements, which ``torch.save`` writes whole: store a clone.

    Args:
        values: A tensor, or nested dictionaries and other mappings, lists, tuples, named tuples and
            dataclasses of tensors. Values that are not tensors are passed through. CPU tensors are copied, or
            with ``snapshot=False`` returned unchanged.
        snapshot: Whether larger tensors are copied on the device first, which takes device memory of their
            size until the download is complete.

    Returns:
        A ``Fetched``, which has ``done()`` and ``result()`` and can be awaited.

    Raises:
        TypeError: A tensor is sparse, nested or quantized, or ``snapshot`` is neither True nor False.
        RuntimeError: The current stream is being captured into a graph; fetch after the replay.
    """
    if snapshot is not True:
        truth("snapshot", snapshot)
    if getattr(values, "is_cuda", False):
        alone = _posted(sys.modules["torch"], values)
        if alone is not None:
            host, posted = alone
            return Fetched(host, [posted])
    leaves, shape = _tree.tensors_of(values)
    if not leaves:
        return Fetched(values, [])
    torch: Any = sys.modules["torch"]
    devices: dict[int, list[int]] = {}
    for at, leaf in enumerate(leaves):
        if leaf.layout is not torch.strided or leaf.is_quantized or leaf.is_nested:
            raise TypeError(
                "a tensor is sparse, nested or quantized, and only dense ones are fetched; convert it on the "
                "device before"
            )
        if leaf.is_cuda:
            devices.setdefault(leaf.get_device(), []).append(at)
    for at, leaf in enumerate(leaves):
        # No operation after this is recorded for a backward pass.
        leaf = leaf.detach()
        if leaf.is_conj() or leaf.is_neg():
            leaf = leaf.resolve_conj().resolve_neg()
        leaves[at] = leaf.clone() if snapshot and not leaf.is_cuda else leaf
    events = [
        event
        for device, places in devices.items()
        for event in _download(torch, device, leaves, places, snapshot)
    ]
    return Fetched(shape.unflatten(leaves), events)


def _download(torch: Any, device: int, leaves: list[Any], places: list[int], snapshot: bool) -> list[Any]:
    """Replace the leaves of a device by CPU tensors, start their downloads, and return the objects to wait
    for.
    """
    _refuse_capture(torch)
    events = []
    large = []
    for ats in _together(leaves, places) if snapshot else [[at] for at in places]:
        is_copy = len(ats) > 1
        source = torch.cat([leaves[at].view(-1) for at in ats]) if is_copy else leaves[ats[0]]
        small = _posted(torch, source)
        if small is None:
            large.append((source.clone() if snapshot and not is_copy else source, ats))
        else:
            host, posted = small
            events.append(posted)
            _placed(leaves, ats, host)
    if not large:
        return events
    here = torch._C._cuda_getDevice()
    current = torch._C._cuda_getCurrentStream(device)
    side = _side(torch, device)
    side.follow(torch, current)
    torch._C._cuda_setStream(*side.ids)
    try:
        for source, ats in large:
            host = torch.empty_like(source, device="cpu", pin_memory=True)
            host.copy_(source, non_blocking=True)
            # The tensor may be dropped before the copy has read it.
            source.record_stream(side.stream)
            _placed(leaves, ats, host)
        done = torch.cuda.Event()
        done.record(side.stream)
    finally:
        torch._C._cuda_setStream(*current)
        if here != device:
            torch._C._cuda_setDevice(here)
    return [*events, done]


def _refuse_capture(torch: Any) -> None:
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "the current stream is being captured, and a download in a graph has no future; fetch after the "
            "replay"
        )


def _placed(leaves: list[Any], ats: list[int], host: Any) -> None:
    """Put the parts of a joint download into the places of their leaves."""
    if len(ats) == 1:
        leaves[ats[0]] = host
        return
    begin = 0
    for at in ats:
        like = leaves[at]
        leaves[at] = host[begin : begin + like.numel()].view(like.shape)
        begin += like.numel()


def _posted(torch: Any, tensor: Any) -> tuple[Any, Any] | None:
    """Copy a small tensor by a kernel on the current stream. Return the CPU tensor and the object to wait
    for, or None for a tensor that cannot be copied this way.

    A loop calls this in each step, so it makes only one call to PyTorch and one to the extension.
    """
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return None
    count = tensor.numel()
    if not 0 < count <= _SMALL:
        return None
    # A dispatch mode, such as a check, observes the operators of the other way instead. The memory of a
    # conjugate or negative view has values other than the tensor's.
    core = torch._C
    if (
        core._len_torch_dispatch_stack()
        or not tensor.is_contiguous()
        or tensor.is_quantized
        or tensor.is_nested
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        return None
    device = tensor.get_device()
    side = _side(torch, device)
    if side.outbox is None:
        return None
    try:
        source = tensor.data_ptr()
    except RuntimeError:
        # The tensor is wrapped by a transform of `torch.func`.
        return None
    _refuse_capture(torch)
    host, address = side.room(torch, tensor, count)
    stream = core._cuda_getCurrentRawStream(device)
    return host, side.outbox.post(source, address, count * host.element_size(), stream, host)


def _together(leaves: list[Any], places: list[int]) -> list[list[int]]:
    """Return the leaves in groups that are copied together: each group has small tensors of one type."""
    small: dict[Any, list[int]] = {}
    groups = []
    for at in places:
        leaf = leaves[at]
        if 0 < leaf.numel() <= _SMALL and leaf.is_contiguous():
            small.setdefault(leaf.dtype, []).append(at)
        else:
            groups.append([at])
    return [*groups, *small.values()]


class _Side:
    """The downloads of a device: small tensors by kernels on the caller's stream, others on a separate
    stream.
    """

    def __init__(self, torch: Any, device: int) -> None:
        self.kind = torch.cuda.Stream
        self.stream = torch.cuda.Stream(device)
        self.ids = (self.stream.stream_id, self.stream.device_index, self.stream.device_type)
        #: One event per thread, so that no other thread can record it again before its owner has waited for
        #: it.
        self._own = threading.local()
        #: None for a simulated GPU, which has no driver.
        self.outbox = (
            None if getattr(torch.cuda, "is_simulated", False) else _sidestream.Outbox(f"cuda:{device}")
        )
        #: For each type: unused scalars, as tensors and addresses.
        self._numbers: dict[Any, list[tuple[Any, int]]] = {}
        #: For each type: the page for small results, its address, and the number of its elements that are in
        #: use.
        self._pages: dict[Any, tuple[Any, int, int]] = {}
        self._lock = threading.Lock()

    def room(self, torch: Any, like: Any, count: int) -> tuple[Any, int]:
        """Return pinned memory for a small tensor, as a tensor and as an address. A page is freed when no
        result in it is referenced.
        """
        if count == 1 and not like.dim():
            numbers = self._numbers.setdefault(like.dtype, [])
            while True:
                try:
                    return numbers.pop()
                except IndexError:
                    numbers += self._more_numbers(torch, like.dtype)
        if count > _PAGE:
            host = torch.empty_like(like, device="cpu", pin_memory=True)
            return host, host.data_ptr()
        with self._lock:
            page, address, at = self._pages.get(like.dtype, (None, 0, _PAGE))
            if at + count > _PAGE:
                # A tensor that is created in inference mode could not be changed outside that mode.
                with torch.inference_mode(False):
                    page = torch.empty(_PAGE, dtype=like.dtype, device="cpu", pin_memory=True)
                address, at = page.data_ptr(), 0
            self._pages[like.dtype] = page, address, at + count
        return page.as_strided(like.shape, like.stride(), at), address + at * like.element_size()

    @staticmethod
    def _more_numbers(torch: Any, dtype: Any) -> list[tuple[Any, int]]:
        # Inference mode is off for the reason given in `room`; and a view that is created in `no_grad` could
        # not be changed in place outside `no_grad`.
        with torch.inference_mode(False), torch.enable_grad():
            page = torch.empty(_NUMBERS, dtype=dtype, device="cpu", pin_memory=True)
            address, size = page.data_ptr(), page.element_size()
            return [(page.as_strided((), (), at), address + at * size) for at in range(_NUMBERS)]

    def follow(self, torch: Any, current: tuple[int, int, int]) -> None:
        """Make the download stream wait for all work that another stream has been given so far."""
        own = self._own
        if getattr(own, "ids", None) != current:
            stream_id, device_index, device_type = current
            own.ids, own.event = current, torch.cuda.Event()
            own.stream = torch.cuda.Stream(
                stream_id=stream_id, device_index=device_index, device_type=device_type
            )
        own.event.record(own.stream)
        own.event.wait(self.stream)


def _side(torch: Any, device: int) -> _Side:
    side = _sides.get(device)
    # A check that simulates GPUs has its own class of streams.
    if side is None or side.kind is not torch.cuda.Stream:
        side = _sides[device] = _Side(torch, device)
    return side


class Fetched(Generic[Tree]):
    """Values that are being downloaded to the host. ``fetch`` makes these."""

    __slots__ = ("_events", "_values")

    def __init__(self, values: Tree, events: list[Any]) -> None:
        """Take the CPU tensors, and the events after which they are complete."""
        self._values = values
        self._events = events

    def done(self) -> bool:
        """Return whether the download is complete. Never blocks."""
        while self._events:
            if not self._events[-1].query():
                return False
            self._events.pop()
        return True

    def result(self) -> Tree:
        """Block until the download is complete, and return the values in pinned memory. Other Python threads
        run meanwhile. The host waits for this download and for the work before it, not for work that was
        submitted later.
        """
        for event in self._events:
            event.synchronize()
        self._events = []
        return self._values

    def __await__(self) -> Generator[Any, None, Tree]:
        """Let other tasks of ``asyncio`` run until the download is complete; a thread of the loop's executor
        blocks meanwhile.
        """
        if not self.done():
            import asyncio

            yield from asyncio.get_running_loop().run_in_executor(None, self.result).__await__()
        return self.result()

    def __repr__(self) -> str:
        return f"<Fetched: {'there' if self.done() else 'on its way'}>"


class RunningMean:
    """The mean of the losses of a loop that does not wait for them. Each ``update`` fetches the loss, and the
    host adds the values that have arrived in double precision. Losses may come from several devices and
    streams.

    Example::

        mean = sidestream.RunningMean()
        for batch in loader:
            mean.update(train(batch))
        print(mean.result())
    """

    def __init__(self) -> None:
        """Begin without losses."""
        self.reset()

    def reset(self) -> None:
        """Forget all losses. Never blocks."""
        #: The weighted sum and the total weight of the losses that have arrived.
        self._sum = 0.0
        self._weight = 0.0
        #: Pending losses, each with the weight of an element and the weight of all its elements.
        self._coming: deque[tuple[Fetched[Any], float, float]] = deque()

    def update(self, loss: Any, weight: float = 1.0) -> None:
        """Add a loss. Neither the host nor the device waits.

        Args:
            loss: A tensor or a number. Each element of a tensor counts, so losses that were not reduced
                (``reduction="none"``) give the mean over the samples; if there are several elements, their
                sum in double precision is fetched. A number or a CPU tensor counts at once.
            weight: Weight of each element, such as the number of samples that ``loss`` is the mean of; more
                than 0.

        Raises:
            TypeError: ``loss`` is not a real number or a tensor of real numbers.
            ValueError: ``weight`` is not above 0.
            RuntimeError: The current stream is being captured into a graph; call this after the replay.
        """
        weight = 1.0 if weight == 1.0 else positive("weight", weight, "for how much a loss counts")
        if getattr(loss, "is_cuda", False):
            if loss.dtype.is_complex:
                raise TypeError("loss is complex; give a tensor of real numbers")
            count = loss.numel()
            alone = loss if count == 1 else loss.detach().sum(dtype=sys.modules["torch"].float64)
            self._coming.append((fetch(alone), weight, weight * count))
            if len(self._coming) >= _MANY:
                self._look()
            return
        if hasattr(loss, "detach"):
            self._sum += weight * float(loss.detach().double().sum())
            self._weight += weight * loss.numel()
        elif isinstance(loss, (int, float)) or hasattr(loss, "__float__"):
            self._sum += weight * float(loss)
            self._weight += weight
        else:
            raise TypeError(f"loss is {type(loss).__name__}; give a tensor or a number")

    def value(self) -> float:
        """Return the mean of the losses that have arrived; nan if none has. Never blocks."""
        self._look()
        return self._sum / self._weight if self._weight else math.nan

    def result(self) -> float:
        """Block until all losses have arrived, and return their mean; nan without losses."""
        while self._coming:
            self._take()
        return self.value()

    def _look(self) -> None:
        while self._coming and self._coming[0][0].done():
            self._take()

    def _take(self) -> None:
        fetched, weight, worth = self._coming.popleft()
        self._sum += weight * float(fetched.result())
        self._weight += worth

    def __float__(self) -> float:
        return self.value()

    def __repr__(self) -> str:
        return f"<RunningMean: {self.value():.6g}>"
