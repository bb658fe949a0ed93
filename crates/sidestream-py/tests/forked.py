"""Python programs, each in its own process, which need not load PyTorch first.

Loading PyTorch takes two to three seconds of CPU time, and most programs of these tests take a tenth
of a second. So one process loads it, runs nothing, and forks for each program. The program starts in the
state of a fresh interpreter after ``import torch, numpy, sidestream``. Tests of an interpreter's start or
options, or of the order of imports, must start a new interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: The forking processes, by library search path, which is fixed when a process starts.
_loaded: dict[str, subprocess.Popen[bytes]] = {}
_LIBRARIES = "LD_LIBRARY_PATH"


def python(
    *arguments: str | Path, cwd: str | Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Like ``subprocess.run([sys.executable, *arguments])``, but in a forked process. The first argument is a
    script, ``-c`` or ``-m``.
    """
    env = os.environ if env is None else env
    libraries = env.get(_LIBRARIES, "")
    if libraries not in _loaded:
        _loaded[libraries] = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, _LIBRARIES: libraries, "OMP_NUM_THREADS": "1"},
        )
        atexit.register(_end, _loaded[libraries])
    process = _loaded[libraries]
    assert process.stdin is not None and process.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        said, errors = Path(folder, "said"), Path(folder, "errors")
        request = {
            "arguments": [str(one) for one in arguments],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(env),
            "to": [str(said), str(errors)],
        }
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        status = process.stdout.readline()
        assert status, f"the process that loads PyTorch ended with {process.wait()}"
        code = os.waitstatus_to_exitcode(int(status))
        return subprocess.CompletedProcess(arguments, code, said.read_text(), errors.read_text())


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process by closing its request pipe, and wait for it, so that the CPU time of its programs
    counts as that of the tests.
    """
    if process.stdin is not None:
        process.stdin.close()
    process.wait()


def _serve() -> None:
    """Fork for each line, and write how the program ended."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    _load()
    # Objects that exist now are not garbage-collected at the end of each program.
    gc.freeze()
    for line in requests:
        with warnings.catch_warnings():
            # Since 3.12, Python warns of threads that are lost in a fork. The threads of NumPy's matrix
            # library can handle forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            requests.close()
            os.close(answers)
            _become(json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        os.write(answers, f"{status}\n".encode())


def _load() -> None:
    import sidestream  # noqa: F401

    # These modules may not be installed.
    with contextlib.suppress(ImportError):
        import numpy  # noqa: F401
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401


def _become(request: Mapping[str, Any]) -> None:
    """Run a program in this process, then do everything that an interpreter does at its end."""
    for to, name in zip((1, 2), request["to"], strict=True):
        file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, to)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, "r", closefd=False))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    arguments = request["arguments"]
    match arguments[0]:
        case "-c":
            sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
            main = types.ModuleType("__main__")
            sys.modules["__main__"] = main
            exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
        case "-m":
            sys.argv, sys.path[0] = arguments[1:], request["cwd"]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        case script:
            sys.argv, sys.path[0] = arguments, str(Path(script).resolve().parent)
            runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _serve()
