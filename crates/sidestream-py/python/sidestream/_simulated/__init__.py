"""A simulated GPU for PyTorch programs: operators run on the CPU; streams, events and memory are modelled.

The tensors are CPU tensors, so all of PyTorch works on them; tensors with a marked storage report `cuda` as
their device (`tensor.py`). A check observes what it would observe on a GPU: operators and the stream that
each runs on (`operators.py`, `engine.py` for backward), events (`streams.py`), the addresses that PyTorch's
allocator would return (`allocator.py`), and captured graphs (`graphs.py`). Work takes no time on a simulated
device, which is never behind the host: results are those of a program without races, regardless of what the
check reports.
"""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from sidestream._check_changes import put
from sidestream._simulated import (
    autocast,
    device,
    engine,
    graphs,
    operators,
    refusals,
    runtime,
    streams,
    tensor,
)
from sidestream._simulated.allocator import DeviceAllocator


#: Numbers of the simulations of this process. Tensors and events may outlive their simulation, and do not
#: belong to the next one.
_numbers = itertools.count()


class Simulation:
    """A simulated machine with some GPUs."""

    def __init__(self, count: int, shapes: bool = False) -> None:
        self.streams = streams.Streams(count)
        first = next(_numbers) * count
        self.allocators = [DeviceAllocator(index, self.streams, first + index) for index in range(count)]
        self.refusals = refusals.Refusals()
        self.runtime = runtime.Runtime(self.streams, self.allocators, self.refusals.refused)
        self.operators = operators.Operators(self.streams, self.allocators, self.refusals.refused)
        if shapes:
            self.operators.home = torch.device("meta")

    @property
    def skipped(self) -> tuple[str, ...]:
        """Features that the program requested and a simulation does not have."""
        return tuple(self.refusals.skipped)

    def plan(self, func: Any) -> Any:
        """Return the plan of an operator, for the recorder. The plan calls this simulation."""
        return self.operators.plan(func)


@contextlib.contextmanager
def simulated(
    count: int = 1, *, shapes: bool = False, name: str = device.PROPERTIES["name"]
) -> Iterator[Simulation]:
    """While this is entered, PyTorch finds ``count`` simulated GPUs of a name. With ``shapes``, the tensors
    on them have shapes and no values.

    Raises:
        RuntimeError: The process already uses a real GPU.
    """
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "PyTorch already uses a GPU in this process; simulate in a separate process, before the first "
            "use of CUDA"
        )
    simulation = Simulation(count, shapes)
    with contextlib.ExitStack() as stack:
        for owner, attributes in _replaced(simulation, name):
            for name, value in attributes.items():
                put(stack, owner, name, value)
        if shapes:
            put(stack, torch.nn.Module, "_apply", _keeping(torch.nn.Module._apply))
        simulation.refusals.install(stack)
        try:
            yield simulation
        finally:
            simulation.streams.is_over = True
            torch.cuda.graph.default_capture_stream = None


