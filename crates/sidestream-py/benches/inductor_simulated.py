"""Lets torch.compile run on a simulated GPU, for `inductor_gpu.py --simulate`.

Dynamo and Inductor see a GPU, and generate the code for it that calls kernels, streams and events. Only the
kernels are others: Inductor's backend for the CPU writes them in C++.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import sidestream._check
import torch
import torch._dynamo.device_interface
import torch._dynamo.guards
import torch._dynamo.utils
import torch._functorch._aot_autograd.streams
import torch._subclasses.fake_tensor
import torch.utils._triton
from sidestream._check import checking
from sidestream._simulated import simulated as simulated_gpu


@contextlib.contextmanager
def simulated(bench: Any) -> Iterator[None]:
    """Let all checks of the bench use one simulated GPU."""
    with simulated_gpu(1) as simulation:
        sidestream._check._simulated = lambda count: contextlib.nullcontext(simulation)
        bench.check = lambda: checking(simulate=1)
        # Kernels in C++ are observed if they were compiled during a check.
        bench.warm = bench.check
        _dynamo()
        _inductor(bench.order)
        yield


def _dynamo() -> None:
    plain, stream = torch.cuda.Event, torch.cuda.Stream

    class Event(torch.Event):
        """Dynamo knows only classes that derive from this one."""

        def __new__(cls, *_: Any, **__: Any) -> Any:
            return torch.Event.__new__(cls, device="cuda")

        def __init__(self, enable_timing: bool = False, *_: Any, **__: Any) -> None:
            self.plain = plain(enable_timing)

        def record(self, stream: Any = None) -> None:
            self.plain.record(stream)

        def wait(self, stream: Any = None) -> None:
            self.plain.wait(stream)

        def synchronize(self) -> None:
            self.plain.synchronize()

        def query(self) -> bool:
            return bool(self.plain.query())

    def record_event(self: Any, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def current(device: Any = None) -> Any:
        index = -1 if device is None or device.index is None else device.index
        handle = torch._C._cuda_getCurrentStream(index)[0]
        return stream(stream_id=handle, device_index=0, device_type=1)

    stream.record_event = record_event
    torch.cuda.Event = torch.cuda.streams.Event = Event
    for name in ("_exchange_device", "_maybe_exchange_device"):
        # Dynamo registers a handler for each, and refuses two for one function.
        swap = getattr(torch.cuda, name)
        setattr(torch.cuda, name, lambda device, swap=swap: swap(device))
    interface = torch._dynamo.device_interface.CudaInterface
    interface.Event, interface.Stream = Event, stream
    for module in (torch._dynamo.utils, torch._dynamo.guards):
        if hasattr(module, "get_current_stream"):
            module.get_current_stream = torch._dynamo.disable(current)
    torch._dynamo.utils.build_stream = torch._dynamo.disable(lambda args, options: stream(*args, **options))
    torch._dynamo.utils.build_event = torch._dynamo.disable(lambda args, options: Event(*args, **options))
    torch._subclasses.fake_tensor.init_gpu_context = lambda device: None
    # The time of a node would be estimated from Triton's driver.
    torch._functorch._aot_autograd.streams.get_roofline_estimate = lambda node: 1.0
    torch.cuda._get_device_properties = torch.cuda.get_device_properties
    interface.get_device_properties = staticmethod(torch.cuda.get_device_properties)


def _inductor(order: Any) -> None:
    import torch._inductor.config as config
    import torch._inductor.fx_passes.joint_graph as joint
    import torch._inductor.fx_passes.post_grad as post
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codegen.common import init_backend_registration, register_backend_for_device
    from torch._inductor.codegen.cpp import CppScheduling
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    config.loop_ordering_after_fusion = config.joint_graph_constant_folding = False
    if hasattr(config.triton, "mix_order_reduction"):
        config.triton.mix_order_reduction = False
    # The patterns are traced with tensors of a real GPU.
    joint.lazy_init = post.lazy_init = lambda *_, **__: None

    class Scheduling(CppScheduling):
        """Each kernel is called where Inductor's backend for Triton calls it, not with later ones."""

        def codegen_node(self, node: Any) -> None:
            super().codegen_node(node)
            self.flush()

    init_backend_registration()
    register_backend_for_device("cuda", Scheduling, PythonWrapperCodegen)
    torch.utils._triton.triton_hash_with_backend = lambda *_, **__: "none"
    torch._C._dynamo.guards._empty_strided_cuda = lambda size, stride, dtype: torch.empty_strided(
        size, stride, dtype=dtype, device="cuda"
    )
    plain = AsyncCompile.cpp_pybinding

    class Kernel:
        """A kernel in C++ that is called as generated code calls one for a GPU: with its stream."""

        def __init__(self, made: Any) -> None:
            self.made = made

        def __getattr__(self, name: str) -> Any:
            def call(*args: Any) -> None:
                if not callable(self.made):
                    self.made = self.made.result()
                stream = torch.cuda.Stream(stream_id=args[-1].value or 0, device_index=0, device_type=1)
                with torch.cuda.stream(stream):
                    self.made(*args[:-1])
                names = self.made._names
                written = [(tensor, self.made._pointers[name][1]) for name, tensor in zip(names, args)]
                order.launched(name, written, stream.cuda_stream)

            return call

    def cpp_pybinding(self: Any, types: Any, source: str) -> Any:
        # The check replaces this function while it is entered, and wraps what it returns.
        return Kernel(heard(self, types, source))

    def heard(self: Any, types: Any, source: str) -> Any:
        from sidestream._check_compiled import _Kernel

        made = plain(self, types, source)
        return _Kernel(made.result() if not callable(made) else made, source)

    AsyncCompile.cpp_pybinding = cpp_pybinding
