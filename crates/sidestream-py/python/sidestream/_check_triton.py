"""Kernels that are not operators: Triton and CuPy kernel launches, with their tensors.

The intermediate representation of a Triton kernel shows the pointers that it loads from and stores to, but
not how far. So the whole tensor counts as touched, and a race on it is a warning. A kernel that Inductor
generated stores its results in full, and uses at least a part of each argument.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from sidestream._check_changes import Changes, InPlaceOf, put
from sidestream._check_threads import in_place_of
from sidestream._sidestream import Recorder

#: A tensor, whether it is read and written, and the name of the argument if possibly only a part of it is
#: touched.
Given = list[tuple[Any, bool, bool, str | None]]


def kernels_heard(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """While the stack is open, the recorder observes Triton and CuPy launches, even if these libraries are
    imported later.
    """
    import torch

    if torch.cuda.Stream.__module__.startswith("sidestream."):
        # On a simulated GPU, launches are refused with the kernel's name.
        return
    heard = _Kernels(recorder)
    stack.callback(heard.end)
    wanted = {
        "triton.runtime.jit": heard.of_triton,
        "torch._inductor.runtime.triton_heuristics": heard.of_inductor,
        "cupy": heard.of_cupy,
    }
    when_imported(wanted, stack)


def when_imported(wanted: Mapping[str, Callable[[ModuleType], Changes]], stack: contextlib.ExitStack) -> None:
    """Make changes in modules, now or when they are imported while the stack is open."""

    def change(name: str, module: ModuleType) -> None:
        for owner, attribute, value in wanted[name](module):
            put(stack, owner, attribute, value)

    for name in [name for name in wanted if name in sys.modules]:
        change(name, sys.modules[name])
    finder = _Finder(wanted, change)
    sys.meta_path.insert(0, finder)
    stack.callback(sys.meta_path.remove, finder)


class _Finder(importlib.abc.MetaPathFinder):
    """Calls a function after one of the modules has been imported."""

    def __init__(self, names: Mapping[str, Any], imported: Callable[[str, ModuleType], None]) -> None:
        self.names = names
        self.imported = imported

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                if self in sys.meta_path:
                    self.imported(name, module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class _Kernels:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder: Recorder | None = recorder
        #: Called before a launch, if the recorder delays some.
        self._launching: Callable[[str], None] = getattr(recorder, "launching", lambda name: None)
        #: The class that replaces CuPy's `RawKernel`.
        self.cupy_kernel: type[Any] = _CupyKernel

    def end(self) -> None:
        self._recorder = None

    def of_triton(self, module: ModuleType) -> Changes:
        plain = module.__dict__["JITFunction"].run

        @functools.wraps(plain)
        def run(function: Any, *args: Any, **kwargs: Any) -> Any:
            grid = kwargs.get("grid")
            if callable(grid):
                # Call the grid function once and keep its result: another call might return another grid.
                asked, answers = grid, []

                def asks(*asking: Any) -> Any:
                    answers.append(asked(*asking))
                    return answers[-1]

                kwargs["grid"] = asks
            if not kwargs.get("warmup"):
                self._launching(_name(function))
            kernel = plain(function, *args, **kwargs)
            if self._recorder is not None and not kwargs.get("warmup") and kernel is not None:
                values = _bound(function, args, kwargs)
                if callable(grid):
                    grid = answers[-1] if answers else None
                self._recorder.launched(
                    _name(function), _given(values, _pointers(kernel)), stored=stored(kernel, values, grid)
                )
            return kernel

        yield module.__dict__["JITFunction"], "run", run

    def of_inductor(self, module: ModuleType) -> Changes:
        plain = module.__dict__["CachingAutotuner"].run

        @functools.wraps(plain)
        def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            self._launching(_name(tuner.fn))
            result = plain(tuner, *args, **kwargs)
            if self._recorder is not None:
                signature = (getattr(tuner, "triton_meta", None) or {}).get("signature") or {}
                values = dict(zip(signature, args, strict=False))
                values.update({name: value for name, value in kwargs.items() if name in signature})
                mutated = frozenset(getattr(tuner, "mutated_arg_names", None) or ())
                custom = bool(getattr(tuner, "custom_kernel", False))
                given = by_name(values, _pointers(_binary(tuner)), mutated, custom)
                # Generated code may have asked for its stream before it entered another one.
                device = next(
                    (tensor.device.index for tensor, *_ in given if tensor.device.index is not None), 0
                )
                stream = kwargs.get("stream")
                self._recorder.launched(
                    _name(tuner.fn),
                    given,
                    None if stream is None else (device, int(stream)),
                    uses_each=not custom,
                )
            return result

        yield module.__dict__["CachingAutotuner"], "run", run

    def of_cupy(self, module: ModuleType) -> Changes:
        """Observe CuPy's kernels in CUDA C++. CuPy's classes cannot be changed, so other classes replace them
        under their names.
        """
        heard = self
        for name, base in (("RawKernel", _CupyKernel), ("RawModule", _CupyModule)):
            plain = module.__dict__[name]

            def make(self: Any, *args: Any, base: Any = base, plain: Any = plain, **kwargs: Any) -> None:
                base.__init__(self, plain(*args, **kwargs), heard, module)

            kind = in_place_of(name, plain, base, make)
            self.cupy_kernel = kind if base is _CupyKernel else self.cupy_kernel
            yield module, name, kind

    def cupy_launched(self, kernel: Any, args: Sequence[Any], module: Any) -> None:
        if self._recorder is None:
            return
        stream = module.cuda.get_current_stream()
        device = int(module.cuda.Device().id)
        given: Given = []
        for at, value in enumerate(args):
            pointer = getattr(getattr(value, "data", None), "ptr", None)
            if pointer is not None:
                # The array may have gaps, and may be a view of a larger one.
                bytes_ = (
                    sum((n - 1) * abs(s) for n, s in zip(value.shape, value.strides, strict=True))
                    + value.itemsize
                    if value.size
                    else 0
                )
                given.append(((int(pointer), bytes_, device), True, True, f"number {at}"))
            elif hasattr(value, "data_ptr"):
                given.append((value, True, True, f"number {at}"))
        self._recorder.launched(str(getattr(kernel, "name", "kernel")), given, (device, int(stream.ptr)))


class _Cupy(InPlaceOf):
    def __init__(self, plain: Any, heard: _Kernels, module: Any) -> None:
        super().__init__(plain)
        self._heard, self._module = heard, module


class _CupyKernel(_Cupy):
    def __call__(self, grid: Any, block: Any, args: Any, **kwargs: Any) -> Any:
        result = self._plain(grid, block, args, **kwargs)
        self._heard.cupy_launched(self._plain, args, self._module)
        return result


class _CupyModule(_Cupy):
    def get_function(self, name: str) -> Any:
        kernel = object.__new__(self._heard.cupy_kernel)
        _CupyKernel.__init__(kernel, self._plain.get_function(name), self._heard, self._module)
        return kernel


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", None) or "kernel")


def _bound(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a kernel by name."""
    names = list(function.signature.parameters)
    values = {name: parameter.default for name, parameter in function.signature.parameters.items()}
    values.update(zip(names, args, strict=False))
    values.update({name: value for name, value in kwargs.items() if name in values})
    return values


