"""Puts what a simulated GPU is told on a virtual timeline: operators, copies, events and waits, with the
times that they take on the GPU and on its host (``costs.py``).
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.cuda import _gpu_trace
from torch.optim import optimizer as _optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from sidestream import _check_plan, _sidestream
from sidestream._check_changes import put
from sidestream._simulated.compiled import Call, Fusion, Kernel
from sidestream._simulated.costs import LIKELY, SURE, Costs, known
from sidestream._simulated.streams import Streams

#: By which factors a time may be lower than the tables say, is likely to be, and may be higher. A program's
#: calls take longer than calls that are measured alone, by the ten loops of ``benches/own_loops_known.py``.
DEVICE, HOST = (0.85, 1.0, 1.2), (0.95, 1.15, 1.5)

#: Maximum number of nodes that compute nothing, between two that do.
_MOST_NODES = 20
#: Nodes that accumulate a leaf's gradient have the largest number, so that they run at once.
_ACCUMULATES = 1 << 62
#: The host's time of ``CUDAGraph.replay``, besides the driver's call.
REPLAY_NS = 10e3

Triple = tuple[float, float, float]


class _Here(threading.local):
    """What a thread is doing."""

    #: Its lane of the timeline.
    lane: int | None = None
    #: Whether its operators are those of a call whose time is known as a whole, and whether the host's time
    #: is.
    muted, host_is_muted = False, False
    #: The number of the node of a backward pass that its last operator belongs to; 0 if there is none.
    node = 0
    #: The graph that is being launched.
    graph: int | None = None
    #: The call of a compiled function, and the kernel that its operators are joined to (``compiled.py``).
    call: Call | None = None
    fused: Kernel | None = None


class Timing:
    """The timeline of a simulation."""

    def __init__(self, streams: Streams, device: str, costs: Costs, has_values: bool) -> None:
        self.timeline = _sidestream.Timeline(device, False, costs.pageable_gb_s)
        self.costs, self.streams, self.here = costs, streams, _Here()
        #: Whether tensors have values, and not only shapes.
        self.has_values = has_values
        self._lanes: dict[tuple[int, int], int] = {}
        #: The latest record of each event.
        self._markers: dict[int, int] = {}
        #: The device's time of each operator whose time is not known but by its bytes, and that of all.
        self.unknown: dict[str, float] = defaultdict(float)
        self.device_ns = 0.0
        self._costs_of: dict[Any, tuple[float, float]] = {}
        #: The calls that are one kernel on a GPU, by the number of their first node: up to which number, the
        #: name and the times of their backward, and whether a backward pass has launched it.
        self._whole: list[tuple[int, int, Any]] = []
        self.fusion = Fusion(self)
        self._told: dict[Any, Callable[[int, tuple[int, ...]], None]] = {
            _gpu_trace.EventRecordCallbacks: self._recorded,
            _gpu_trace.EventWaitCallbacks: self._waits,
            _gpu_trace.StreamSynchronizationCallbacks: self._stream_waited_for,
            _gpu_trace.DeviceSynchronizationCallbacks: self._device_waited_for,
            _gpu_trace.EventSynchronizationCallbacks: self._event_waited_for,
        }

    # ------------------------------------------------------------ lanes

    def thread(self) -> int:
        lane = self.here.lane
        if lane is None:
            lane = self.here.lane = self.timeline.thread(threading.current_thread().name)
        return lane

    def stream(self, device: int, handle: int) -> int:
        lane = self._lanes.get((device, handle))
        if lane is None:
            number = len(self._lanes) + 7 if handle else 7
            lane = self.timeline.stream(number, self.streams.priority(handle))
            self._lanes[device, handle] = lane
        return lane

    def now_ns(self) -> tuple[int, int, int]:
        """Return the earliest, the likely and the latest time of the calling thread."""
        return self.timeline.now(self.thread())

    # ------------------------------------------------------------ the host

    def work(self, name: str, ns: float) -> None:
        """Let the host compute."""
        if ns > 0 and not self.here.host_is_muted and self.here.call is None:
            self.timeline.work(self.thread(), name, _host(ns))

    def _call_ns(self, name: str, args: tuple[Any, ...]) -> float:
        """Return the host's time of an operator."""
        if self.here.host_is_muted:
            return 0.0
        node = torch._C._current_autograd_node()
        if node is None:
            grad = torch.is_grad_enabled() and any(getattr(each, "requires_grad", False) for each in args)
            return self.costs.operator(name, "grad" if grad else "forward", args)
        return self._nodes_ns(node) + self.costs.operator(name, "backward", args)

    def _nodes_ns(self, node: Any) -> float:
        """Return the host's time for the nodes of a backward pass since that of the last operator. Nodes run
        in the reverse order of their numbers; some compute nothing.
        """
        here = self.here
        number: int = node._sequence_nr()
        if number >= _ACCUMULATES:
            return 0.0
        last, here.node = here.node, number
        return self.costs.node_ns * (min(max(0, last - number), _MOST_NODES) if last else 1)

    # ------------------------------------------------------------ operators

    def computed(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, device: int, stream: int
    ) -> None:
        """Launch the kernels of an operator."""
        if self.here.muted or self._is_part_of_whole(device, stream):
            return
        name = func._schema.name.removeprefix("aten::")
        key = (func, *(_key(each) for each in args), *(_key(each) for each in kwargs.values()))
        cost = self._costs_of.get(key)
        if cost is None:
            cost = self.costs.kernel(name, args, kwargs, result)
            if not known(name, func.tags):
                self.unknown[name] += 0.0
            elif cost[1] > LIKELY:
                cost = cost[0], SURE
            self._costs_of[key] = cost
        moved = (args, *kwargs.values()), result
        self.launch(name, self._call_ns(name, args), cost, device, stream, moved)

    def launch(
        self,
        name: str,
        host_ns: float,
        cost: tuple[float, float],
        device: int,
        stream: int,
        moved: Any = None,
    ) -> None:
        call = self.fusion.call()
        if call is not None:
            self.fusion.take(call, name, cost, device, stream, moved)
        else:
            self.fusion.flush()
            self.launch_kernel(name, host_ns, cost, device, stream)

    def launch_kernel(
        self, name: str, host_ns: float, cost: tuple[float, float], device: int, stream: int
    ) -> None:
        if self._is_captured(stream, lambda on: self.launch_kernel(name, 0.0, cost, device, on)):
            self.work(f"aten::{name}", host_ns)
            return
        ns, sure = cost
        self.device_ns += ns
        if name in self.unknown:
            self.unknown[name] += ns
        self.timeline.launch(
            self.thread(),
            self.stream(device, stream),
            f"aten::{name}",
            _host(host_ns),
            name,
            (ns * DEVICE[0] / sure, ns, ns * DEVICE[2] * sure),
            self.here.graph,
        )

    def viewed(self, args: tuple[Any, ...]) -> None:
        """Let the host make a view."""
        here = self.here
        if here.muted or here.host_is_muted or here.call is not None:
            return
        node = torch._C._current_autograd_node()
        if node is None:
            self.work("", self._call_ns("empty", args))

    def copied(
        self,
        kind: str,
        size: int,
        waits: bool,
        args: tuple[Any, ...],
        device: int,
        stream: int,
        name: str = "aten::copy_",
    ) -> None:
        """Copy between the host and a device, in an operator of this name."""
        self.fusion.flush()
        if self._is_captured(stream, lambda on: self.copied(kind, size, False, (), device, on)):
            self.work("aten::copy_", self._call_ns("copy_", args))
        elif not self.here.muted:
            # The timeline adds what the driver's call takes.
            host_ns = max(0.0, self._call_ns("copy_", args) - self.costs.launch_ns)
            lane = self.stream(device, stream)
            self.timeline.copy(self.thread(), lane, name, _host(host_ns), kind, size, waits)

    # ------------------------------------------------------------ graphs

    def _is_captured(self, stream: int, act: Callable[[int], None]) -> bool:
        """Return whether this thread captures a graph. Its launches then are what is done for this stream."""
        capture = self.streams.here.capture
        if capture is None or self.here.muted:
            return False
        capture.launches.append((stream, act))
        return True

    def begin_graph(self) -> int:
        return self.timeline.graph(self.thread(), _host(REPLAY_NS))

    def replayed(self, launches: list[tuple[int, Callable[[int], None]]], stream: int) -> None:
        """Launch a graph. The stream that it was captured on is 0 in its launches."""
        here = self.here
        here.graph = self.begin_graph()
        before, here.host_is_muted = here.host_is_muted, True
        try:
            for of, act in launches:
                act(of or stream)
        finally:
            here.graph, here.host_is_muted = None, before

    # ------------------------------------------------------------ calls that are one kernel on a GPU

    @contextlib.contextmanager
    def whole(self, name: str, device_ns: list[float], host_ns: list[float]) -> Iterator[None]:
        """While this is entered, operators are part of a call that is one on a GPU, with these times of its
        forward and its backward.
        """
        here, streams = self.here, self.streams
        if here.muted:
            yield
            return
        first = torch._C._autograd._get_sequence_nr()
        here.muted = True
        try:
            yield
        finally:
            here.muted = False
        device = streams.here.device
        self.launch(
            name,
            0.0 if here.host_is_muted else host_ns[0],
            (device_ns[0], SURE),
            device,
            streams.current(device),
        )
        self.keep_nodes(self._whole, first, (f"{name}_backward", device_ns[1], host_ns[1], []))

    def keep_nodes(self, calls: list[tuple[int, int, Any]], first: int, call: Any) -> None:
        """Keep what a backward pass needs to know of a call whose nodes begin with this number."""
        last = torch._C._autograd._get_sequence_nr()
        if last > first and torch.is_grad_enabled():
            bisect.insort(calls, (first, last, call), key=lambda each: each[0])
            del calls[:-10_000]

    def of_node(self, calls: list[tuple[int, int, Any]]) -> tuple[int, int, Any] | None:
        """Return the call that the node which runs belongs to."""
        node = torch._C._current_autograd_node() if calls else None
        if node is None:
            return None
        number: int = node._sequence_nr()
        at = bisect.bisect_right(calls, number, key=lambda each: each[0]) - 1
        return calls[at] if at >= 0 and number < calls[at][1] else None

    def _is_part_of_whole(self, device: int, stream: int) -> bool:
        """Return whether the operator belongs to the backward of such a call, which is launched once."""
        found = self.of_node(self._whole)
        if found is None:
            return False
        name, ns, host_ns, taken = found[2]
        if not taken:
            taken.append(None)
            self.launch(name, host_ns, (ns, SURE), device, stream)
        return True

    # ------------------------------------------------------------ events and waits

    def told(self, callbacks: Any, device: int, what: tuple[int, ...]) -> None:
        """Take what a listener to PyTorch's calls would be told."""
        act = self._told.get(callbacks)
        if act is not None:
            act(device, what)

    def _recorded(self, device: int, what: tuple[int, ...]) -> None:
        event, stream = what
        if not self._is_captured(stream, lambda on: self._recorded(device, (event, on))):
            self._markers[event] = self.timeline.record(self.thread(), self.stream(device, stream))

    def _waits(self, device: int, what: tuple[int, ...]) -> None:
        event, stream = what
        if self._is_captured(stream, lambda on: self._waits(device, (event, on))):
            return
        marker = self._markers.get(event)
        if marker is not None:
            self.timeline.wait(self.thread(), self.stream(device, stream), marker)

    def _stream_waited_for(self, device: int, what: tuple[int, ...]) -> None:
        self.timeline.synchronize(self.thread(), None, self.stream(device, what[0]))

    def _device_waited_for(self, device: int, what: tuple[int, ...]) -> None:
        self.timeline.synchronize(self.thread(), None, None)

    def _event_waited_for(self, device: int, what: tuple[int, ...]) -> None:
        marker = self._markers.get(what[0])
        if marker is not None:
            self.timeline.synchronize(self.thread(), marker, None)

    def is_complete(self, event: int) -> bool:
        """Return whether an event is complete at the calling thread's time."""
        marker = self._markers.get(event)
        return marker is None or self.timeline.query(self.thread(), marker)

    def end_ns(self, event: int) -> int:
        """Return when an event is complete, likely."""
        return self.timeline.end(self._markers[event])[1]

    def forget(self, event: int) -> None:
        self._markers.pop(event, None)


