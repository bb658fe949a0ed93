"""``python -m sidestream.check script.py``: runs a program of PyTorch and says where it races.

The module can be called as the function ``sidestream.check``, whose name it has.
"""

from __future__ import annotations

import argparse
import importlib.util
import runpy
import sys
import types
from pathlib import Path
from typing import Any

from sidestream._check import MEMORY_BYTES, MOST_DEVICES, check
from sidestream._check_text import check_text


#: How the command ends if nothing was found and something was not simulated.
NOT_SIMULATED = 3


class _Callable(types.ModuleType):
    """Importing a submodule puts it in the place of the function of the same name."""

    def __call__(self, **options: Any) -> Any:
        return check(**options)


def main(arguments: list[str]) -> int:
    """Runs what the arguments name and prints the report to standard error.

    Returns 1 where a race was found, 2 where the arguments are wrong, and else what the program ends with; 3 where that is
    nothing, and something was not simulated.
    """
    parser = argparse.ArgumentParser(
        prog="python -m sidestream.check",
        usage="%(prog)s [options] (SCRIPT | -m MODULE) [arguments of the program]",
        description="Run a program of PyTorch and say where it races.",
    )
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON")
    parser.add_argument("--raise", dest="raises", action="store_true", help="raise RaceError at the first race")
    parser.add_argument("--no-stacks", action="store_true", help="do not note the places in the program")
    parser.add_argument("--memory", type=int, default=MEMORY_BYTES, metavar="BYTES", help="what the check may hold")
    parser.add_argument("--simulate", action="store_true", help="simulate the GPU: the processor runs what is for it")
    parser.add_argument("--devices", type=int, metavar="N", help="how many GPUs are simulated: 1")
    parser.add_argument("-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="run a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    program: list[str] = given.module or given.program
    if program and program[0] == "--":
        program = program[1:]
    if not program:
        parser.error("name a script, or a module with -m")
    # What can be known before the program runs is said before.
    if given.memory < 0:
        parser.error(f"--memory {given.memory}: give a number of bytes, 0 or more")
    devices = 1 if given.devices is None else given.devices
    if not 1 <= devices <= MOST_DEVICES:
        parser.error(f"--devices {devices}: give a number from 1 to {MOST_DEVICES}")
    if given.devices is not None and not given.simulate:
        parser.error("--devices says how many GPUs are simulated; give --simulate, too")
    is_module = given.module is not None
    path = Path(program[0])
    is_folder = (path / "__main__.py").is_file()
    suffix = "" if is_module or is_folder else path.suffix
    if suffix in (".yaml", ".yml"):
        parser.error(f"{program[0]} is a stream program; `sidestream check {program[0]}` checks these")
    if suffix in (".json", ".gz", ".sqlite"):
        parser.error(f"{program[0]} is a trace; `sidestream diagnose {program[0]}` says why the GPU idled there")
    if is_module and not _is_module(program[0]):
        parser.error(f"there is no module {program[0]}; name one that `python -m` finds, or a script without -m")
    if not is_module and not (path.is_file() or is_folder):
        parser.error(f"there is no file {program[0]}; name a script, or a module with -m")
    if given.json:
        try:
            Path(given.json).write_text("", encoding="utf-8")
        except OSError as error:
            parser.error(f"--json {given.json}: {error.strerror}")
    if suffix == ".md":
        if not given.simulate:
            parser.error(f"{program[0]} is a text; its blocks of Python are checked with --simulate")
        if given.json or given.raises:
            parser.error("a text has a report for each of its blocks; leave out --json and --raise")
        return check_text(path, devices, not given.no_stacks, given.memory)
    code = 0
    with check(
        on_race="raise" if given.raises else "report",
        stacks=not given.no_stacks,
        memory=given.memory,
        simulate=devices if given.simulate else 0,
    ) as found:
        try:
            _run(program, is_module)
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
            if isinstance(exit_.code, str):
                print(exit_.code, file=sys.stderr)
        except BaseException as error:
            # As Python itself ends, and as a shell says that of SIGINT.
            code = 130 if isinstance(error, KeyboardInterrupt) else 1
            if str(error) in found.skipped:
                code = NOT_SIMULATED
            # Printed here, so that the report comes last.
            shown = error.with_traceback(_of_program(error.__traceback__))
            sys.excepthook(type(shown), shown, shown.__traceback__)
    print(found, file=sys.stderr)
    if given.json:
        Path(given.json).write_text(found.json() + "\n", encoding="utf-8")
    if not found.is_clean:
        return 1
    return code or (NOT_SIMULATED if found.skipped else 0)


def _is_module(name: str) -> bool:
    sys.path.insert(0, "")
    try:
        # Not the module itself: to find it would import its package before anything is heard.
        return importlib.util.find_spec(name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path.remove("")


def _of_program(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Leave out what stands above the program."""
    here = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in here:
        trace = trace.tb_next
    return trace


def _run(program: list[str], is_module: bool) -> None:
    sys.argv = list(program)
    if is_module:
        sys.path.insert(0, "")
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
else:
    sys.modules[__name__].__class__ = _Callable
