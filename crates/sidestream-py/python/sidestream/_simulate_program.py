"""Runs a program on a simulated GPU for ``sidestream diagnose --simulate``, and writes its trace."""

from __future__ import annotations

import sys
from pathlib import Path

from sidestream._simulate import simulate
from sidestream._sidestream import DeviceError
from sidestream.check import code_of


def main(device: str, trace: str, host: str, shapes: str, *program: str) -> int:
    """Return the program's exit code, or 2 if it cannot run."""
    is_module = program[0] == "-m"
    words = list(program[is_module:])
    try:
        if not is_module and not Path(words[0]).exists():
            raise FileNotFoundError(f"there is no file {words[0]}; name a script, or a module with -m")
        with simulate(device, shapes=bool(shapes), host=host or None) as simulated:
            simulated.keep()
            code, _ = code_of(words, is_module)
            if not simulated.has_run:
                print("sidestream: the program ran nothing on a GPU", file=sys.stderr)
                return code or 2
            simulated.trace(trace)
    except ModuleNotFoundError as error:
        print(f"sidestream: {error}; pip install torch", file=sys.stderr)
    except (DeviceError, OSError, RuntimeError) as error:
        print(f"sidestream: {error}", file=sys.stderr)
    else:
        return code
    return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
