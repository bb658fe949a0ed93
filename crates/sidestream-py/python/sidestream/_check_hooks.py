"""Hooks that observe PyTorch calls other than operators, and that restore PyTorch afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sidestream._check_changes import put, wrap
from sidestream._check_collectives import collectives_heard
from sidestream._check_compiled import compiled_heard
from sidestream._check_fix import PACKAGE, is_library
from sidestream._check_threads import threads_heard
from sidestream._check_triton import kernels_heard
from sidestream._sidestream import Recorder
from sidestream._stream import Event, Stream
from sidestream._system import after_forks

#: The registries of PyTorch's callbacks, and the methods of the recorder that they call.
_CALLBACKS = {
    "EventCreationCallbacks": "on_event_creation",
    "EventDeletionCallbacks": "on_event_deletion",
    "EventRecordCallbacks": "event_record",
    "EventWaitCallbacks": "event_wait",
    "MemoryAllocationCallbacks": "on_memory_allocation",
    "MemoryDeallocationCallbacks": "on_memory_deallocation",
    "StreamCreationCallbacks": "on_stream_creation",
    "DeviceSynchronizationCallbacks": "device_synchronize",
    "StreamSynchronizationCallbacks": "stream_synchronize",
    "EventSynchronizationCallbacks": "on_event_synchronization",
}


@dataclass
class Steps:
    """The range of checked steps: ``first`` is included, ``last`` is not. ``made`` counts the steps so far.

    A step ends when the optimizer that made the first step returns from ``step()``.
    """

    first: int
    last: int
    made: int = 0

    @property
    def shown(self) -> str:
        """Which steps are checked, in words."""
        if self.last == sys.maxsize:
            return f"the steps from {self.first} on"
        last = self.last - 1
        return f"step {last}" if last == self.first else f"steps {self.first} to {last}"


@contextlib.contextmanager
def hooked(recorder: Recorder, steps: Steps | None = None) -> Iterator[None]:
    """While this is entered, the recorder observes streams, events, memory and threads, either always or
    during some steps.
    """
    with contextlib.ExitStack() as stack:
        _callbacks(recorder, stack)
        if steps is None or steps.first == 0:
            _existing(recorder)
        if steps is not None:
            _in_steps(recorder, steps, stack)
        _streams(recorder, stack)
        _made_streams(recorder, stack)
        _failures(recorder, stack)
        _held_memory(recorder)
        _own_streams(recorder, stack)
        graphs_heard(recorder, stack)
        host_reads_heard(recorder, stack)
        _backward(recorder, stack)
        _checkpoints(stack)
        _fake_tensors(recorder, stack)
        threads_heard(recorder, stack)
        on_threads(recorder, stack)
        collectives_heard(recorder, stack)
        kernels_heard(recorder, stack)
        compiled_heard(recorder, stack)
        _clocks(recorder, stack)
        _listening.append(recorder)
        stack.callback(_listening.remove, recorder)
        yield


def _callbacks(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    import torch

    activate = getattr(torch._C, "_activate_gpu_trace", None)
    if activate is None:
        return
    from torch.cuda import _gpu_trace

    for registry_name, method in _CALLBACKS.items():
        registry = getattr(_gpu_trace, registry_name)
        heard = getattr(recorder, method)
        if registry.callback_list or "fire_callbacks" in vars(registry):
            # Another listener is registered.
            registry.callback_list.append(heard)
            stack.callback(registry.callback_list.remove, heard)
            if "fire_callbacks" in vars(registry):
                wrap(stack, registry, "fire_callbacks", after=lambda _, *args, heard=heard: heard(*args))
        else:
            # PyTorch reads this attribute of the registry at each call, so the recorder is called directly.
            put(stack, registry, "fire_callbacks", heard)
    activate()


def _existing(recorder: Recorder) -> None:
    """Tell the recorder about memory that was allocated before the check."""
    import torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and "address" in block:
                recorder.allocated(block["address"], segment["stream"], segment["device"])


def _in_steps(recorder: Recorder, steps: Steps, stack: contextlib.ExitStack) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    leader: Any = None

    def made(optimizer: Any, *_: Any) -> None:
        nonlocal leader
        leader = leader or weakref.ref(optimizer)
        if leader() is not optimizer:
            return
        steps.made += 1
        if steps.made == steps.first:
            # Work before the first checked step is not known and counts as complete; its memory is reported
            # here.
            _existing(recorder)
            recorder.start()
        if steps.made == steps.last:
            recorder.stop()

    if steps.first > 0:
        recorder.stop()
    stack.callback(register_optimizer_step_post_hook(made).remove)


def _streams(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """Observe ``query`` and the creation of external streams, which PyTorch's callbacks do not report."""
    import torch

    def event_asked(done: bool, event: Any) -> None:
        if done and event.cuda_event:
            recorder.event_complete(event.cuda_event)

    def time_asked(_: float, event: Any, end_event: Any) -> None:
        # The call raises unless both events are complete.
        recorder.event_complete(event.cuda_event)
        recorder.event_complete(end_event.cuda_event)
        recorder.time_taken(event.cuda_event, end_event.cuda_event)

    def stream_asked(done: bool, stream: Any) -> None:
        if done:
            recorder.stream_complete(stream.cuda_stream, stream.device_index)

    wrap(stack, torch.cuda.Event, "query", after=event_asked)
    wrap(stack, torch.cuda.Event, "elapsed_time", after=time_asked)
    wrap(stack, torch.cuda.Stream, "query", after=stream_asked)
    external = torch.cuda.ExternalStream
    new = external.__new__

    def make(cls: Any, stream_ptr: int, *args: Any, **kwargs: Any) -> Any:
        if _is_blocking(stream_ptr):
            recorder.stream_is_blocking(stream_ptr)
        return new(cls, stream_ptr, *args, **kwargs)

    put(stack, external, "__new__", staticmethod(make))


