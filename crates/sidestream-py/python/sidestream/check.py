"""``python -m sidestream.check script.py``: runs a PyTorch program and reports its races.

Importing this module replaces the function ``sidestream.check`` of the same name, so the module can be called
like it.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib.util
import os
import re
import runpy
import signal
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sidestream import _check_fix, _check_reduce
from sidestream._check import MEMORY_BYTES, MOST_DEVICES, CheckedRun, check, checking
from sidestream._check_baseline import Baseline, counted, written
from sidestream._check_export import Reports, distinct, findings, put, usable
from sidestream._check_hooks import Steps
from sidestream._check_suppress import suppressions
from sidestream._check_text import check_text
from sidestream._check_threads import HEARD
from sidestream._sidestream import RaceError
from sidestream._system import after_forks, flush_c

# The contents of `help(sidestream.check)`, once this module has been imported.
__all__ = ["check"]

#: Runs, and seconds, of ``--provoke all``.
_RUNS, _SEARCH_S = 20, 60
#: Options that a Markdown file, which has several programs, cannot have.
_OF_ONE_RUN = ("fix", "reduce", "raise", "suppress", "steps", "sarif", "junit", "baseline", "write-baseline")
#: The exit code if no race was found but the program used a feature that is not simulated.
NOT_SIMULATED = 3


class _Callable(types.ModuleType):
    """A module that can be called: importing a submodule replaces the function of the same name in the
    package.
    """

    def __call__(self, **options: Any) -> Any:
        return check(**options)


def main(arguments: list[str]) -> int:
    """Run the program that the arguments name, and print the report to standard error.

    Return 1 if a race was found, 2 if the arguments are wrong, 3 if the program used a feature that is not
    simulated but otherwise ended well, and otherwise the program's exit code.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    program = _program(parser, given)
    rank = _rank()
    # Errors that can be detected before the program runs are reported before it starts.
    try:
        suppress = () if given.suppress is None else suppressions(given.suppress)
    except OSError as error:
        parser.error(f"--suppress {given.suppress}: {error.strerror}")
    except ValueError as error:
        parser.error(f"--suppress: {error}")
    baseline = _baseline(parser, given, rank)
    steps = None if given.steps is None else _steps(parser, given.steps)
    if given.require_gpu and given.simulate:
        parser.error("--require-gpu needs a GPU, and --simulate simulates one; give one of the two")
    if given.require_gpu and not _has_gpu():
        parser.error("--require-gpu: PyTorch finds no GPU here")
    if given.provoke is not None and not (given.simulate or _has_gpu()):
        parser.error("--provoke needs a GPU, and PyTorch finds none; with --simulate it needs none")
    devices = 1 if given.devices is None else given.devices
    if not 1 <= devices <= MOST_DEVICES:
        parser.error(f"--devices {devices}: give a number from 1 to {MOST_DEVICES}")
    if given.devices is not None and not given.simulate:
        parser.error("--devices sets the number of simulated GPUs; add --simulate")
    is_module = given.module is not None
    path = Path(program[0])
    is_folder = (path / "__main__.py").is_file()
    suffix = "" if is_module or is_folder else path.suffix
    if suffix in (".yaml", ".yml"):
        parser.error(f"{program[0]} is a stream program; `sidestream check {program[0]}` checks these")
    if suffix in (".json", ".gz", ".sqlite"):
        parser.error(
            f"{program[0]} is a trace; `sidestream diagnose {program[0]}` says why the GPU idled there"
        )
    origin = _origin(program[0]) if is_module else program[0]
    if origin is None:
        parser.error(
            f"there is no module {program[0]}; name one that `python -m` finds, or a script without -m"
        )
    if not is_module and not (path.is_file() or is_folder):
        parser.error(f"there is no file {program[0]}; name a script, or a module with -m")
    if importlib.util.find_spec("torch") is None:
        parser.error("the check needs PyTorch, which is not installed; pip install torch")
    files = _files(parser, given, rank)
    left = None if given.reduce is None else _left(parser, given.reduce, rank)
    if suffix == ".md":
        if not given.simulate:
            parser.error(f"{program[0]} is a Markdown file; give --simulate to check its Python code blocks")
        if unfit := ", ".join(f"--{name}" for name in _OF_ONE_RUN if getattr(given, name.replace("-", "_"))):
            parser.error(f"a Markdown file has a report for each of its blocks; leave out {unfit}")
        return check_text(path, devices, not given.no_stacks, given.memory, files.get("json"))
    # A program with its own handler sets it later; then that handler decides how the program ends.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)
        # A child's own handler is set before it receives the signal.
        after_forks(_untouched, held=signal.SIGTERM)
    try:
        with (
            checking(
                getattr(given, "raise"),
                not given.no_stacks,
                given.memory,
                suppress=suppress,
                baseline=baseline,
                steps=steps,
                host=not given.no_host,
                simulate=devices if given.simulate else 0,
                log=left is not None or (given.provoke is not None and given.simulate),
            ) as found,
            _kept(reports := Reports(files, found, baseline, origin)),
        ):
            code, died = code_of(program, is_module, found)
            found._recorder.program_over()
    except RaceError as race:
        # The race was found after the program had ended.
        print(f"{type(race).__name__}: {race}", file=sys.stderr)
    if signal.getsignal(signal.SIGTERM) is _terminated:
        # The program has ended; only its report remains to be written.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The files come first, since standard error may be a closed pipe.
    if not reports.write(died):
        code = code or 2
    text = str(found) if rank is None else f"rank {rank}: {found}"
    print(text, file=sys.stderr)
    if given.require_gpu and not found.operations:
        print("nothing ran on a GPU (--require-gpu)", file=sys.stderr)
        code = code or 1
    if given.write_baseline and not _write_baseline(given.write_baseline, found, baseline):
        code = code or 2
    if left is not None:
        try:
            print(_check_reduce.write(found, left, path.stem), file=sys.stderr)
        except (OSError, RuntimeError) as error:
            print(f"--reduce {left}: {error}", file=sys.stderr)
            code = code or 2
    if given.fix and not _print_patch(found):
        code = code or 2
    if given.provoke is not None:
        text, reports.provoked = _provoked(program, is_module, found, given)
        print(text, file=sys.stderr)
        if not reports.write(died):
            code = code or 2
    # What has just been written as known does not fail.
    if found.ended is not None or not (found.is_clean or given.write_baseline):
        return 1
    return code or (NOT_SIMULATED if found.skipped else 0)