class Ahead:
    """The uploads of a prefetcher: each to one of ``depth`` slots, as soon as the batch before has left it.

    The program's thread hands batches over. Only then is it known that the batch before is no longer used, so
    the next uploads are issued there, on the lane of the prefetcher's own thread.
    """

    def __init__(self, timing: Timing, depth: int) -> None:
        self._timing, self._depth = timing, depth
        self._thread = timing.timeline.thread("sidestream-feeder")
        self._copies = timing.timeline.stream(99, 0)
        #: The ends of the uploads that were issued, and of the uses of batches.
        self._sent: list[int] = []
        self._released: list[int] = []

    @contextlib.contextmanager
    def handing_over(self, size: int, leaves: int, device: int, stream: int) -> Iterator[None]:
        """Hand over a batch of this size, while the operators that make it take no time. Those that come
        after it are taken for batches of the same size.
        """
        timing, timeline = self._timing, self._timing.timeline
        thread, current = timing.thread(), timing.stream(device, stream)
        timing.work("sidestream.prefetch", timing.costs.amount("prefetch", leaves))
        at = len(self._released)
        self._released.append(timeline.record(thread, current))
        for number in range(len(self._sent), at + self._depth):
            if number >= self._depth:
                timeline.wait(self._thread, self._copies, self._released[number - self._depth + 1])
            timeline.copy(self._thread, self._copies, "", (0.0, 0.0, 0.0), "upload", size, False)
            self._sent.append(timeline.record(self._thread, self._copies))
        timeline.wait(thread, current, self._sent[at])
        timing.here.muted = True
        try:
            yield
        finally:
            timing.here.muted = False


