"""``offload_activations``: keeps what autograd saves on the host while the device computes.

Why no copy races, and none uses memory that is in use:

- A copy to the host is ordered after an event of the stream that saved the tensor. Its source stays
  referenced until that stream waits for the copy; only then is the reference dropped, so that the memory is
  reused in stream order. With ``record_stream`` it would be kept until the host sees the copy complete.
- A copy back goes to memory that is allocated on the stream that is current then, and is ordered after an
  event of that stream, so that work that still uses the memory comes first. The consumer waits for the copy.
- A host buffer is reused by a copy that waits for the last one that used it.
"""

from __future__ import annotations

import gc
import math
import os
import threading
import weakref
from itertools import pairwise
from typing import Any

from sidestream._arguments import size_bytes
from sidestream._offload_activations_plan import Link, Outcome, Pager, Trace, choose, next_use
from sidestream._offload_activations_report import ActivationsReport, told
from sidestream._units import size as bytes_text

#: Smaller tensors stay: a copy of them costs more than its bytes.
_LEAST = 1 << 20
#: Bytes of each copy that measures the link, and how many there are.
_PROBE, _PROBES = 16 << 20, 6
#: How many orders of steps are remembered.
_PLANS = 8
#: How many hooks without a use are one step at most.
_LONGEST = 100_000
_INPLACE = (
    "one of the variables needed for gradient computation has been modified by an inplace operation after "
    "offload_activations saved it; clone it before"
)


class _Buffers:
    """Pinned host buffers of exactly the bytes that they hold."""

    def __init__(self) -> None:
        #: For each size, the free buffers, each with the event of the last copy that used it.
        self.free: dict[int, list[tuple[Any, Any]]] = {}
        self.is_closed, self.process = False, os.getpid()
        self.bytes = self.free_bytes = 0

    def take(self, size: int) -> tuple[Any, Any]:
        """Return a buffer, and the event that a copy into it has to wait for, or None."""
        if same := self.free.get(size):
            self.free_bytes -= size
            return same.pop()
        # Otherwise a program whose sizes change would pin more with each step.
        while self.free_bytes >= size:
            self._unpin(next(other for other, buffers in self.free.items() if buffers))
        from sidestream._offload_weights import Pinned

        buffer = Pinned(size).memory
        self.bytes += size
        return buffer, None

    def give(self, buffer: Any, last: Any) -> None:
        self.free.setdefault(buffer.numel(), []).append((buffer, last))
        self.free_bytes += buffer.numel()
        if self.is_closed:
            self.close()

    def _unpin(self, size: int) -> None:
        _, last = self.free[size].pop(0)
        self.free_bytes -= size
        self.bytes -= size
        if last is not None:
            last.synchronize()

    def close(self) -> None:
        """Unpin what is free now, and what is given back later: the collector may free a graph last."""
        self.is_closed = True
        if os.getpid() != self.process:
            # A forked child cannot use CUDA, and the memory is its parent's.
            return
        for size, buffers in self.free.items():
            while buffers:
                self._unpin(size)


class _Entry:
    """A storage that autograd saved, on the device or on the host. The graph owns it, through `_Saved`."""

    def __init__(self, owner: OffloadedActivations, tensor: Any, size: int, number: int) -> None:
        self.owner, self.size, self.number = owner, size, number
        self.movable = size >= _LEAST and not size % tensor.itemsize
        self.step, self.index = owner._step, len(owner._step.trace.sizes)
        self.stream: Any = owner._current()
        self.is_here = False
        self.forget()
        #: The tensors that were saved, with their versions, while the storage is where it was.
        self.tensors: list[tuple[Any, int]] | None = []
        #: The bytes on the device: the source of the copy to the host, or the target of that back.
        self.bytes: Any = None
        self.host: Any = None
        #: The event of the last copy between the two.
        self.copied: Any = None
        self.is_modified = False

    def forget(self) -> None:
        """Assume that what was saved last is needed first, which holds for most of autograd's graphs."""
        self.need = 1e15 - self.number

    def check(self) -> None:
        """Note if the program has modified the storage since it was saved."""
        if any(tensor._version != version for tensor, version in self.tensors or ()):
            self.is_modified = True

    def __del__(self) -> None:
        self.owner._died(self)