def _provoked(
    program: list[str], is_module: bool, found: CheckedRun, given: argparse.Namespace
) -> tuple[str, list[dict[str, Any]]]:
    """Run the program again with delays, and with --fix once more with the calls that fix it; return what the
    delays did to its results, as text and as data.
    """
    from sidestream._check_provoke import explored, provoke, raced

    def again() -> Any:
        with contextlib.suppress(SystemExit):
            # Numbers among a script's variables may count what it polled, or seconds.
            values = _run(program, is_module).items()
            return {name: value for name, value in values if not isinstance(value, (bool, int, float))}

    if given.simulate:
        shown = explored(found)
        return str(shown), [shown.to_dict()]
    pairs, runs = raced(found.races), given.provoke or _RUNS
    search_s = 0.0 if given.provoke else _SEARCH_S
    parts, data = [], []
    try:
        shown = provoke(again, pairs=pairs, runs=runs, search_s=search_s)
        parts, data = [str(shown)], [shown.to_dict()]
        if given.fix and pairs and shown.failed is None:
            notes, files = _check_fix.patched(found.mends, found.races)
            with _check_fix.applied(files):
                shown = provoke(again, pairs=list(pairs), runs=runs)
            parts.append(f"with the calls that fix them:\n{shown}")
            data.append(shown.to_dict())
            if notes:
                parts.append("not all calls could be placed; see the patch")
    except Exception as error:
        parts.append(f"--provoke: the program cannot be run again: {type(error).__name__}: {error}")
    return "\n".join(parts), data


