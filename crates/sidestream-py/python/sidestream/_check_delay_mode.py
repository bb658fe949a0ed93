"""The mode that delays one call of a run, and keeps what calls write. It is imported once PyTorch is."""

from __future__ import annotations

import collections
import contextlib
import functools
import linecache
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sidestream import _check_fix, _check_plan
from sidestream._check_delays import Call, Delay, How, Run
from sidestream._check_hooks import graphs_heard, host_reads_heard, on_threads
from sidestream._check_triton import kernels_heard

#: Maximum number of delays in a run: an access may be in a loop of many steps.
_MOST_DELAYS = 50
#: Maximum bytes of results that are kept in full; of the others only a sum is kept.
_MOST_KEPT = 2 << 30
#: Maximum bytes of a tensor that is hidden: it takes three times as much meanwhile.
_MOST_HIDDEN = 1 << 30
#: What a hidden float holds, as the bytes of an integer: a number far from those of programs in each type.
_FIRST, _SECOND = 0x4B, 0x4C


class Mode(TorchDispatchMode):  # type: ignore[misc]
    """Delays one call, and keeps what calls write."""

    def __init__(self, how: How, watched: set[Call], delay: Delay) -> None:
        super().__init__()
        self.how, self.watched, self.length = how, watched, delay
        self.run = Run()
        self.process = os.getpid()
        #: Whether the program has ended.
        self.is_over = False
        self.threads: dict[Call, int] = {}
        self.counts: dict[Any, int] = {}
        self.late: list[tuple[Any, Any]] = []
        self.kept = 0
        #: What the first call wrote to the host's memory last.
        self.host_written: list[Any] = []
        #: The last calls of the first access: the memory that each touched, as address ranges; the event
        #: behind it; its stream.
        self.firsts: collections.deque[First] = collections.deque(maxlen=64)
        self.pairs: list[tuple[bool, Any, Any]] = []
        self.changed: list[tuple[Any, Any]] = []
        self.last: tuple[float, Call] | None = None
        #: For each graph the tensors that its operators wrote, as far as they are alive.
        self.captured: dict[int, list[weakref.ref[Any]]] = {}
        self.capturing: list[weakref.ref[Any]] | None = None

    def hear(self, stack: contextlib.ExitStack) -> None:
        """Hear calls that are not operators, by the hooks of the check."""
        recorder: Any = self
        graphs_heard(recorder, stack)
        host_reads_heard(recorder, stack)
        kernels_heard(recorder, stack)
        on_threads(recorder, stack)

    # ---------------------------------------------------------------- what is heard

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if os.getpid() != self.process or self.is_over:
            # A worker of a DataLoader, which must not touch the GPU; or a thread that outlives its run.
            return func(*args, **kwargs)
        if _check_plan.is_composite(func):
            return _check_plan.decomposed(func, self, args, kwargs)
        op, name, written = _planned(func)
        call = self.named(name, _is_collective(func))
        given = _tensors([args, kwargs]) if call in (self.how.first, self.how.second) else []
        goes_apart = _is_collective(func) and _is_asynchronous(func, args, kwargs)
        if call == self.how.second:
            self.begins(call, given, any(one.is_cuda for one in given))
        if call == self.how.first and not self.how.by_line:
            with self.apart_from_collective() if goes_apart else contextlib.nullcontext():
                self.delay()
                out = op(*args, **kwargs)
        else:
            out = op(*args, **kwargs)
        # The results of a collective may be read once its work was waited for.
        self.ends(call, written(args, kwargs, out), given, _writes_all(func), _is_collective(func))
        return out

    def named(self, name: str, is_collective: bool = False) -> Call:
        """Return the call of this name, as the report has it."""
        place = place_of_call()
        if (name, place) in self.watched:
            return name, place
        for one in self.watched:
            # On a thread of the autograd engine there is no line, and the report has the one that called
            # `backward`. In a compiled function it has the line of its definition. Of a collective it has the
            # method of the process group.
            is_vague = not place or one[1].startswith(("def ", "async def ", "@"))
            if (one[0] == name and is_vague) or (is_collective and one[1] == place):
                return one
        return name, place

    def launching(self, name: str) -> None:
        """A kernel that is not an operator is about to be launched."""
        if self.named(name) == self.how.first and not self.how.by_line:
            self.delay()

    def launched(self, name: str, given: Any, where: Any = None, stored: Any = ()) -> None:
        """A kernel was launched that is not an operator."""
        call = self.named(name)
        tensors = [one for one, *_ in given if hasattr(one, "data_ptr")]
        with torch._C._DisableTorchDispatch():
            self.begins(call, tensors)
            written = [one for one, _, writes, _ in given if writes and hasattr(one, "data_ptr")]
            self.ends(call, written, tensors)

    def replay(self, graph: int) -> None:
        call = "CUDAGraph.replay", place_of_call()
        alive = [one for each in self.captured.get(graph, ()) if (one := each()) is not None]
        with torch._C._DisableTorchDispatch():
            self.begins(call, alive)
            self.ends(call, alive, alive, True)

    def capture_begin(self, graph: int, _: bool) -> None:
        self.capturing = self.captured[graph] = []

    def capture_end(self) -> None:
        self.capturing = None

    def host_uses(self, tensor: Any, writes: bool, name: str) -> None:
        self.host_reads((name, place_of_call()))

    def host_used(self, *_: Any) -> None: ...

    def print_begins(self, tensor: Any) -> None:
        self.host_reads(("print", place_of_call()))

    def print_ends(self) -> None: ...

    # ---------------------------------------------------------------- what is done

    def delay(self) -> None:
        if self.run.delays >= _MOST_DELAYS or not self.how.delays:
            return
        self.run.delays += 1
        if self.how.delays_host:
            time.sleep(self.length.ms / 1000)
        else:
            torch.cuda._sleep(self.length.cycles)

    @contextlib.contextmanager
    def apart_from_collective(self) -> Iterator[None]:
        """A collective that the program waits for later runs on a stream of its own, after the current one.
        It is called from another stream with the delay, so that the current one goes on.
        """
        self.run.is_collective = True
        if self.how.delays_host:
            yield
            return
        current = torch.cuda.current_stream()
        apart = torch.cuda.Stream()
        apart.wait_stream(current)
        with torch.cuda.stream(apart):
            yield

    def begins(self, call: Call, given: Any, on_device: bool = True) -> None:
        if call != self.how.second:
            return
        self.run.second_on_device |= on_device
        if self.how.both and not self.how.by_line and on_device:
            self.delay()
        if self.firsts and not torch.cuda.is_current_stream_capturing() and not self.is_over:
            first = self.raced_by(given) or self.firsts[-1]
            was_complete, before = first.event.query(), None
            is_near = first.stream.device_index == torch.cuda.current_device()
            if on_device and is_near:
                before = torch.cuda.Event(enable_timing=True)
                before.record()
                self.run.same_stream |= first.stream == torch.cuda.current_stream()
            # Times of two devices cannot be compared.
            if is_near or not on_device:
                self.pairs.append((was_complete, first.event, before))
        if not on_device:
            self.host_reads(call)

    def raced_by(self, tensors: Any) -> First | None:
        """Return the last call of the first access that touched memory of these tensors."""
        spans = [_span(one) for one in tensors if _is_plain(one)]
        return next(
            (
                first
                for first in reversed(self.firsts)
                if any(a < d and c < b for a, b in spans for c, d in first.spans)
            ),
            None,
        )

    def host_reads(self, call: Call) -> None:
        """Keep what the host finds in the memory that the first call writes."""
        if call == self.how.second and self.host_written:
            count = self.count((*call, "host"))
            with torch._C._DisableTorchDispatch():
                for at, tensor in enumerate(self.host_written):
                    self.keep((*call, count, at, "host"), tensor)

    def ends(
        self, call: Call, tensors: Any, given: Any, in_full: bool = False, is_pending: bool = False
    ) -> None:
        if self.is_over:
            return
        if self.threads.setdefault(call, threading.get_ident()) != threading.get_ident():
            self.run.mixed.add(call)
        now = time.perf_counter()
        if self.last is not None and self.run.delays:
            gap = 1000 * (now - self.last[0]), self.last[1], call
            self.run.gap = max(self.run.gap or gap, gap)
        plain = [one for one in tensors if _is_plain(one)]
        if torch.cuda.is_current_stream_capturing():
            if self.capturing is not None and in_full:
                self.capturing += [weakref.ref(one) for one in plain if one.is_cuda]
            return
        count, is_watched = self.count(call), call in self.watched
        if call == self.how.first:
            self.host_written = [one for one in plain if not one.is_cuda]
        if call == self.how.second and any(one.is_cuda for one in plain):
            # What makes a tensor of a device of nothing, such as `torch.zeros`: the host does not read.
            self.run.second_on_device = True
            self.run.results = {k: v for k, v in self.run.results.items() if k[-1] != "host"}
        first = self.raced_by(plain) if call == self.how.second else None
        for at, tensor in enumerate(plain):
            if is_pending:
                if self.how.keeps:
                    self.late.append(((*call, count, at, "end"), tensor))
                continue
            self.keep((*call, count, at), tensor, is_watched)
            if self.how.hides and in_full and (call == self.how.first or first is not None):
                self.hide((*call, count, at), tensor, first)
        if call == self.how.first:
            spans = [_span(one) for one in [*given, *plain] if _is_plain(one)]
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.firsts.append(First(spans, event, torch.cuda.current_stream()))
        if self.how.waits:
            torch.cuda.synchronize()
            for device in {one.device for one in plain if one.is_cuda}:
                torch.cuda.synchronize(device)
        self.last = time.perf_counter(), call

    def count(self, call: Any) -> int:
        count = self.counts[call] = self.counts.get(call, 0) + 1
        return count

    def keep(self, key: Any, tensor: Any, in_full: bool = True) -> None:
        if not tensor.is_cuda:
            # A copy into pinned memory may be in flight: the host must not read it now, unless it is
            # about to do that anyway.
            if key[-1] != "host" and tensor.is_pinned():
                if self.how.keeps:
                    self.late.append((key, tensor))
                return
            in_full = True
        if tensor.numel() == 0:
            return
        with _apart():
            self.kept += tensor.nbytes if in_full else 0
            if in_full and self.kept <= _MOST_KEPT:
                self.run.results[key] = tensor.detach().clone()
            else:
                key = (*key, "sum")
                self.run.results[key] = _integers(tensor).sum(dtype=torch.int64)
        if in_full and self.how.keeps and tensor.is_cuda and key[-1] != "sum":
            self.late.append(((*key, "end"), tensor))

    def hide(self, key: Any, tensor: Any, first: First | None) -> None:
        # Elements that share memory cannot be overwritten one by one.
        if not tensor.is_cuda or tensor.numel() == 0 or torch._debug_has_internal_overlap(tensor):
            return
        if len(self.changed) >= _MOST_DELAYS or tensor.nbytes > _MOST_HIDDEN:
            return
        values = _integers(tensor)
        with _apart(), torch.cuda.device(tensor.device):
            saved = values.clone()
            if tensor.is_floating_point() or tensor.is_complex():
                byte = _FIRST if first is None else _SECOND
                hidden = torch.full_like(
                    saved, int.from_bytes(bytes([byte]) * saved.element_size(), "little")
                )
            else:
                # An integer may be an index, so it stays small.
                hidden = (saved == 0).to(saved.dtype)
            values.copy_(hidden)
            if first is None:
                torch.cuda._sleep(self.length.cycles)
            else:
                torch.cuda.current_stream().wait_event(first.event)
            self.changed.append((key, (values != hidden).sum()))
            values.copy_(saved)

    def end(self, returned: Any) -> None:
        for key, tensor in self.late:
            # The memory of a sharded tensor may be gone by now.
            if tensor.untyped_storage().nbytes():
                self.run.results[key] = tensor.detach().clone()
        for key, count in self.changed:
            key = (*key, "hidden")
            self.run.results[key] = count
        self.run.results.update(_returned(returned))
        self.run.counts = {call: count for call, count in self.counts.items() if len(call) == 2}
        self.run.overlaps = [
            (complete, not complete if other is None else one.elapsed_time(other) < 0)
            for complete, one, other in self.pairs
        ]
        # These events die here, not whenever Python collects cycles: PyTorch's callbacks fail there in frames
        # without builtins.
        for left in (self.firsts, self.pairs, self.late, self.changed, self.host_written):
            left.clear()