def _replaced(simulation: Simulation, name: str) -> list[tuple[Any, dict[str, Any]]]:
    """Return the attributes that are replaced while a GPU is simulated, with their owners."""
    all_streams, allocators = simulation.streams, simulation.allocators
    stream, external, event = streams.classes(all_streams)
    classes = {"Stream": stream, "ExternalStream": external, "Event": event}
    classes["CUDAGraph"] = graphs.graph_class(all_streams, allocators)
    core = device.of_core(all_streams, allocators)
    registered = simulation.runtime.is_registered
    of_tensor = tensor.attributes(all_streams, registered)
    generator = _generator(all_streams)
    of_any_device = {
        "Stream": streams.of_any_device(torch.Stream, stream),
        "Event": streams.of_any_device(torch.Event, event),
    }
    return [
        (torch._C, core),
        (
            torch.cuda,
            {
                **device.of_module(all_streams, allocators, core, classes, name),
                "_cudart": simulation.runtime,
            },
        ),
        (torch.cuda.streams, {name: classes[name] for name in ("Stream", "ExternalStream", "Event")}),
        (
            torch.cuda.graphs,
            {
                "CUDAGraph": classes["CUDAGraph"],
                "_cuda_isCurrentStreamCapturing": lambda: all_streams.here.capture is not None,
            },
        ),
        (torch.cuda.nvtx, {"_nvtx": _Nothing()}),
        (torch.backends.cuda, {"is_built": lambda: True}),
        (torch.backends.cudnn, {"is_acceptable": lambda tensor: False}),
        (
            torch.accelerator,
            {
                "is_available": lambda: True,
                "device_count": lambda: all_streams.count,
                "current_stream": lambda device=None: torch.cuda.current_stream(device),
            },
        ),
        (torch.version, {"cuda": torch.version.cuda or "13.0"}),
        (torch.Tensor, of_tensor),
        (
            torch.UntypedStorage,
            tensor.storage_attributes(
                all_streams, simulation.operators.adopt_storage, registered, simulation.operators.home
            ),
        ),
        (
            torch,
            {
                **tensor.functions(of_tensor["to"], generator),
                **of_any_device,
                "compile": _compile(simulation),
            },
        ),
        *autocast.functions(),
        (torch.autograd.profiler.profile, {"__init__": _profile(torch.autograd.profiler.profile.__init__)}),
        (
            torch.autograd,
            {"_engine_run_backward": engine.run_backward(all_streams, torch.autograd._engine_run_backward)},
        ),
    ]


def _generator(all_streams: streams.Streams) -> type:
    """Return the replacement for ``torch.Generator``: a device generator draws as the CPU generator does."""
    plain: Any = torch._C.Generator

    # Since PyTorch 2.15 the class has its own metaclass.
    class Kind(type(plain)):  # type: ignore[misc]
        def __instancecheck__(cls, thing: Any) -> bool:
            return type.__instancecheck__(plain, thing)

        def __call__(cls, device: Any = "cpu") -> Any:
            named = torch.device(device)
            if named.type != "cuda":
                return plain(device)
            made = type.__call__(cls)
            made.of = all_streams.device_of(named)
            return made

    class Generator(plain, metaclass=Kind):  # type: ignore[misc]
        of: Any = None

        @property
        def device(self) -> Any:
            return self.of

    return Generator


def _profile(init: Callable[..., None]) -> Callable[..., None]:
    """Restrict PyTorch's profiler to the CPU, since it would query the driver about the device."""

    def __init__(self: Any, *args: Any, **options: Any) -> None:
        options.pop("use_cuda", None)
        init(self, *args, **{**options, "use_device": None})

    return __init__


def _keeping(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Let a module keep its parameters when it moves between the CPU and ``meta``, unless others refer to
    them in a way that forbids it.
    """

    def _apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        try:
            torch.__future__.set_swap_module_params_on_conversion(True)
            return apply(self, *args, **kwargs)
        except RuntimeError as error:
            if "Couldn't swap" not in str(error):
                raise
            torch.__future__.set_swap_module_params_on_conversion(False)
            return apply(self, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swaps)

    return _apply


def _compile(simulation: Simulation) -> Callable[..., Any]:
    """Return the replacement for ``torch.compile``: the operators run one by one."""

    def compile(model: Any = None, *, mode: Any = None, options: Any = None, **other: Any) -> Any:
        if model is None:
            return lambda later: compile(later, mode=mode, options=options, **other)
        timing = simulation.operators.timing
        if timing is None or other.get("disable") or other.get("backend", "inductor") != "inductor":
            return model
        has_graph = mode in ("reduce-overhead", "max-autotune") or (options or {}).get("triton.cudagraphs")
        return timing.fusion.compiled(model, bool(has_graph))

    return compile


class _Nothing(types.SimpleNamespace):
    """Accepts every call and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: 0