class _Saved:
    """What autograd keeps in the place of a tensor."""

    __slots__ = ("at", "dtype", "entry", "offset", "shape", "strides")

    def __init__(self, entry: _Entry, tensor: Any) -> None:
        self.entry, self.at = entry, len(entry.tensors or ())
        self.shape, self.strides, self.dtype = tensor.shape, tensor.stride(), tensor.dtype
        self.offset = tensor.storage_offset()


class _Plan:
    """An order of hooks that has occurred, and what moves in it once it was measured."""

    def __init__(self, keys: list[Any], trace: Trace) -> None:
        self.keys, self.trace, self.uses = keys, trace, trace.uses()
        self.outcome: Outcome | None = None
        self.follower: _Plan | None = None
        #: The events at the begin and the end of the last step that followed it.
        self.marks: tuple[Any, Any] | None = None


class _Step:
    """What happened since the first forward pass of a step."""

    def __init__(self, plan: _Plan | None) -> None:
        self.keys: list[Any] = []
        self.trace = Trace()
        #: The plan while the step follows it, and the events before and after each hook if it is measured.
        self.plan = plan
        self.marks: list[tuple[Any, Any]] | None = [] if plan is not None else None
        self.is_whole = plan is not None and plan.outcome is None
        self.has_failed = self.has_uses = False
        #: The storages on the device, by their address.
        self.entries: weakref.WeakValueDictionary[int, _Entry] = weakref.WeakValueDictionary()