@dataclass(frozen=True)
class First:
    """A call of the first access: address ranges, the event behind it, and its stream."""

    spans: list[tuple[int, int]]
    event: Any
    stream: Any


def _span(tensor: Any) -> tuple[int, int]:
    """Return the first byte of a tensor, and one past the last."""
    if tensor.numel() == 0:
        return 0, 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def _is_collective(func: Any) -> bool:
    """Return whether the results of an operator are complete only once they, or its work, were waited for."""
    space = getattr(func, "namespace", "")
    return space == "c10d" or (space.endswith("c10d_functional") and "wait" not in func._schema.name)


def _is_asynchronous(func: Any, args: Any, kwargs: Any) -> bool:
    names = [argument.name for argument in func._schema.arguments]
    if "async_op" not in names:
        return True
    at = names.index("async_op")
    return bool(args[at] if at < len(args) else kwargs.get("async_op", True))


def _writes_all(func: Any) -> bool:
    """Return whether an operator writes each element of what it writes."""
    if not hasattr(func, "_schema") or func.namespace not in ("aten", "prims"):
        return False
    name = func._schema.name.removeprefix("aten::")
    if name.startswith(("masked", "index", "scatter", "put", "_index")):
        return False
    is_mutable = func._schema.is_mutable
    return not is_mutable or torch.Tag.pointwise in func.tags or name in ("copy_", "fill_", "zero_")