#: For each parameter by name: whether the kernel loads from it, and stores to it.
Pointers = dict[str, tuple[bool, bool]]


def _pointers(kernel: Any) -> Pointers | None:
    """Return how a compiled kernel uses its pointers; None if that cannot be read."""
    if kernel is None:
        return None
    known: tuple[Pointers | None] | None = getattr(kernel, "_sidestream_pointers", None)
    if known is not None:
        return known[0]
    text, signature = _compiled(kernel)
    found = None if text is None else pointers_of(text, signature)
    with contextlib.suppress(AttributeError):
        kernel._sidestream_pointers = (found,)
    return found


def _compiled(kernel: Any) -> tuple[str | None, Mapping[Any, Any] | None]:
    """Return the intermediate representation of a kernel, and the types of its parameters, where known."""
    asm: Any = getattr(kernel, "asm", None)
    text = asm.get("ttir") if hasattr(asm, "get") else None
    return text if isinstance(text, str) else None, getattr(getattr(kernel, "src", None), "signature", None)


def pointers_of(text: str, signature: Mapping[Any, Any] | None) -> Pointers | None:
    """Return for each parameter whether the intermediate representation loads from it, and stores to it.

    Args:
        text: The representation.
        signature: The type of each parameter by name, where known: constants are not arguments of the
            function.
    """
    read = Recorder.pointers(text)
    if read is None:
        return None
    count, pointers = read
    if names := _names(count, signature):
        return {names[at]: (loads, stores) for at, _, loads, stores in pointers}
    return {name: (loads, stores) for _, name, loads, stores in pointers}


