"""Programs that torch.compile makes: the check runs them in their compiled form.

PyTorch does not run a compiled function while a dispatch mode is entered, unless the mode declares that it is
ignored in compiling. The recorder declares that if PyTorch asks. The operators of a compiled program are then
observed as usual. The kernels that were generated for it are not operators, and are observed at their launch:
Triton's in `_check_triton`, those in C++ for the CPU are observed here.
"""

from __future__ import annotations

import contextlib
import functools
import re
from types import ModuleType
from typing import Any

from sidestream._check_changes import Changes, InPlaceOf
from sidestream._check_triton import by_name, when_imported
from sidestream._sidestream import Recorder

#: The parameters of a generated function: const pointers are read; others may be read and are written.
_FUNCTION = re.compile(r'extern "C"\s+void\s+(\w+)\s*\(([^)]*)\)')
_PARAMETER = re.compile(r"(const\s+)?[\w:]+\s*(\*)?\s*(?:__restrict__\s+)?(\w+)\s*$")


def compiled_heard(recorder: Recorder, stack: contextlib.ExitStack) -> None:
    """While the stack is open, generated kernels in C++ are observed when they run. On a simulated GPU they
    replace the GPU's kernels.
    """
    _listening.append(recorder)
    stack.callback(_listening.remove, recorder)

    def changes(module: ModuleType) -> Changes:
        compiler, later = module.__dict__["AsyncCompile"], module.__dict__["LambdaFuture"]
        plain = compiler.cpp_pybinding

        @functools.wraps(plain)
        def cpp_pybinding(self: Any, argtypes: list[str], source_code: str) -> Any:
            made = plain(self, argtypes, source_code)
            if isinstance(made, later):
                return later(lambda: _Kernel(made.result(), source_code))
            return _Kernel(made, source_code)

        yield compiler, "cpp_pybinding", cpp_pybinding

    when_imported({"torch._inductor.async_compile": changes}, stack)


#: The recorders that are entered: a function that was compiled during an earlier check is also observed in
#: later ones.
_listening: list[Recorder] = []


class _Kernel(InPlaceOf):
    """A generated function."""

    def __init__(self, plain: Any, source: str) -> None:
        super().__init__(plain)
        found = _FUNCTION.search(source)
        self._name = found[1] if found and found[1] != "kernel" else "compiled kernel"
        self._pointers: dict[str, tuple[bool, bool]] = {}
        self._names: list[str] = []
        for parameter in found[2].split(",") if found else ():
            if read := _PARAMETER.search(parameter.strip()):
                self._names.append(read[3])
                if read[2]:
                    # The name shows a pointer that is only stored to: that of a result.
                    self._pointers[read[3]] = (
                        bool(read[1]) or not read[3].startswith("out_ptr"),
                        not read[1],
                    )

    def __call__(self, *args: Any) -> Any:
        done = self._plain(*args)
        for recorder in _listening:
            values = dict(zip(self._names, args, strict=False))
            recorder.launched(self._name, by_name(values, self._pointers, frozenset(), False), uses_each=True)
        return done
