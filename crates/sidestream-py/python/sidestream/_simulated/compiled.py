"""Times of what ``torch.compile`` compiles. Its operators run one by one; they take the time of the few
kernels that Inductor would make of them.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from sidestream._check_changes import Changes
from sidestream._check_triton import when_imported
from sidestream._simulated.costs import LIKELY, bytes_of, call_of
from sidestream._simulated.tensor import storage_key, tensors_in

if TYPE_CHECKING:
    from sidestream._simulated.timing import Timing

#: The host's times of a call, with its guards, and of its backward, in launches of a kernel.
_CALL, _BACKWARD = 4, 10
_REDUCES = frozenset("batch_norm layer_norm group_norm softmax reduction index_add embedding".split())
_EXTERN = frozenset("attention attention_backward rnn rnn_backward sort topk".split())


class Call:
    """A call of a compiled function, and its backward."""

    def __init__(self, has_graph: bool) -> None:
        self.has_graph, self.is_in_backward = has_graph, False
        #: The launch of its graph.
        self.graph: int | None = None


class Kernel:
    """A kernel that Inductor would make of some operators."""

    def __init__(self, name: str, call: Call, device: int, stream: int) -> None:
        self.name, self.call, self.device, self.stream = name, call, device, stream
        #: The time of its reduction, and by how much its time may be off.
        self.ns, self.sure, self.reduces = 0.0, LIKELY, False
        #: Bytes of the storages that it reads and writes. What is written and read inside of it is neither.
        self.reads, self.writes = dict[int, int](), dict[int, int]()
        self._made: set[int] = set()

    def join(self, given: Any, made: Any) -> None:
        """Join an operator."""
        for tensor in tensors_in(given):
            key = storage_key(tensor)
            if key in self._made:
                self.writes.pop(key, None)
            else:
                self.reads[key] = bytes_of(tensor)
        for tensor in tensors_in(made):
            self._made.add(key := storage_key(tensor))
            self.writes[key] = bytes_of(tensor)


class Fusion:
    """Makes kernels of the operators of compiled functions: products, convolutions and attention remain what
    they are; other operators join the one before, up to one reduction in a kernel.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self.kernel_ns = timing.costs.call("pointwise_of_two", "forward")
        #: Calls by the numbers of their nodes.
        self.calls: list[tuple[int, int, Call]] = []
        self.has_run = False

    def call(self) -> Call | None:
        """Return the call that the operator which runs belongs to."""
        timing = self._timing
        found = timing.of_node(self.calls)
        if found is None or timing.here.call is not None:
            return timing.here.call
        call: Call = found[2]
        if not call.is_in_backward:
            call.is_in_backward = True
            self._begin(call, "CompiledFunctionBackward", _BACKWARD)
        return call

    def _begin(self, call: Call, name: str, launches: int) -> None:
        timing = self._timing
        self.flush()
        timing.work(name, launches * self.kernel_ns)
        if call.has_graph:
            call.graph = timing.begin_graph()

    def take(
        self, call: Call, name: str, cost: tuple[float, float], device: int, stream: int, moved: Any
    ) -> None:
        """Make an operator a kernel, or join it to the last; ``moved`` is what it was given and has made."""
        here, kind, (ns, sure) = self._timing.here, call_of(name), cost
        is_extern = kind in ("linear", "bmm", "conv") or name in _EXTERN or "attention" in name
        reduces = kind in _REDUCES
        kernel = here.fused
        if kernel is None or is_extern or kernel.call is not call or (reduces and kernel.reduces):
            self.flush()
            title = name if is_extern else f"triton_{'red' if reduces else 'poi'}_fused_{name}"
            kernel = here.fused = Kernel(title, call, device, stream)
        kernel.sure, kernel.reduces = max(sure, kernel.sure), kernel.reduces or reduces
        if is_extern or reduces or moved is None:
            kernel.ns += ns
        else:
            kernel.join(*moved)
        if is_extern:
            self.flush()
        elif name in self._timing.unknown:
            self._timing.unknown[name] += ns

    def flush(self) -> None:
        """Launch the kernel that operators were joined to."""
        here, kernel = self._timing.here, self._timing.here.fused
        if kernel is not None:
            ns, size = kernel.ns, sum((*kernel.reads.values(), *kernel.writes.values()))
            if size:
                costs = self._timing.costs
                ns += costs("pointwise", size) - (costs("pointwise", 1) if ns else 0.0)
            before, here.graph, here.fused = here.graph, kernel.call.graph, None
            cost = (ns, kernel.sure)
            self._timing.launch_kernel(kernel.name, self.kernel_ns, cost, kernel.device, kernel.stream)
            here.graph = before

    @contextlib.contextmanager
    def called(self, has_graph: bool) -> Iterator[None]:
        """While this is entered, operators are those of a compiled function."""
        timing = self._timing
        if timing.streams.is_over or timing.here.call is not None or timing.here.muted:
            yield
            return
        self.has_run, call = True, Call(has_graph)
        first = torch._C._autograd._get_sequence_nr()
        self._begin(call, "Torch-Compiled Region", _CALL)
        timing.here.call = call
        try:
            yield
        finally:
            self.flush()
            timing.here.call = None
            timing.keep_nodes(self.calls, first, call)

    def compiled(self, model: Any, has_graph: bool) -> Any:
        """Return what ``torch.compile`` would return."""
        is_module = isinstance(model, torch.nn.Module)
        run: Callable[..., Any] = model._call_impl if is_module else model

        @functools.wraps(run)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.called(has_graph):
                return run(*args, **kwargs)

        if not is_module:
            return call
        model._compiled_call_impl = call
        return model

    def install(self, stack: contextlib.ExitStack) -> None:
        """Notice the calls of functions that were compiled before: dynamo does not compile them in a mode."""

        def changes(module: ModuleType) -> Changes:
            def hooks(self: Any) -> list[Callable[[], Any]]:
                has_graph = bool((self.compiler_config or {}).get("triton.cudagraphs"))
                return [lambda: enter(has_graph), *vars(self)["enter_exit_hooks"]]

            def put(self: Any, hooks: list[Callable[[], Any]]) -> None:
                self.__dict__["enter_exit_hooks"] = hooks

            yield module.__dict__["OptimizeContext"], "enter_exit_hooks", property(hooks, put)

        def enter(has_graph: bool) -> Callable[[], None]:
            opened = contextlib.ExitStack()
            opened.enter_context(self.called(has_graph))
            return opened.close

        # A module that was compiled before warns about hooks on all modules, which the simulation has.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Using `torch.compile")
        when_imported({"torch._dynamo.eval_frame": changes}, stack)