class OffloadedActivations:
    """The context that ``offload_activations`` returns, for each forward pass. ``print`` shows its report."""

    def __init__(self, budget: int | None) -> None:
        self.budget = budget
        self._lock = threading.RLock()
        self._pager = Pager(math.inf if budget is None else budget, is_hard=budget is not None)
        self._pinned = _Buffers()
        self._device: Any = None
        self._out: Any = None
        self._back: Any = None
        self._link: Link | None = None
        self._plans: list[_Plan] = []
        self._last: _Plan | None = None
        self._step = _Step(None)
        self._numbers = self._nodes = self._scans = 0
        #: Tensors that existed before a step, by the address of their storage: moving them frees nothing.
        self._held: dict[int, weakref.ref[Any]] = {}
        self._node: Any = None
        self._in_use: set[int] = set()
        self._hooks: list[Any] = []
        weakref.finalize(self, self._pinned.close)

    # The forward pass.

    def __enter__(self) -> OffloadedActivations:
        import torch

        with self._lock:
            # Two forward passes before one backward pass are one step.
            step = self._step
            is_pending = (self._pager.here or self._pager.away) and len(step.keys) < _LONGEST
            if step.has_failed or step.has_uses or not is_pending:
                self._begin()
            hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
            hooks.__enter__()
            self._hooks.append(hooks)
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        self._step.has_failed |= kind is not None
        self._hooks.pop().__exit__(kind, *error)

    def _begin(self) -> None:
        """Learn from the last step, and begin the next."""
        self._learn(self._step)
        follower = self._last.follower if self._last is not None else None
        plan = follower or self._last
        self._step = _Step(plan)
        # What an earlier step left may never be needed.
        for entry in (*self._pager.here.values(), *self._pager.away.values()):
            entry.need = math.inf
        # The scan takes about 60 ms, so a program whose steps all differ does it ever more rarely.
        if plan is None or plan.outcome is None:
            self._scans += 1
            if self._scans & (self._scans - 1) == 0:
                self._held = _existing()
        self._bound()

    def _bound(self) -> None:
        """Set the bound to that of the plan that the step follows."""
        outcome = self._step.plan.outcome if self._step.plan is not None else None
        if self.budget is None:
            self._pager.bound = math.inf if outcome is None else outcome.bound

    def _learn(self, step: _Step) -> None:
        if step.has_failed or not step.has_uses:
            return
        plan = next((one for one in self._plans if one.keys == step.keys), None)
        if plan is None:
            plan = _Plan(step.keys, step.trace)
            self._plans = [*self._plans[1 - _PLANS :], plan]
        elif step.plan is plan and step.marks and step.marks[-1][1] is not None:
            marks = step.marks
            if plan.outcome is not None:
                plan.marks = marks[0][0], marks[-1][1]
            elif len(marks) == len(step.keys):
                marks[-1][1].synchronize()
                gaps = (before[1].elapsed_time(after[0]) / 1e3 for before, after in pairwise(marks))
                step.trace.gaps = [0.0, *(max(0.0, gap) for gap in gaps)]
                if self._link is None:
                    self._link = _measured(self._device, self._out, self._back)
                plan.trace = step.trace
                plan.outcome = choose(step.trace, self._link, self.budget)
        if self._last is not None:
            self._last.follower = plan
        self._last = plan

    # The hooks. Backward calls them on a thread of its own.

    def _pack(self, tensor: Any) -> Any:
        import torch

        # A result refers to its node, which would refer to it: without backward, nothing would free them. A
        # detached tensor shares the version.
        if tensor.grad_fn is not None:
            tensor = tensor.detach()
        if type(tensor) is not torch.Tensor or not tensor.is_cuda:
            return tensor, tensor._version
        plain = tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg()
        if not plain or torch.cuda.is_current_stream_capturing():
            return tensor, tensor._version
        storage = tensor.untyped_storage()
        if self._device is None:
            self._device = tensor.device
            self._out, self._back = (torch.cuda.Stream(tensor.device) for _ in range(2))
        if tensor.device != self._device or not storage.nbytes():
            return tensor, tensor._version
        with self._lock:
            held = self._held.get(storage._cdata)
            is_held = held is not None and held() is not None
            return self._save(tensor, storage, is_held)

    def _save(self, tensor: Any, storage: Any, is_held: bool) -> Any:
        step, key = self._step, (tuple(tensor.shape), tensor.dtype)
        at, plan = len(step.keys), step.plan
        if at == 0 and plan is not None and plan.keys[0][1:] != key:
            # Programs with several models, or batches of several shapes, have several plans.
            self._step = step = _Step(next((one for one in self._plans if one.keys[0][1:] == key), None))
            plan = step.plan
            self._bound()
        # A batch is another tensor in each step, so the plan says that it is held.
        if plan is not None and plan.outcome is not None and at < len(plan.keys):
            is_held |= plan.keys[at] == ("held", *key)
        if is_held:
            self._arrive(("held", *key), -1, False)
            self._leave()
            return tensor, tensor._version
        entry = step.entries.get(storage._cdata)
        if entry is not None and (
            entry.tensors is None or any(version != tensor._version for _, version in entry.tensors)
        ):
            entry = None
        is_new = entry is None
        if entry is None:
            self._numbers += 1
            entry = _Entry(self, tensor, storage.nbytes(), self._numbers)
            step.trace.sizes.append(entry.size)
            step.trace.movable.append(entry.movable)
            step.entries[storage._cdata] = entry
        self._arrive((entry.index, *key), entry.index, False)
        saved = _Saved(entry, tensor)
        if entry.tensors is not None:
            entry.tensors.append((tensor, tensor._version))
        if is_new:
            plan = step.plan
            if plan is not None:
                entry.need = next_use(plan.uses[entry.index], at)
            self._pager.admit(entry, (), self._drop)
            if plan is not None and plan.outcome is not None and entry.index in plan.outcome.moved:
                self._send(entry)
        self._leave()
        return saved

    def _unpack(self, saved: Any) -> Any:
        import torch

        if not isinstance(saved, _Saved):
            tensor, version = saved
            if tensor._version != version:
                raise RuntimeError(_INPLACE)
            return tensor
        entry = saved.entry
        with self._lock:
            current = torch._C._current_autograd_node()
            # The number and not the node, which would keep the graph.
            node = None if current is None else current._sequence_nr()
            if node != self._node or node is None:
                self._node, self._in_use = node, set()
                self._nodes += 1
            self._in_use.add(entry.number)
            is_mine = entry.step is self._step
            at = len(self._step.keys)
            self._step.has_uses = True
            self._arrive(("use", entry.index if is_mine else -1), entry.index if is_mine else -1, True)
            tensor = self._use(saved, entry)
            plan = self._step.plan
            entry.need = next_use(plan.uses[entry.index], at) if plan is not None and is_mine else math.inf
            while back := self._pager.next_back():
                self._fetch(back, ())
            self._leave()
            return tensor

    def _use(self, saved: _Saved, entry: _Entry) -> Any:
        """Return a tensor that was saved, on the stream that is current."""
        entry.check()
        if entry.is_modified:
            raise RuntimeError(_INPLACE)
        if entry.tensors is not None:
            return entry.tensors[saved.at][0]
        if entry.bytes is None:
            self._fetch(entry, self._in_use)
        current = self._current()
        current.wait_event(entry.copied)
        if current != entry.stream:
            entry.bytes.record_stream(current)
        return entry.bytes.view(saved.dtype).as_strided(saved.shape, saved.strides, saved.offset)

    def _arrive(self, key: Any, number: int, is_use: bool) -> None:
        """Note a hook, and leave the plan if it is not the hook that the plan has here."""
        step = self._step
        at, plan = len(step.keys), step.plan
        if plan is not None and (at >= len(plan.keys) or plan.keys[at] != key):
            step.plan = step.marks = None
            self._bound()
            for entry in step.entries.values():
                entry.forget()
        step.keys.append(key)
        step.trace.at.append((number, is_use, self._nodes))
        # Either every hook is measured, or the first and the last.
        if step.marks is not None and plan is not None and (step.is_whole or at in (0, len(plan.keys) - 1)):
            step.marks.append((self._mark(), None))

    def _leave(self) -> None:
        step = self._step
        if step.marks and step.marks[-1][1] is None:
            step.marks[-1] = (step.marks[-1][0], self._mark())

    def _mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(self._current())
        return event

    def _current(self) -> Any:
        import torch

        return torch.cuda.current_stream(self._device)

    # Moving.

    def _send(self, entry: _Entry) -> None:
        """Begin to copy an entry to the host."""
        import torch

        assert entry.tensors is not None
        tensor = entry.tensors[0][0]
        # This does nothing if the tensor was allocated on this stream.
        tensor.record_stream(entry.stream)
        entry.host, last = self._pinned.take(entry.size)
        entry.bytes = torch.empty(0, dtype=torch.uint8, device=self._device)
        entry.bytes.set_(tensor.untyped_storage(), 0, (entry.size,), (1,))
        self._out.wait_event(entry.stream.record_event())
        if last is not None:
            self._out.wait_event(last)
        with torch.cuda.stream(self._out):
            entry.host.copy_(entry.bytes, non_blocking=True)
        entry.copied = self._out.record_event()

    def _drop(self, entry: _Entry) -> None:
        """Free an entry's memory on the device, in the order of its stream."""
        if entry.host is None:
            self._send(entry)
        entry.check()
        entry.stream.wait_event(entry.copied)
        entry.tensors = entry.bytes = None

    def _fetch(self, entry: _Entry, in_use: Any) -> None:
        """Begin to copy an entry back to the device."""
        import torch

        self._pager.admit(entry, in_use, self._drop)
        entry.stream = self._current()
        entry.bytes = torch.empty(entry.size, dtype=torch.uint8, device=self._device)
        self._back.wait_event(entry.stream.record_event())
        self._back.wait_event(entry.copied)
        with torch.cuda.stream(self._back):
            entry.bytes.copy_(entry.host, non_blocking=True)
        entry.copied = self._back.record_event()

    def _died(self, entry: _Entry) -> None:
        """Free what an entry has, once no graph needs it."""
        with self._lock:
            self._pager.gone(entry)
            if entry.step is self._step:
                entry.step.trace.died[entry.index] = len(entry.step.keys)
            if entry.host is not None:
                if entry.bytes is not None:
                    entry.stream.wait_event(entry.copied)
                self._pinned.give(entry.host, entry.copied)

    # What it tells.

    def report(self) -> ActivationsReport:
        """Return what stays and what moves in the step that was planned last, how long it takes, and why."""
        plan = next((one for one in (self._last, *reversed(self._plans)) if one and one.outcome), None)
        if plan is None or plan.outcome is None or self._link is None:
            return ActivationsReport(self.budget)
        measured = None
        if plan.marks is not None:
            plan.marks[1].synchronize()
            measured = plan.marks[0].elapsed_time(plan.marks[1])
        return told(self.budget, plan.trace, plan.outcome, self._link, self._pinned.bytes, measured)

    def __str__(self) -> str:
        return str(self.report())