def _runs(text: str) -> int:
    """Return the number of runs; 0 for a search."""
    if text != "all" and not re.fullmatch("[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"{text}: give a number of runs, 1 or more, or all")
    return 0 if text == "all" else int(text)


class _Once(argparse.Action):
    """Refuses an option that is given twice, of which one would be ignored."""

    def __call__(self, parser: Any, given: argparse.Namespace, value: Any, option: str | None = None) -> None:
        if getattr(given, self.dest) is not None:
            raise argparse.ArgumentError(self, "it cannot be used multiple times")
        setattr(given, self.dest, value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sidestream.check",
        usage="%(prog)s [options] (SCRIPT | -m MODULE) [program arguments]",
        description="Run a PyTorch program and report its races.",
        epilog=(
            f"Order between host threads is observed where they hand over by {HEARD}. Conflicting calls "
            "without such an order are reported as a warning, which does not change the exit code. Exit "
            "codes: 1 a race, or the check ended early; 2 wrong arguments, or a file that cannot be written; "
            "3 no race, but the simulated GPU refused something; otherwise the program's own."
        ),
    )
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON")
    parser.add_argument("--sarif", metavar="FILE", help="write the report as SARIF 2.1.0, for code scanning")
    parser.add_argument("--junit", metavar="FILE", help="write the report as JUnit XML, for CI servers")
    parser.add_argument(
        "--fix",
        action="store_true",
        help="print the calls that fix the races as a patch, to standard output",
    )
    parser.add_argument(
        "--provoke",
        type=_runs,
        metavar="RUNS",
        help="run the program RUNS times for each race with a delay on the GPU before its first access, and "
        "compare its results; with --fix once more with the calls that fix it. RUNS can be all: "
        f"{_RUNS} runs, or, if there is no race, a search of {_SEARCH_S} seconds that delays each operator "
        "in turn. With --simulate: run the shortest program with each race in up to 10,000 schedules, "
        "whatever RUNS is",
    )
    parser.add_argument(
        "--reduce",
        metavar="FILE",
        help="write the shortest stream program (YAML) that still has the first race",
    )
    parser.add_argument(
        "--suppress",
        action=_Once,
        metavar="FILE",
        help="findings to leave out: a line FILE:LINE REASON for each, or function:NAME, kernel:NAME",
    )
    parser.add_argument(
        "--baseline", metavar="FILE", help="known findings to leave out, as --write-baseline writes them"
    )
    parser.add_argument(
        "--write-baseline",
        metavar="FILE",
        help="write the findings of this run, which then do not change the exit code; --baseline is ignored",
    )
    parser.add_argument(
        "--steps",
        metavar="A:B",
        help="check steps A to B-1, counted from 0; a step ends with step() of the first optimizer",
    )
    parser.add_argument("--require-gpu", action="store_true", help="fail if nothing ran on a GPU")
    parser.add_argument("--raise", action="store_true", help="raise RaceError at the first race")
    parser.add_argument("--no-stacks", action="store_true", help="do not record the places in the program")
    parser.add_argument(
        "--no-host", action="store_true", help="do not observe the host's own loads and stores"
    )
    parser.add_argument(
        "--memory",
        type=_bytes,
        default=MEMORY_BYTES,
        metavar="BYTES",
        help=f"maximum memory of the check (default {MEMORY_BYTES})",
    )
    parser.add_argument("--simulate", action="store_true", help="simulate the GPU: its work runs on the CPU")
    parser.add_argument("--devices", type=int, metavar="N", help="number of simulated GPUs (default 1)")
    parser.add_argument("-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="run a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _bytes(text: str) -> int:
    if not re.fullmatch("[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text}: give a number of bytes, 0 or more, such as 1000000000")
    return int(text)


def _program(parser: argparse.ArgumentParser, given: argparse.Namespace) -> list[str]:
    """Return the program and its arguments. Warn if these include options of the check."""
    program: list[str] = given.module or given.program
    if program and program[0] == "--":
        program = program[1:]
    if not program:
        parser.error("name a script, or a module with -m")
    if given.module is None and given.program[0] != "--":
        own = {
            name for action in parser._actions for name in action.option_strings if name.startswith("--")
        } - {"--help"}
        behind = list(dict.fromkeys(name for word in program[1:] if (name := word.partition("=")[0]) in own))
        if behind:
            it, comes = ("it", "comes") if len(behind) == 1 else ("them", "come")
            print(
                f"{', '.join(behind)} {comes} after {program[0]}, so the program gets {it} and the check "
                "does not; options of the check come before the script, and -- before the script suppresses "
                "this warning",
                file=sys.stderr,
            )
    return program


def _steps(parser: argparse.ArgumentParser, text: str) -> Steps:
    bounds = re.fullmatch(r"(\d*):(\d*)", text)
    if bounds is None:
        parser.error(f"--steps {text}: give two whole numbers, as in 10:20")
    steps = Steps(int(bounds[1] or 0), int(bounds[2] or sys.maxsize))
    if steps.first >= steps.last:
        parser.error(f"--steps {text}: the first number must be less than the second, as in 10:20")
    return steps


def _of_rank(name: str, rank: int | None) -> Path:
    """Return the report file of this rank: with several ranks, each has its own."""
    file = Path(name)
    return file if rank is None else file.with_name(f"{file.stem}.rank{rank}{file.suffix}")


def _files(parser: argparse.ArgumentParser, given: argparse.Namespace, rank: int | None) -> dict[str, Path]:
    """Return the report files of this rank by format, each empty until the program starts."""
    files = {}
    for kind in ("json", "sarif", "junit"):
        if name := getattr(given, kind):
            # The program may change the current folder.
            files[kind] = _of_rank(name, rank).absolute()
            try:
                files[kind].write_text("", encoding="utf-8")
            except OSError as error:
                parser.error(f"--{kind} {name}: {error.strerror}")
    return files


def _baseline(parser: argparse.ArgumentParser, given: argparse.Namespace, rank: int | None) -> Baseline:
    known = None if given.write_baseline else given.baseline
    others = ("suppress", "write_baseline", "json", "sarif", "junit", "reduce")
    try:
        distinct(
            {"--baseline": known, **{f"--{name.replace('_', '-')}": getattr(given, name) for name in others}}
        )
    except ValueError as error:
        parser.error(str(error))
    if given.write_baseline:
        file = _of_rank(given.write_baseline, rank).absolute()
        try:
            usable(file)
        except OSError as error:
            parser.error(f"--write-baseline {given.write_baseline}: {error.strerror}")
        # The program may change the current folder.
        given.write_baseline = file
        return Baseline(file, is_read=False)
    if not given.baseline:
        return Baseline()
    file = _of_rank(given.baseline, rank)
    try:
        return Baseline(file)
    except OSError as error:
        parser.error(f"--baseline {file}: {error.strerror}; --write-baseline writes one")
    except ValueError as error:
        parser.error(f"--baseline: {error}")


def _write_baseline(file: Path, found: CheckedRun, baseline: Baseline) -> bool:
    those = set(findings(found, baseline))
    try:
        put(file, written(those))
    except OSError as error:
        print(f"the baseline cannot be written to {file}: {error}", file=sys.stderr)
        return False
    print(
        f"{counted(len(those))} written to {file.name}; with `--baseline` and this file only others fail",
        file=sys.stderr,
    )
    return True


def _left(parser: argparse.ArgumentParser, name: str, rank: int | None) -> Path:
    left = _of_rank(name, rank)
    if not left.parent.is_dir() or left.is_dir() or left.suffix == ".py":
        parser.error(
            f"--reduce {name}: name a file for a stream program, such as race.yaml, in an existing folder"
        )
    return left


def code_of(
    program: list[str], is_module: bool, found: CheckedRun | None = None
) -> tuple[int, str | None]:
    """Run the program. Return its exit code, and how it ended if by an exception."""
    try:
        _run(program, is_module)
    except SystemExit as exit_:
        if isinstance(exit_.code, str):
            print(exit_.code, file=sys.stderr)
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None), None
    except BaseException as error:
        # The error is printed here, so that the report comes after it.
        shown = error.with_traceback(_of_program(error.__traceback__))
        sys.excepthook(type(shown), shown, shown.__traceback__)
        died = f"the program ended with {type(error).__name__}; the report covers the time before that"
        print(died, file=sys.stderr)
        if found is not None and str(error) in found.skipped:
            return NOT_SIMULATED, died
        # The exit code of Python, and the one that a shell uses for SIGINT.
        return 130 if isinstance(error, KeyboardInterrupt) else 1, died
    return 0, None


def _end(code: int) -> None:
    """End the process. While Python shuts down, PyTorch still calls the callbacks for its events and memory,
    and each call prints an error. So this function runs everything that a program may have registered for its
    end, and then exits at once.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    flush_c()
    os._exit(code)


def _terminated(*_: object) -> None:
    # The exit code that a shell uses for a program that this signal ended.
    sys.exit(128 + signal.SIGTERM)


def _untouched() -> None:
    """Restore the default handler in a child, so that the program's other processes end as they would without
    the check.
    """
    if signal.getsignal(signal.SIGTERM) is _terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _rank() -> int | None:
    """Return the rank of this process, if there are several."""
    try:
        return int(os.environ["RANK"]) if int(os.environ["WORLD_SIZE"]) > 1 else None
    except (KeyError, ValueError):
        return None


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


#: Seconds between two updates of the report file while the program runs.
_SECONDS = 10.0


@contextlib.contextmanager
def _kept(reports: Reports) -> Iterator[None]:
    """Keeps the report files up to date, in case the program is killed."""
    if not reports.files:
        yield
        return
    over = threading.Event()

    def keep() -> None:
        while True:
            reports.write(running=True)
            if over.wait(_SECONDS):
                return

    thread = threading.Thread(target=keep, name="sidestream-check", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _print_patch(found: CheckedRun) -> bool:
    try:
        sys.stdout.write(found.patch())
        sys.stdout.flush()
    except OSError as error:
        print(f"--fix: the patch cannot be written: {error}", file=sys.stderr)
        return False
    return True


def _origin(name: str) -> str | None:
    """Return the file of a module or of its package; None if there is no such module."""
    sys.path.insert(0, "")
    try:
        # Look for the package, not the module itself, since finding that would import the package before the
        # check observes anything.
        spec = importlib.util.find_spec(name.partition(".")[0])
        return None if spec is None else spec.origin or name
    except (ImportError, ValueError):
        return None
    finally:
        sys.path.remove("")


def _of_program(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Remove the frames of the check from a traceback."""
    here = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in here:
        trace = trace.tb_next
    return trace


def _run(program: list[str], is_module: bool) -> dict[str, Any]:
    """Run the program; return the variables of its main module."""
    sys.argv = list(program)
    if is_module:
        sys.path.insert(0, "")
        return runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    sys.path.insert(0, str(Path(program[0]).resolve().parent))
    return runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    _end(main(sys.argv[1:]))
else:
    sys.modules[__name__].__class__ = _Callable