class _Token:
    """Calls a function when the object that has this as an attribute dies."""

    __slots__ = ("_died",)

    def __init__(self, died: Callable[[], None]) -> None:
        self._died = died

    def __del__(self) -> None:
        self._died()


def _made_streams(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """Observe where streams are created, and when the last reference to each is gone, which PyTorch does not
    report.

    A weak reference to a stream is of no use: PyTorch frees a `torch.cuda.Stream` without clearing its weak
    references, so the callback is never called, and the reference points to freed memory. An attribute of the
    stream dies with it.
    """
    import torch

    stream = torch.cuda.Stream
    new = stream.__new__

    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = new(cls, *args, **kwargs)
        # With these arguments the stream already exists.
        if "stream_id" in kwargs or "stream_ptr" in kwargs:
            return made
        device, handle = made.device_index, made.cuda_stream
        at, steps = recorder.stream_made(device, handle)

        def let_go() -> None:
            if not recorder.is_over:
                recorder.stream_let_go(at, steps, device, handle)

        made._sidestream_made = _Token(let_go)
        return made

    put(stack, stream, "__new__", staticmethod(make))


def _failures(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """Observe device errors that a wait raises. PyTorch's callback runs before the wait."""
    import torch

    def heard(name: str, wait: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wait)
        def waits(*args: Any, **kwargs: Any) -> Any:
            try:
                return wait(*args, **kwargs)
            except RuntimeError as error:
                recorder.wait_failed(name, str(error))
                raise

        return waits

    waits = (
        (torch.cuda, "synchronize"),
        (torch.cuda.Stream, "synchronize"),
        (torch.cuda.Event, "synchronize"),
    )
    for owner, name in waits:
        put(stack, owner, name, heard(f"{owner.__name__}.{name}", getattr(owner, name)))


def _held_memory(recorder: Recorder) -> None:
    """Let the recorder ask PyTorch's allocator which freed memory waits for other streams. In the simulated
    allocator work takes no time; freed memory counts as waiting until the host has waited for these streams,
    or is so far ahead that CUDA would have blocked it.
    """
    import torch

    def pending() -> list[tuple[int, int]]:
        every = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
        return [
            (block["address"], block["size"]) for block in every if block["state"] == "active_pending_free"
        ]

    recorder.watch_freed(pending)


def _own_streams(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """Observe this package's streams and events, which call CUDA without PyTorch's callbacks."""

    def handle(stream: Any) -> tuple[int, int] | None:
        """Return the handle and the device; None for a simulated stream."""
        try:
            stream = stream if isinstance(stream, Stream) else Stream.of(stream)
            return stream.cuda_stream, int(str(stream.device).partition(":")[2] or 0)
        except (TypeError, ValueError, ImportError):
            return None

    def tell(call: Callable[..., None], stream: Any, *event: int) -> None:
        if at := handle(stream):
            call(*event, *at)

    # Numbers that no handle has identify these events.
    def number(event: Any) -> int:
        return _OURS | id(event)

    def waited(_: None, stream: Any, other: Any) -> None:
        source, target = handle(other), handle(stream)
        if source and target:
            recorder.event_record(_OURS, *source)
            recorder.event_wait(_OURS, *target)

    def stream_asked(done: bool, stream: Any) -> None:
        if done:
            tell(recorder.stream_complete, stream)

    def event_asked(done: bool, event: Any) -> None:
        if done:
            recorder.event_complete(number(event))

    def on(owner: Any, name: str, after: Callable[..., None]) -> None:
        wrap(stack, owner, name, after=after)

    on(Stream, "wait_stream", waited)
    on(Stream, "synchronize", lambda _, stream: tell(recorder.stream_synchronize, stream))
    on(Stream, "query", stream_asked)
    on(Event, "record", lambda _, event, stream=None: tell(recorder.event_record, stream, number(event)))
    on(Event, "wait", lambda _, event, stream=None: tell(recorder.event_wait, stream, number(event)))
    on(Event, "synchronize", lambda _, event: recorder.on_event_synchronization(number(event)))
    on(Event, "query", event_asked)


_OURS = 1 << 63


def _is_blocking(handle: int) -> bool:
    """Return whether the default stream waits for a stream that PyTorch did not make. If that is not known,
    return True: then fewer races are reported, and no false ones.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        flags = ctypes.c_uint(0)
        refused: int = driver.cuStreamGetFlags(ctypes.c_void_p(handle), ctypes.byref(flags))
    except (OSError, AttributeError):
        return True
    return bool(refused) or not flags.value & 1


def graphs_heard(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    import torch

    graph = torch.cuda.CUDAGraph
    # Since PyTorch 2.15 each capture ends with this call, even one that fails when it begins.
    ends = "capture_end_pre" if hasattr(graph, "capture_end_pre") else "capture_end"

    def begun(_: None, self: Any, *args: Any, **kwargs: Any) -> None:
        mode = args[1] if len(args) > 1 else kwargs.get("capture_error_mode", "global")
        recorder.capture_begin(id(self), mode == "global")

    wrap(stack, graph, "capture_begin", after=begun)
    wrap(stack, graph, ends, before=lambda _: recorder.capture_end())
    wrap(stack, graph, "replay", after=lambda _, self: recorder.replay(id(self)))


def _checkpoints(stack: contextlib.ExitStack) -> None:
    """Let checkpoints compute their whole forward pass again.

    By default, checkpoints end that pass early with an exception. While the exception passes through C++,
    memory is freed. PyTorch reports this by calling Python, which loses the exception, and `backward` fails
    with a `SystemError` (PyTorch 2.11).
    """
    import torch.utils.checkpoint as checkpoint

    if hasattr(checkpoint, "_enable_checkpoint_early_stop"):
        put(stack, checkpoint, "_enable_checkpoint_early_stop", False)


def host_reads_heard(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """Observe ``tolist``, which reads memory without an operator, and ``print``, whose operators are hidden
    from modes.
    """
    import torch

    shown = torch._tensor_str._str

    def show(self: Any, *args: Any, **kwargs: Any) -> Any:
        if type(self) not in (torch.Tensor, torch.nn.Parameter):
            return shown(self, *args, **kwargs)
        try:
            recorder.print_begins(self)
            return shown(self, *args, **kwargs)
        finally:
            recorder.print_ends()

    wrap(
        stack,
        torch.Tensor,
        "tolist",
        lambda self: recorder.host_uses(self, False, "tolist"),
        lambda _, self: recorder.host_used(self, False),
    )
    put(stack, torch._tensor_str, "_str", show)


def _backward(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """Observe backward passes. The engine's threads run no Python, so their operators are attributed to the
    call of `backward`.
    """
    import torch.autograd

    run = torch.autograd._engine_run_backward
    is_first = True

    def run_backward(roots: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_first
        # With a single stream, gradients do not pass between streams. The first pass may show a stream from
        # before the check.
        passes = torch.cuda.is_initialized() and (is_first or recorder.has_streams())
        is_first = False
        inputs = args[3] if len(args) > 3 else None
        before = recorder.enter_backward()
        hooks: list[Any] = []
        try:
            if passes:
                _on_gradients(recorder.gradients, roots, inputs, hooks)
            result = run(roots, *args, **kwargs)
            if passes and result and not all(isinstance(x, torch.Tensor) for x in inputs or ()):
                recorder.gradients_of_edges(result)
            return result
        finally:
            for hook in hooks:
                hook.remove()
            recorder.leave_backward(before)

    put(stack, torch.autograd, "_engine_run_backward", run_backward)


def _fake_tensors(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """Observe nothing under a mode of fake tensors, which run on no device: DTensor asks one for shapes.
    PyTorch calls the check before that mode, and the mode not at all if the check leaves a subclass to
    itself.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    wrap(stack, FakeTensorMode, "__enter__", after=lambda *_: recorder.mute())
    wrap(stack, FakeTensorMode, "__exit__", before=lambda *_: recorder.unmute())


def _on_gradients(heard: Callable[[Any], None], roots: Any, inputs: Any, hooks: list[Any]) -> None:
    """Observe each gradient that the engine passes from a node on one stream to a node on another.

    Between nodes on one stream the engine records no stream, whichever stream the gradient's memory is from.

    Args:
        heard: Called with the gradients, on the stream of the node that receives them.
        roots: The tensors or edges of the graph where backward starts.
        inputs: The tensors for which gradients are requested, if any: their nodes need not run.
        hooks: Receives the handles of the hooks.
    """
    import torch

    def now() -> tuple[int, int]:
        device = torch.cuda.current_device()
        return device, torch._C._cuda_getCurrentRawStream(device)

    def node_of(root: Any) -> Any:
        if not isinstance(root, torch.Tensor):
            return root.node
        return root.grad_fn or (
            torch.autograd.graph.get_gradient_edge(root).node if root.requires_grad else None
        )

    #: By node and input: the streams of the nodes, or of the caller, that gave the gradients.
    givers: dict[tuple[Any, int], set[tuple[int, int]]] = {}

    def passed(node: Any, given: Any) -> None:
        others = tuple(x for at, x in given if x is not None and givers.get((node, at), set()) - {now()})
        if others:
            heard(others)

    def before(node: Any) -> Callable[[Any], None]:
        edges = node.next_functions

        def begins(given: Any) -> None:
            passed(node, enumerate(given))
            for edge in edges:
                givers.setdefault(edge, set()).add(now())

        return begins

    def asked(x: Any) -> Any:
        node, at = node_of(x), x.output_nr
        return x.register_hook(lambda gradient: passed(node, [(at, gradient)]))

    left = [node_of(root) for root in roots]
    for root, node in zip(roots, left, strict=True):
        givers.setdefault((node, root.output_nr), set()).add(now())
    seen = {None}
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            hooks.append(node.register_prehook(before(node)))
            left += [after for after, _ in node.next_functions]
    hooks += [asked(x) for x in inputs or () if isinstance(x, torch.Tensor) and x.requires_grad]


def _clocks(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """Observe readings of the host's clocks: the time between them does not include work that was not waited
    for.
    """
    if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        return

    def heard(name: str) -> Callable[[], Any]:
        read = getattr(time, name)

        def clock() -> Any:
            # Only readings by the program's own code are observed.
            caller = sys._getframe(1).f_code.co_filename
            if not caller.startswith(PACKAGE) and not is_library(caller):
                recorder.clock_read(f"time.{name}")
            return read()

        return functools.wraps(read)(clock)

    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"):
        put(stack, time, name, heard(name))


def on_threads(mode: Any, stack: contextlib.ExitStack) -> None:
    """Enter a mode on threads that start while the stack is open: each thread has its own modes."""
    import torch

    push = torch._C._push_on_torch_dispatch_stack
    start = vars(threading.Thread)["_bootstrap_inner"]

    def bootstrap_inner(self: threading.Thread) -> None:
        push(mode)
        try:
            start(self)
        finally:
            _take_out(lambda one: one is mode)

    put(stack, threading.Thread, "_bootstrap_inner", bootstrap_inner)


#: The recorder that each thread has entered and not left.
_here = threading.local()


@contextlib.contextmanager
def operators_heard(recorder: Any) -> Iterator[None]:
    """While this is entered, the recorder observes the operators of the calling thread. The same thread must
    leave it.

    PyTorch has a stack of modes for each thread, which other threads cannot change. If this is left on
    another thread, the recorder stays in the stack, inactive, until the next check is entered on that thread.

    Raises:
        RuntimeError: This is left on another thread, or PyTorch calls no modes on this one.
    """
    import torch

    _take_out(lambda mode: isinstance(mode, Recorder) and mode.is_over)
    recorder.__enter__()
    _here.recorder = recorder
    try:
        torch.empty(0, device="cpu")
        if not recorder.has_heard_operators:
            raise RuntimeError(
                "PyTorch's operators cannot be observed here, where its dispatch to modes is disabled; enter "
                "the check outside of that"
            )
        yield
    finally:
        is_here = getattr(_here, "recorder", None) is recorder
        if is_here:
            del _here.recorder
        else:
            # Leaving pops the uppermost mode of this thread, which must be the recorder.
            torch._C._push_on_torch_dispatch_stack(recorder)
        recorder.__exit__(None, None, None)
        if not is_here:
            raise RuntimeError(
                "a check was left on another thread than the one that entered it; its report holds what was "
                "observed until then. Enter and leave it on one thread: a fixture or generator in an "
                "executor's threads, or an ExitStack that another thread closes, has to run there, too"
            )


def _take_out(is_out: Callable[[Any], bool]) -> None:
    """Remove modes from the stack of the calling thread, wherever they are in it."""
    import torch

    every = [torch._C._get_dispatch_stack_at(at) for at in range(torch._C._len_torch_dispatch_stack())]
    # PyTorch's own modes are listed after the others, and have separate places.
    modes = [mode for mode in every if getattr(mode, "_mode_key", None) is None]
    if any(is_out(mode) for mode in modes):
        for _ in modes:
            torch._C._pop_torch_dispatch_stack(None)
        for mode in modes:
            if not is_out(mode):
                torch._C._push_on_torch_dispatch_stack(mode)


def _in_child() -> None:
    """Stop the check in forked processes, such as the workers of a DataLoader, which are not checked."""
    for recorder in _listening:
        recorder.stop()


_listening: list[Recorder] = []
after_forks(_in_child)