def _existing() -> dict[int, weakref.ref[Any]]:
    """Return the tensors on devices that exist now, such as parameters and batches, by their storage."""
    import torch

    found = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and type(thing) in (torch.Tensor, torch.nn.Parameter):
            if thing.is_cuda and thing.layout is torch.strided:
                found[thing.untyped_storage()._cdata] = weakref.ref(thing)
    return found


def _measured(device: Any, out: Any, back: Any) -> Link:
    """Measure the link to a device: each direction alone, and both at once."""
    import torch

    pinned, streams = _Buffers(), (out, back)
    hosts = [pinned.take(_PROBE)[0] for _ in streams]
    on_device = [torch.empty(_PROBE, dtype=torch.uint8, device=device) for _ in streams]
    ways = [(hosts[0], on_device[0]), (on_device[1], hosts[1])]

    def rates(used: tuple[int, ...]) -> list[float]:
        torch.cuda.synchronize(device)
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in used]
        for at in range(_PROBES + 1):
            for which, mark in zip(used, marks, strict=True):
                with torch.cuda.stream(streams[which]):
                    if at in (1, _PROBES):
                        mark[at > 1].record(streams[which])
                    if at < _PROBES:
                        ways[which][0].copy_(ways[which][1], non_blocking=True)
        torch.cuda.synchronize(device)
        return [(_PROBES - 1) * _PROBE * 1e3 / mark[0].elapsed_time(mark[1]) for mark in marks]

    rates((0, 1))
    link = Link(*rates((0,)), *rates((1,)), *rates((0, 1)))
    for host in hosts:
        pinned.give(host, None)
    pinned.close()
    return link