def _host(ns: float) -> Triple:
    return ns * HOST[0], ns * HOST[1], ns * HOST[2]


def _key(value: Any) -> Any:
    """Return what the cost of an operator may depend on."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.stride() if value.layout is torch.strided else ()
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    return value if isinstance(value, (int, bool, str, type(None))) else type(value)


class Mode(TorchDispatchMode):  # type: ignore[misc]
    """Calls operators by their plans, which tell the timeline."""

    #: The mode of the simulation that is entered. A thread may have that of an earlier one.
    entered: Mode | None = None

    def __init__(self, plan: Callable[[Any], _check_plan.Plan]) -> None:
        super().__init__()
        self._plan, self._calls = plan, dict[Any, Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if Mode.entered is not self:
            if Mode.entered is None:
                return func(*args, **(kwargs or {}))
            return Mode.entered.__torch_dispatch__(func, types, args, kwargs)
        call = self._calls.get(func)
        if call is None:
            if _check_plan.is_composite(func):
                call = functools.partial(_check_plan.decomposed, func, self)
                self._calls[func] = lambda *args, **kwargs: call(args, kwargs)
                return call(args, kwargs or {})
            call = self._calls[func] = self._plan(func)[0]
        return call(*args, **(kwargs or {}))


def _as_one_call(timing: Timing) -> list[tuple[Any, str, Any]]:
    """Return the replacements for functions that are one call on a GPU, whatever they are made of here."""
    functional, costs = torch.nn.functional, timing.costs
    attention, dropout, lstm = functional.scaled_dot_product_attention, functional.dropout, torch._VF.lstm
    gru, encode = torch._VF.gru, torch.nn.TransformerEncoderLayer.forward

    def calls(name: str) -> list[float]:
        grad = "grad" if torch.is_grad_enabled() else "forward"
        return [costs.call(name, phase) for phase in (grad, "backward")]

    def attended(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not query.is_cuda:
            return attention(query, key, value, *args, **kwargs)
        causal = bool(kwargs.get("is_causal") or (len(args) > 2 and args[2]))
        if torch.is_autocast_enabled("cuda"):
            kind = torch.get_autocast_dtype("cuda")
            query, key, value = (each.to(kind) for each in (query, key, value))
        times = [costs.attention(query, key, causal, backward) for backward in (False, True)]
        with timing.whole("attention", times, calls("attention")):
            return attention(query, key, value, *args, **kwargs)

    def dropped(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not (training and p and x.is_cuda):
            return dropout(x, p, training, inplace)
        size = 2 * x.numel() * x.element_size()
        times = [costs("random", size), costs("pointwise", 1.5 * size)]
        with timing.whole("dropout", times, calls("dropout")):
            return dropout(x, p, training, inplace)

    def recurrent(run: Callable[..., Any], part: float) -> Callable[..., Any]:
        def call(x: Any, second: Any, *rest: Any) -> Any:
            if not x.is_cuda:
                return run(x, second, *rest)
            # (input, hidden, weights, …) or, of packed sequences, (input, batch sizes, hidden, weights, …)
            is_packed = isinstance(second, torch.Tensor) and second.dtype is torch.int64
            weights = rest[1] if is_packed else rest[0]
            time = 1 if not is_packed and rest[-1] is True else 0
            shape = (len(second), len(x) // len(second)) if is_packed else (x.shape[time], x.shape[1 - time])
            dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
            layers = part * sum(each.dim() == 2 for each in weights) / 2
            times = [
                layers * costs.lstm(dtype, shape[0], shape[1], weights[1].shape[1], backward)
                for backward in (False, True)
            ]
            host = [layers * costs.amount(name, shape[0]) for name in ("lstm", "lstm_backward")]
            with timing.whole("rnn", times, host):
                if timing.has_values or is_packed:
                    return run(x, second, *rest)
                # The shapes are those of one step, repeated.
                made, *hidden = run(x.narrow(time, 0, 1), second, *rest)
                steps = list(made.shape)
                steps[time] = shape[0]
                return made.expand(steps).clone(), *hidden

        return call

    def encoded(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Without gradients a GPU has one call for the whole layer.
        if self.training or torch.is_grad_enabled() or not self.norm1.weight.is_cuda:
            return encode(self, *args, **kwargs)
        timing.work("aten::_transformer_encoder_layer_fwd", costs.call("encoder_layer", "forward"))
        before, timing.here.host_is_muted = timing.here.host_is_muted, True
        try:
            return encode(self, *args, **kwargs)
        finally:
            timing.here.host_is_muted = before

    return [
        (functional, "scaled_dot_product_attention", attended),
        (functional, "dropout", dropped),
        (torch._VF, "lstm", recurrent(lstm, 1.0)),
        (torch._VF, "gru", recurrent(gru, 0.75)),
        (torch.nn.TransformerEncoderLayer, "forward", encoded),
        (torch.backends.mha, "get_fastpath_enabled", lambda: False),
    ]


@contextlib.contextmanager
def timed(timing: Timing) -> Iterator[None]:
    """While this is entered, calls whose parts are not seen as operators are on the timeline too."""
    costs = timing.costs
    zero_grad, run_backward = torch.optim.Optimizer.zero_grad, torch.autograd._engine_run_backward

    def zeroed(self: Any, *args: Any, **kwargs: Any) -> Any:
        many = sum(len(group["params"]) for group in self.param_groups)
        timing.work("Optimizer.zero_grad", costs.amount("zero_grad", many))
        return zero_grad(self, *args, **kwargs)

    def ran_backward(*args: Any, **kwargs: Any) -> Any:
        timing.work("autograd::engine", costs.amount("backward", 0))
        timing.here.node = 0
        try:
            return run_backward(*args, **kwargs)
        finally:
            timing.fusion.flush()

    def stepping(optimizer: Any, args: Any, kwargs: Any) -> None:
        name = type(optimizer).__name__
        options = optimizer.param_groups[0]
        if options.get("fused"):
            name += "/fused"
        elif options.get("foreach") is False:
            name += "/for"
        elif options.get("momentum"):
            name += "/momentum"
        many = sum(len(group["params"]) for group in optimizer.param_groups)
        timing.work(f"Optimizer.step#{type(optimizer).__name__}", costs.amount(f"step/{name}", many))
        timing.here.host_is_muted = True

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        timing.here.host_is_muted = False

    module_ns = costs.call("module", "forward")
    real = time.perf_counter_ns() - timing.now_ns()[1]

    def clock() -> int:
        return real + timing.now_ns()[1]

    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            *_as_one_call(timing),
            (torch.optim.Optimizer, "zero_grad", zeroed),
            (torch.autograd, "_engine_run_backward", ran_backward),
            (time, "perf_counter_ns", clock),
            (time, "perf_counter", lambda: clock() / 1e9),
        ):
            put(stack, owner, name, value)
        timing.fusion.install(stack)
        modules = torch.nn.modules.module
        for hook in (
            modules.register_module_forward_pre_hook(lambda *_: timing.work("", module_ns)),
            _optimizer.register_optimizer_step_pre_hook(stepping),
            _optimizer.register_optimizer_step_post_hook(stepped),
        ):
            stack.callback(hook.remove)
        yield
