"""Backward over several streams: what the engine orders and notes by itself, and what it leaves to the program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from sidestream._check import CheckedRun, checking

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode
else:
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        TorchDispatchMode = object

pytestmark = pytest.mark.torch

MAIN, SIDE, THIRD = 0, 0x100, 0x200


class Gpu(TorchDispatchMode):  # type: ignore[misc]
    """Streams, allocator and engine of PyTorch, as they are where there is a GPU, for work of the processor.

    Memory is from the current stream. Nothing dies by itself: a test says what is dropped. A node of backward runs on the
    stream of its operation, and waits for the streams of the nodes that give it gradients; who called backward waits for
    the streams of the leaves.
    """

    run: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.current = MAIN
        self.homes: dict[int, tuple[int, int]] = {}
        self.kept: list[Any] = []
        self.streams: dict[Any, int] = {}
        self.accumulate_on: int | None = None
        self.events = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            storage = getattr(tensor, "untyped_storage", lambda: None)()
            if storage is None or storage.data_ptr() in self.homes or not storage.nbytes():
                continue
            self.kept.append(tensor)
            self.homes[storage.data_ptr()] = (self.current, storage.nbytes())
            if self.run is not None:
                self.run.allocated(storage.data_ptr(), self.current)
        if self.accumulate_on is not None and str(func) == "aten.add.Tensor":
            self.run.pretend_stream(self.accumulate_on)
        return made

    @contextlib.contextmanager
    def on(self, stream: int) -> Iterator[None]:
        before = self.current
        self._go_to(stream)
        try:
            yield
        finally:
            self._go_to(before)

    def _go_to(self, stream: int) -> None:
        self.current = stream
        self.run.pretend_stream(stream)

    def wait(self, stream: int, source: int) -> None:
        """``stream.wait_stream(source)``."""
        self.events += 1
        self.run.event_record(self.events, source)
        self.run.event_wait(self.events, stream)

    def record_stream(self, tensor: Any, stream: int) -> None:
        self.run.record_stream(tensor.data_ptr(), tensor.nbytes, stream)

    def drop(self, tensor: Any) -> None:
        """The last reference dies, and its home stream uses the memory again at once."""
        start = tensor.untyped_storage().data_ptr()
        home, size = self.homes[start]
        self.run.on_memory_deallocation(start)
        self.run.allocated(start, home)
        self.run.operator("fill_", [], [(start, size)], home)

    def call(self, stream: int, function: Callable[..., Any], *args: Any) -> Any:
        """Calls something on a stream, which is then that of the nodes that it makes."""
        with self.on(stream):
            result = function(*args)
        for node in nodes(result):
            self.streams.setdefault(node, stream)
        return result

    def backward(self, loss: Any) -> None:
        every, caller = nodes(loss), self.current
        before: dict[Any, set[int]] = {loss.grad_fn: {caller}}
        for node in every:
            for after, _ in node.next_functions:
                before.setdefault(after, set()).add(self.streams[node])

        def begins(node: Any) -> Callable[[Any], None]:
            def begin(_: Any) -> None:
                stream = self.streams[node]
                for source in before[node] - {stream}:
                    self.wait(stream, source)
                self._go_to(stream)

            return begin

        hooks = [node.register_prehook(begins(node)) for node in every]
        loss.backward()
        for hook in hooks:
            hook.remove()
        self._go_to(caller)
        for leaf in {self.streams[node] for node in every if not node.next_functions} - {caller}:
            self.wait(caller, leaf)


def nodes(result: Any) -> list[Any]:
    found: list[Any] = []
    left = [result.grad_fn] if result.grad_fn is not None else []
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found.append(node)
            left += [after for after, _ in node.next_functions]
    return found


#: Each has a mistake unless it is ``right``, and the kinds that are found with it.
CASES: dict[str, tuple[Callable[[Gpu, bool], None], set[str]]] = {}


def case(*kinds: str) -> Callable[[Callable[[Gpu, bool], None]], Callable[[Gpu, bool], None]]:
    def put(program: Callable[[Gpu, bool], None]) -> Callable[[Gpu, bool], None]:
        CASES[program.__name__] = (program, set(kinds))
        return program

    return put


def checked(program: Callable[[Gpu, bool], None], right: bool) -> CheckedRun:
    gpu = Gpu()
    with gpu, checking(pretend=True) as found:
        gpu.run = found._recorder
        program(gpu, right)
    return found


def weights(size: int = 16) -> Any:
    import torch

    return torch.ones(size, requires_grad=True)


@case("UAF")
def what_the_forward_saved(gpu: Gpu, right: bool) -> None:
    """Used by backward on another stream than its own: nobody notes that."""
    import torch

    w = weights()
    with gpu.on(SIDE):
        x = torch.full((16,), 2.0)
    gpu.wait(MAIN, SIDE)
    gpu.backward(gpu.call(MAIN, lambda: (x * w).sum()))
    if right:
        gpu.record_stream(x, MAIN)
    gpu.drop(x)


@case("UAF")
def a_gradient_that_a_leaf_adds_to(gpu: Gpu, right: bool) -> None:
    """Nobody handed it over: it was there."""
    import torch

    w = weights()
    with gpu.on(SIDE):
        w.grad = torch.ones(16)
    gpu.wait(MAIN, SIDE)
    gpu.backward(gpu.call(MAIN, lambda: (w * 3).sum()))
    if right:
        gpu.record_stream(w.grad, MAIN)
    gpu.drop(w.grad)


@case("UAF")
def augmentation_recorded_on_its_own_stream(gpu: Gpu, right: bool) -> None:
    """Two steps of a loop that transforms the next batch on one stream while another trains."""
    import torch

    w = weights()
    gpu.wait(SIDE, MAIN)
    gpu.wait(THIRD, MAIN)
    transformed: Any = None
    for _ in range(3):
        if transformed is not None:
            gpu.wait(SIDE, THIRD)
            loss = gpu.call(SIDE, lambda: (transformed * w).sum())
            with gpu.on(SIDE):
                gpu.backward(loss)
                with torch.no_grad():
                    w -= w.grad
                w.grad = None
        with gpu.on(THIRD):
            old, transformed = transformed, torch.full((16,), 1.0)
            if old is not None:
                gpu.record_stream(old, SIDE if right else THIRD)
                gpu.drop(old)


@case("RAW")
def a_function_that_uses_a_stream_and_does_not_wait(gpu: Gpu, right: bool) -> None:
    import torch

    class Scale(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            gpu.wait(SIDE, gpu.current)
            with gpu.on(SIDE):
                scaled = gradient * 2
            if right:
                gpu.wait(gpu.current, SIDE)
                gpu.record_stream(scaled, gpu.current)
            return scaled

    w = weights()
    gpu.backward(gpu.call(MAIN, lambda: Scale.apply(w * 3).sum()))


@case("UAF")
def a_function_that_notes_no_stream(gpu: Gpu, right: bool) -> None:
    """The gradient that it is given is freed as soon as it returns."""
    import torch

    class Scale(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            gpu.wait(SIDE, gpu.current)
            with gpu.on(SIDE):
                ctx.norm = torch.linalg.vector_norm(gradient)
            if right:
                gpu.record_stream(gradient, SIDE)
            gpu.drop(gradient)
            return torch.ones(16)

    w = weights()
    gpu.backward(gpu.call(MAIN, lambda: (Scale.apply(w * 3) * 2).sum()))


@case("UAF")
def an_optimizer_in_backward_on_a_stream_of_its_own(gpu: Gpu, right: bool) -> None:
    import torch

    w = weights()

    def step(parameter: Any) -> None:
        gpu.wait(SIDE, gpu.current)
        with gpu.on(SIDE), torch.no_grad():
            parameter -= parameter.grad
        if right:
            gpu.record_stream(parameter.grad, SIDE)
        gone, parameter.grad = parameter.grad, None
        gpu.drop(gone)

    w.register_post_accumulate_grad_hook(step)
    gpu.backward(gpu.call(MAIN, lambda: (w * 3).sum()))
    gpu.wait(MAIN, SIDE)


@case("RAW", "WAR")
def an_optimizer_in_backward_that_the_next_step_does_not_wait_for(gpu: Gpu, right: bool) -> None:
    import torch

    w = weights()

    def step(parameter: Any) -> None:
        gpu.wait(SIDE, gpu.current)
        with gpu.on(SIDE), torch.no_grad():
            parameter -= parameter.grad
        gpu.record_stream(parameter.grad, SIDE)

    w.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        gpu.backward(gpu.call(MAIN, lambda: (w * 3).sum()))
        if right:
            gpu.wait(MAIN, SIDE)


def offload(gpu: Gpu, waits: bool, notes_the_source: bool, notes_the_result: bool) -> None:
    """What the forward saves goes to another place on a stream of its own, and comes back in backward."""
    import torch

    def pack(tensor: Any) -> Any:
        gpu.wait(SIDE, gpu.current)
        with gpu.on(SIDE):
            away = tensor.clone()
        if notes_the_source:
            gpu.record_stream(tensor, SIDE)
        return away

    back: list[Any] = []

    def unpack(away: Any) -> Any:
        with gpu.on(SIDE):
            back.append(away.clone())
        if waits:
            gpu.wait(gpu.current, SIDE)
        if notes_the_result:
            gpu.record_stream(back[-1], gpu.current)
        return back[-1]

    w = weights()
    x = torch.full((16,), 2.0)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = gpu.call(MAIN, lambda: (w * x).sum())
    gpu.drop(x)
    gpu.backward(loss)
    for tensor in back:
        gpu.drop(tensor)


@case("RAW")
def an_offload_that_is_not_waited_for(gpu: Gpu, right: bool) -> None:
    offload(gpu, waits=right, notes_the_source=True, notes_the_result=True)


@case("UAF")
def an_offload_whose_source_is_freed(gpu: Gpu, right: bool) -> None:
    offload(gpu, waits=True, notes_the_source=right, notes_the_result=True)


@case("UAF")
def an_offload_whose_result_is_freed(gpu: Gpu, right: bool) -> None:
    offload(gpu, waits=True, notes_the_source=True, notes_the_result=right)


def gathers(gpu: Gpu, waits: bool, frees_in_order: bool) -> None:
    """Weights are gathered on a stream of their own, the next layer's while this one's backward runs, and freed behind it."""
    import torch

    whole: dict[int, Any] = {}

    def gather(layer: int) -> None:
        with gpu.on(SIDE):
            whole[layer] = torch.full((16,), float(layer))

    class Layer(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, layer: int) -> Any:
            ctx.layer = layer
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            if waits:
                gpu.wait(gpu.current, SIDE)
            if ctx.layer:
                gather(ctx.layer - 1)
            result = gradient * whole[ctx.layer]
            if frees_in_order:
                gpu.wait(SIDE, gpu.current)
            gpu.drop(whole.pop(ctx.layer))
            return result, None

    w = weights()
    loss = gpu.call(MAIN, lambda: Layer.apply(Layer.apply(Layer.apply(w, 0), 1), 2).sum())
    gather(2)
    gpu.backward(loss)


@case("RAW")
def weights_gathered_before_backward_and_not_waited_for(gpu: Gpu, right: bool) -> None:
    gathers(gpu, waits=right, frees_in_order=True)


@case("UAF")
def weights_gathered_before_backward_and_freed_too_early(gpu: Gpu, right: bool) -> None:
    gathers(gpu, waits=True, frees_in_order=right)


@case("UAF")
def a_gradient_that_is_smuggled_past_the_engine(gpu: Gpu, right: bool) -> None:
    """What a node returns is noted where it goes; what it leaves for another node to find is not."""
    import torch

    left: list[Any] = []

    class Gives(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            left.append(torch.full((16,), 2.0))
            return left[0] if right else torch.full((16,), 3.0)

    class Takes(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            result = left[0] * 2
            gpu.drop(left[0])
            return result

    w = weights()
    hidden = gpu.call(MAIN, Takes.apply, w)
    gpu.wait(SIDE, MAIN)
    gpu.backward(gpu.call(SIDE, lambda: Gives.apply(hidden).sum()))


@case("UAF")
def gradients_that_are_added_up(gpu: Gpu, right: bool) -> None:
    """Two branches on streams of their own: the engine adds up what they give on a third, and notes it there."""
    import torch

    given: list[Any] = []

    class Branch(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            given.append(torch.full((16,), 2.0))
            if len(given) == 2:
                gpu.wait(MAIN, SIDE)
                gpu.wait(MAIN, THIRD)
                gpu.accumulate_on = MAIN
                if not right:
                    # The program adds them up itself.
                    with gpu.on(MAIN):
                        given[0] + given[1]
                    gpu.accumulate_on = None
                    return torch.full((16,), 3.0)
            return given[-1] if right else None

    w = weights()
    trunk = gpu.call(MAIN, lambda: w * 3)
    gpu.wait(SIDE, MAIN)
    gpu.wait(THIRD, MAIN)
    branches = [gpu.call(stream, Branch.apply, trunk) for stream in (SIDE, THIRD)]
    gpu.wait(MAIN, SIDE)
    gpu.wait(MAIN, THIRD)
    gpu.backward(gpu.call(MAIN, lambda: (branches[0] + branches[1]).sum()))
    gpu.drop(given[0])
    gpu.drop(given[1])


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_of_backward_is_found(name: str) -> None:
    program, kinds = CASES[name]
    assert {race.kind for race in checked(program, False).races} == kinds


@pytest.mark.parametrize("name", CASES)
def test_its_repaired_twin_is_silent(name: str) -> None:
    program, _ = CASES[name]
    found = checked(program, True)
    assert found.races == () and found.operations, str(found)


def stages_on_streams_of_their_own(gpu: Gpu) -> None:
    """The backward of the first stage stands behind that of the second, so what it handed on may be freed."""
    import torch

    w, v = weights(), weights()
    for _ in range(3):
        x = torch.ones(16)
        gpu.wait(SIDE, MAIN)
        hidden = gpu.call(SIDE, lambda: x * w)
        gpu.wait(MAIN, SIDE)
        gpu.backward(gpu.call(MAIN, lambda: (hidden * v).sum()))
        gpu.drop(hidden)
        gpu.drop(x)


def gradients_over_several_passes(gpu: Gpu) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(4):
        gpu.backward(gpu.call(SIDE if step % 2 else MAIN, lambda: model(torch.ones(2, 8)).sum()))
        gpu.wait(SIDE, MAIN)
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
            gpu.wait(SIDE, MAIN)


def checkpoints(gpu: Gpu) -> None:
    import torch
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    gpu.wait(SIDE, MAIN)
    for reentrant in (False, True):
        x = torch.ones(2, 8, requires_grad=True)
        gpu.wait(SIDE, MAIN)
        gpu.backward(gpu.call(SIDE, lambda: checkpoint(model, x, use_reentrant=reentrant).sum()))
        gpu.drop(x.grad)
        gpu.drop(x)


def mixed_precision(gpu: Gpu) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gpu.wait(SIDE, MAIN)

    def loss(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return scaler.scale(model(x).float().sum())

    for _ in range(2):
        x = torch.ones(2, 8)
        gpu.wait(SIDE, MAIN)
        gpu.backward(gpu.call(SIDE, loss, x))
        scaler.step(optimizer)
        scaler.update()
        gpu.drop(x)


def gradients_that_are_asked_for_at_an_edge(gpu: Gpu) -> None:
    gradients_that_are_asked_for(gpu, True)


def gradients_that_are_asked_for(gpu: Gpu, at_edge: bool = False) -> None:
    """They are handed to the node of what they are asked for, which itself need not run."""
    import torch
    from torch.autograd.graph import get_gradient_edge

    given: list[Any] = []

    class Gives(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            with gpu.on(SIDE):
                given.append(torch.full((16,), 2.0))
            gpu.wait(MAIN, SIDE)
            return given[0]

    x = weights()
    gpu.wait(SIDE, MAIN)
    (gradient,) = torch.autograd.grad(Gives.apply(x).sum(), get_gradient_edge(x) if at_edge else x)
    gradient * 2
    gpu.drop(given[0])


@pytest.mark.parametrize(
    "program",
    [
        stages_on_streams_of_their_own,
        gradients_over_several_passes,
        checkpoints,
        mixed_precision,
        gradients_that_are_asked_for,
        gradients_that_are_asked_for_at_an_edge,
    ],
)
def test_ordinary_training_is_clean(program: Callable[[Gpu], None]) -> None:
    found = checked(lambda gpu, _: program(gpu), True)
    assert found.races == () and found.operations, str(found)


def test_backward_leaves_no_hook_behind() -> None:
    import torch

    w = weights()
    with checking(pretend=True) as found:
        found._recorder.event_record(1, SIDE)
        loss = (w * w).sum()
        loss.backward(retain_graph=True)
        torch.autograd.grad(loss, w, retain_graph=True)
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            for _ in range(2):
                loss.backward()
    assert not w._backward_hooks