#: For each operator: the function to call, the name in reports, and what of a call is written.
_known: dict[Any, tuple[Any, str, Callable[[Any, Any, Any], list[Any]]]] = {}


def _planned(func: Any) -> tuple[Any, str, Callable[[Any, Any, Any], list[Any]]]:
    if func not in _known:
        op, shown, _, arguments, results = _check_plan.plan(func)
        schema = getattr(func, "_schema", None)
        # Batch norm writes its statistics only in training.
        is_norm = shown.endswith("batch_norm")
        arguments = [one for one in arguments if one[2] and not is_norm]
        is_empty = schema is not None and schema.name in _check_plan._EMPTY

        def written(args: Any, kwargs: Any, out: Any) -> list[Any]:
            given = [args[at] if at < len(args) else kwargs.get(name) for at, name, _, _ in arguments]
            outs = out if isinstance(out, (tuple, list)) else (out,)
            made = [one for one, is_new in zip(outs, results, strict=False) if is_new and not is_empty]
            return _tensors([given, made])

        _known[func] = op, shown, written
    return _known[func]


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and tensor.device.type in ("cuda", "cpu")
    )


def _integers(tensor: Any) -> Any:
    """Return a view of a tensor's elements as integers."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor)
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(kind)


@contextlib.contextmanager
def traced(mode: Any) -> Iterator[None]:
    """Act where the program reaches the line of a call, on any of its threads: delay the first, and keep what
    the host finds at the second.
    """
    if mode is None or not mode.how.by_line:
        yield
        return
    first, second = mode.how.first[1], mode.how.second[1] if mode.how.second else None

    def trace(frame: Any, event: str, _: Any) -> Any:
        if mode.is_over:
            return None
        if event == "line":
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            if line and line == second and mode.host_written:
                mode.host_reads(mode.how.second)
            if line and (line == first or (mode.how.both and line == second)):
                mode.delay()
        elif _check_fix.is_library(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(
            _hidden()
        ):
            return None
        return trace

    # A debugger or a measurement of coverage traces too.
    before, before_threads = sys.gettrace(), threading.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(before_threads)


def place_of_call() -> str:
    """Return the innermost line of the program, as text; empty on a thread of the autograd engine."""
    frame = _check_fix.own_frame(sys._getframe(2), _hidden())
    return "" if frame is None else linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


@functools.cache
def _hidden() -> tuple[str, ...]:
    return tuple(_check_fix.hidden())


class _Raw:
    """Bytes of the device, in the form in which PyTorch takes them over without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def wait_for_devices() -> None:
    """Wait for all devices whose memory PyTorch uses."""
    torch.cuda.synchronize()
    if torch.cuda.device_count() > 1:
        for device in {segment["device"] for segment in torch.cuda.memory_snapshot()}:
            torch.cuda.synchronize(device)