def offload_activations(budget: int | str | None = None) -> OffloadedActivations:
    """Return a context manager for the forward pass, which moves saved activations to the host and back.

    Autograd keeps tensors of the forward pass on the device until backward needs them. Inside of the context,
    those of 1 MiB or more may be copied to pinned host memory while the device computes, and back before they
    are needed. Losses and gradients are the same, bit for bit. The first step finds the order, the second
    measures it; from the third on, a plan decides what moves when. A step with another order, such as for a
    batch of another shape, is correct, and is measured anew.

    Use one object for all steps of a loop::

        activations = sidestream.offload_activations("2 GiB")
        for batch in batches:
            with activations:
                loss = model(batch)
            loss.backward()

    Ordering: the host is never blocked, but for the end of the step that is measured. The stream of backward
    waits for each copy that it needs.

    Args:
        budget: The most bytes of device memory that saved activations may keep, such as ``"2 GiB"``: a bound
            that holds in every step, also where it makes the step longer. By default, just what costs no time
            moves. Tensors that exist before the forward pass, such as parameters, do not count and stay.

    Raises:
        MemoryError: In a step: the activations that one operation needs exceed the budget, or the host memory
            cannot be pinned.
        RuntimeError: In backward: the program has modified a saved tensor in place.
        TypeError: The budget is neither a number of bytes nor a text.
        ValueError: The budget is not above 0, or its unit is unknown.
    """
    return OffloadedActivations(None if budget is None else size_bytes("budget", budget))