#: Maximum number of results that are cached for a kernel: for arguments that differ at each launch, more are
#: not worth keeping.
_KEPT = 64


def stored(kernel: Any, values: Mapping[str, Any], grid: Any) -> list[tuple[Any, int, int]]:
    """Return the memory that a compiled kernel certainly stores in a launch: the tensor, and the first byte
    and one past the last, relative to the tensor's address.
    """
    text, signature = _compiled(kernel)
    shape = _grid(grid)
    if text is None or shape is None:
        return []
    scalars = {
        name: int(value)
        for name, value in values.items()
        if isinstance(value, int) and -(1 << 63) <= value < 1 << 63
    }
    known: dict[Any, list[tuple[str, int, int]]] = getattr(kernel, "_sidestream_stores", {})
    with contextlib.suppress(AttributeError):
        kernel._sidestream_stores = known
    key = (shape, *scalars.items())
    if key not in known:
        if len(known) >= _KEPT:
            return []
        read = Recorder.pointers(text)
        if read is None:
            return []
        names = _names(read[0], signature)
        called = {at: names[at] if names else name for at, name, _, _ in read[1]}
        known[key] = [
            (called[at], start, end)
            for at, start, end in Recorder.stores(text, shape, scalars, names)
            if at in called
        ]
    return [
        (values[name], start, end) for name, start, end in known[key] if hasattr(values.get(name), "data_ptr")
    ]


def _grid(grid: Any) -> tuple[int, int, int] | None:
    """Return the number of programs along each axis."""
    if (
        not isinstance(grid, (tuple, list))
        or not 1 <= len(grid) <= 3
        or not all(isinstance(count, int) and 0 <= count < 1 << 31 for count in grid)
    ):
        return None
    x, y, z = (*grid, 1, 1)[:3]
    return x, y, z


def _names(count: int, signature: Mapping[Any, Any] | None) -> list[str] | None:
    """Return the program's names for the arguments of the function, if their number matches; constants are
    not arguments.
    """
    names = [str(name) for name, kind in (signature or {}).items() if kind != "constexpr"]
    return names if len(names) == count else None


def _given(values: Mapping[str, Any], pointers: Pointers | None) -> Given:
    """Return the tensors among the arguments; each counts over its whole length."""
    given: Given = []
    # Names that the representation does not have may be any of its pointers.
    is_vague = pointers is None or any(known.startswith("arg") for known in pointers)
    for name, value in values.items():
        # A tensor descriptor, or a tensor reinterpreted as another type, has the tensor as `base`.
        tensor = (
            value if hasattr(value, "data_ptr") and hasattr(value, "stride") else getattr(value, "base", None)
        )
        if tensor is None or not hasattr(tensor, "data_ptr"):
            continue
        loads, stores = (pointers or {}).get(name, (is_vague, is_vague))
        if loads or stores:
            given.append((tensor, loads, stores, name))
    return given


def _binary(tuner: Any) -> Any:
    launchers = getattr(tuner, "launchers", None) or [None]
    return getattr(launchers[0], "bin", None)


def by_name(
    values: Mapping[str, Any], pointers: Pointers | None, mutated: frozenset[str], custom: bool
) -> Given:
    """Return the tensors among the arguments of a generated kernel. If its representation was not kept, the
    names show how the tensors are used.

    Args:
        values: The arguments.
        pointers: How the arguments are used, if that is known.
        mutated: The arguments that are written but are not new memory.
        custom: Whether the program contains the kernel itself, so that its names have no meaning.
    """
    if pointers is None:
        result = {
            name for name in values if not custom and name.startswith(("out_ptr", "in_out_ptr", "ws_ptr"))
        }
        pointers = {
            name: (not name.startswith("out_ptr") or custom, name in result or name in mutated)
            for name in values
        }

    def is_own(name: str | None) -> bool:
        # The tensor is a result, or replaces its input element by element: all of it is stored.
        return (
            not custom
            and name is not None
            and (name.startswith("in_out_ptr") or (name.startswith("out_ptr") and name not in mutated))
        )

    given = _given(values, pointers)
    return [(tensor, loads, stores, None if is_own(name) else name) for tensor, loads, stores, name in given]