def overwrite_free_memory(byte: int) -> None:
    """Overwrite the free GPU memory of PyTorch's cache, and release its free pinned memory. What an earlier
    run left there would be the right bytes for an access that comes too early.
    """
    wait_for_devices()
    if hasattr(torch._C, "_host_emptyCache"):
        torch._C._host_emptyCache()
    for segment in torch.cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                raw = _Raw(block.get("address", address), block["size"])
                torch.as_tensor(raw, device=f"cuda:{segment['device']}").fill_(byte)
            address += block["size"]
    wait_for_devices()


def _tensors(value: Any) -> list[Any]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _returned(value: Any) -> dict[Any, Any]:
    """Return copies of the tensors, arrays and numbers in what a function returned."""
    numpy = sys.modules.get("numpy")
    found: dict[Any, Any] = {}
    for at, leaf in enumerate(_pytree.tree_leaves(value)):
        if isinstance(leaf, (bool, int, float)) or (
            numpy and isinstance(leaf, (numpy.ndarray, numpy.generic))
        ):
            with contextlib.suppress(TypeError, ValueError, RuntimeError, OverflowError):
                leaf = torch.as_tensor(leaf)
        if isinstance(leaf, torch.Tensor) and _is_plain(leaf):
            found["result", "", 1, at] = leaf.detach().clone()
    return found


#: Memory for kept results: taken from the program's own, it would change which memory is used again.
_pool: Any = None


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    global _pool
    if not hasattr(torch.cuda, "use_mem_pool") or torch.cuda.is_current_stream_capturing():
        yield
        return
    if _pool is None:
        _pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(_pool):
        yield
