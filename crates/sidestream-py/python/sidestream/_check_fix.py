"""Finds the place of a call that fixes races in the program, and returns the change as a patch."""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import importlib.machinery
import inspect
import io
import itertools
import linecache
import logging
import os
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from sidestream._sidestream import printable

if TYPE_CHECKING:
    from sidestream._checked import CheckedRace, Mend, Place

Handle = tuple[int, int]


#: The folder of this package.
PACKAGE = os.path.dirname(__file__) + os.sep
#: The folders of installed code.
LIBRARIES = [sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")]


@functools.cache
def is_library(file: str) -> bool:
    """Return whether a file is installed code, which the program cannot change."""
    parts = Path(file).parts
    return file.startswith(("<frozen", *LIBRARIES)) or "site-packages" in parts or "dist-packages" in parts


def hidden() -> list[str]:
    """Return the beginnings of the paths of files whose frames are no lines of the program."""
    import torch

    folders = [os.path.dirname(file) + os.sep for file in (torch.__file__, logging.__file__)]
    # With `logging` hidden, a log call counts as the line that reads the value.
    return [
        *folders,
        PACKAGE,
        "<frozen",
        contextlib.__file__,
        threading.__file__,
        # Code that torch.compile generates.
        os.environ.get("TORCHINDUCTOR_CACHE_DIR") or os.path.join(tempfile.gettempdir(), "torchinductor_"),
    ]


def own(stack: Sequence[Place]) -> Place | None:
    """Return the innermost line of the program's own code; if the whole program is installed code, the
    innermost line.
    """
    return next((place for place in stack if not is_library(place.file)), stack[0] if stack else None)


def own_frame(frame: FrameType | None, hidden: tuple[str, ...]) -> FrameType | None:
    """Return the innermost frame of the program's own code, from this one outwards."""
    while frame is not None and (
        frame.f_code.co_filename.startswith(hidden) or is_library(frame.f_code.co_filename)
    ):
        frame = frame.f_back
    return frame


def shown(file: str) -> str:
    """Return a path in its short form: relative, if it is below the current folder."""
    short = os.path.relpath(file) if os.path.isabs(file) else file
    return printable(file if short.startswith("..") else short)


def line(place: Place) -> str:
    """Return the file and the line in short form."""
    return f"{shown(place.file)}:{place.line}"


def source(place: Place) -> str:
    """Return the text of the line; empty if it cannot be read."""
    return linecache.getline(place.file, place.line).strip()


def namer(hidden: list[str]) -> Callable[[Handle | None, Handle | None], tuple[str | None, str | None]]:
    """Return a function that returns the program's names of two streams where a race is found."""

    def called(first: Handle | None, second: Handle | None) -> tuple[str | None, str | None]:
        try:
            frame = own_frame(sys._getframe(1), tuple(hidden))
        except ValueError:
            # The thread is one of the autograd engine, which has no Python frame.
            frame = None
        if frame is None:
            return None, None
        with _locals(frame) as names:
            return _name(first, frame, names), _name(second, frame, names)

    return called


@contextlib.contextmanager
def _locals(frame: FrameType) -> Iterator[dict[str, Any]]:
    """Yield the local variables of a frame.

    Before Python 3.13 those of a function are copied into a dictionary that the frame keeps, so that a tensor
    would outlive its ``del`` and its memory would be freed later than without the check. So the dictionary is
    emptied afterwards.
    """
    names = frame.f_locals
    try:
        yield names
    finally:
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13):
            names.clear()


def _name(stream: Handle | None, frame: FrameType, names: dict[str, Any]) -> str | None:
    if stream is None:
        return None
    device, handle = stream
    import torch

    handles = (0, 1) if handle in (0, 1) else (handle,)

    def is_it(value: Any) -> bool:
        return (
            isinstance(value, torch.cuda.Stream)
            and value.cuda_stream in handles
            and (handle > 1 or value.device_index == device)
        )

    for those in (names, frame.f_globals):
        for name, value in those.items():
            if name.isidentifier() and is_it(value):
                return name
    for name, value in names.items():
        fields = getattr(value, "__dict__", None)
        if name.isidentifier() and isinstance(fields, dict) and not isinstance(value, (type, ModuleType)):
            for field, inner in fields.items():
                if isinstance(field, str) and field.isidentifier() and is_it(inner):
                    return f"{name}.{field}"
    if handle in (0, 1):
        return "torch.cuda.default_stream()" if device == 0 else f"torch.cuda.default_stream({device})"
    if torch.cuda.is_available() and torch.cuda.current_stream(device).cuda_stream == handle:
        return "torch.cuda.current_stream()"
    return None


def patched(mends: Iterable[Mend], races: Sequence[CheckedRace]) -> tuple[str, dict[str, list[str]]]:
    """Return comments on the calls that could not be placed, and the lines of each changed file."""
    calls: dict[str, dict[tuple[int, int], list[str]]] = {}
    notes = []
    for mend in mends:
        try:
            file, (line, column), call = _placed(mend, races[mend.first])
        except _Unplaced as why:
            at = f" at {shown(mend.place.file)}:{mend.place.line}" if mend.place else ""
            notes.append(f"# not placed: {mend.call}{at}: {why}\n")
            continue
        in_loop = mend.kind == "sync" and not column and _is_in_loop(file, line)
        placed = [((line, column), call)]
        if in_loop and (by_event := _by_event(file, line, [races[at] for at in mend.races])):
            placed = by_event
        elif in_loop:
            notes.append(
                f"# {shown(file)}:{line}: `{call}` blocks the host each time, and the next check will report "
                "it as SYNC_IN_LOOP; to queue work ahead, use the memory one step later, or two pieces in "
                "turn\n"
            )
        for at_line, call in placed:
            those = calls.setdefault(file, {}).setdefault(at_line, [])
            if call not in those:
                those.append(call)
    return "".join(notes), {file: _inserted(file, by_line) for file, by_line in calls.items()}


def patch(mends: Iterable[Mend], races: Sequence[CheckedRace]) -> str:
    """Return the calls as a unified diff of the program's files, after comments on the calls that could not
    be placed.
    """
    out, files = patched(mends, races)
    for file, after in files.items():
        before = Path(file).read_text(encoding="utf-8").splitlines(keepends=True)
        name = shown(file)
        out += "".join(difflib.unified_diff(before, after, name, name))
    return out


@contextlib.contextmanager
def applied(files: Mapping[str, list[str]]) -> Iterator[None]:
    """Let modules and scripts be loaded from these lines in place of their files. No file is written."""
    loader = importlib.machinery.SourceFileLoader
    plain, plain_open = loader.get_code, io.open_code
    texts = {os.path.abspath(file): "".join(lines) for file, lines in files.items()}

    def get_code(self: Any, name: str) -> Any:
        file = self.get_filename(name)
        text = texts.get(os.path.abspath(file))
        return plain(self, name) if text is None else compile(text, file, "exec", dont_inherit=True)

    # `runpy` opens a script by this.
    def open_code(file: str) -> Any:
        text = texts.get(os.path.abspath(file))
        return plain_open(file) if text is None else io.BytesIO(text.encode())

    # Other modules of the program may hold what they imported from a changed one.
    kept = {
        name: module
        for name, module in sys.modules.items()
        if name != "__main__" and (file := getattr(module, "__file__", None)) and not is_library(file)
        and not file.startswith(PACKAGE)
    }

    def forget() -> None:
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if name in kept or (file and os.path.abspath(file) in texts):
                del sys.modules[name]
        for file in files:
            linecache.cache.pop(file, None)

    forget()
    for file, lines in files.items():
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
    setattr(loader, "get_code", get_code)
    setattr(io, "open_code", open_code)
    try:
        yield
    finally:
        setattr(loader, "get_code", plain)
        setattr(io, "open_code", plain_open)
        forget()
        sys.modules.update(kept)


def _inserted(file: str, by_line: Mapping[tuple[int, int], list[str]]) -> list[str]:
    """Return the lines of a file with calls inserted before lines, or within them."""
    before = Path(file).read_text(encoding="utf-8").splitlines(keepends=True)
    after: list[str] = []
    for number, text in enumerate(before, 1):
        indent = text[: len(text) - len(text.lstrip())]
        after += [f"{indent}{call}\n" for call in by_line.get((number, 0), ())]
        for line, column in sorted(by_line, reverse=True):
            if line == number and column:
                text = (
                    text[:column] + "".join(f"{call}; " for call in by_line[line, column]) + text[column:]
                )
        after.append(text)
    return after


class _Unplaced(Exception):
    pass


def call_by(names: tuple[str | None, str | None], kind: str) -> str | None:
    """Return the call with the names of the streams that are valid at the second access; None if no variable
    there holds the streams.
    """
    first, second = names
    if kind == "sync" and first is not None:
        return f"{first}.synchronize()"
    if kind == "wait" and first is not None and second is not None:
        return f"{second}.wait_stream({first})"
    return None


def _placed(mend: Mend, race: CheckedRace) -> tuple[str, tuple[int, int], str]:
    """Return the file, the line before which the call belongs, the column if the call belongs within the
    line, and the call.
    """
    if mend.kind == "record_stream":
        raise _Unplaced(
            f"the check does not know which variable holds {used(race)}; the call belongs before its last "
            "reference dies"
        )
    if mend.call == "work.wait()":
        raise _Unplaced("the check does not know which variable holds the work that the collective returned")
    if mend.place is None:
        raise _Unplaced("the place in the program is not known")
    call = call_by(race.names, mend.kind)
    if call is None:
        raise _Unplaced("no variable there holds the streams")
    if own(race.first.stack) == mend.place:
        raise _Unplaced("both accesses come from this line")
    if is_within(race.first.stack, mend.place):
        raise _Unplaced(
            "the first access comes from this statement, too, and a call before it would be too early; split "
            "the statement, and put the call between the two accesses"
        )
    return mend.place.file, _start(mend.place), call


def used(race: CheckedRace) -> str:
    """Return which tensor needs ``record_stream``, by what uses it."""
    by = printable(race.first.operator)
    return f"the tensor that {by} uses there" if by else "the tensor that is used there"


def is_within(stack: Sequence[Place], place: Place) -> bool:
    """Return whether the innermost call of a stack comes from a function that the statement at a place calls.
    """
    if own(stack) == place:
        return False
    lines = {one.line for one in stack if (one.file, one.function) == (place.file, place.function)}
    if not lines or place.line in lines:
        return bool(lines)
    try:
        statement = _statement(place)[1]
    except _Unplaced:
        return False
    body = getattr(statement, "body", None)
    end = body[0].lineno - 1 if body else statement.end_lineno or 0
    return any(statement.lineno <= line <= end for line in lines)


def _is_in_loop(file: str, line: int) -> bool:
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    loops = (node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While, ast.AsyncFor)))
    return any(loop.lineno < line <= (loop.end_lineno or 0) for loop in loops)


def _by_event(file: str, line: int, races: Sequence[CheckedRace]) -> list[tuple[tuple[int, int], str]] | None:
    """Return two calls: one records an event after the device's accesses, the other waits for the event
    before this line. So the host does not wait for work that is submitted in between.

    Return None if no statement is in between, or if the accesses may not all come before the line each time.
    """
    source = Path(file).read_text(encoding="utf-8")
    around = [
        block for block in _blocks(ast.parse(source)) if any(statement.lineno == line for statement in block)
    ]
    firsts = [own(race.first.stack) for race in races]
    names = {race.names[0] for race in races}
    if len(around) != 1 or len(names) != 1:
        return None
    (block,), (stream,) = around, names
    at = next(number for number, statement in enumerate(block) if statement.lineno == line)

    def index(place: Place | None) -> int | None:
        within = (
            number
            for number, statement in enumerate(block)
            if place and statement.lineno <= place.line <= (statement.end_lineno or 0)
        )
        return next(within, None) if place and place.file == file else None

    indices = [index(place) for place in firsts]
    behind = max((-1 if index is None else index for index in indices), default=-1)
    if None in indices or behind + 1 >= at:
        return None
    # The record goes before the next statement, which must begin its line.
    following = block[behind + 1]
    before = source.splitlines()[following.lineno - 1][: following.col_offset]
    if before.strip() or hasattr(following, "decorator_list"):
        return None
    name = next(
        name for number in itertools.count() if (name := f"done_{number}" if number else "done") not in source
    )
    return [
        ((following.lineno, 0), f"{name} = {stream}.record_event()"),
        ((line, 0), f"{name}.synchronize()"),
    ]


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements that run one after another."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield block


def _statement(place: Place) -> tuple[str, ast.stmt]:
    """Return the text of the file, and the statement before which a call for this line belongs."""
    try:
        source = Path(place.file).read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError):
        raise _Unplaced("its source cannot be read") from None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= place.line <= (node.end_lineno or node.lineno)
    ]
    if not around:
        raise _Unplaced("no statement is there; has the file changed since?")
    statement = max(around, key=lambda node: (node.lineno, node.col_offset))
    # If several statements share a line, the call goes before the first: it is not known which of them made
    # the access.
    block = next(block for block in _blocks(tree) if statement in block)
    return source, next(each for each in block if each.lineno == statement.lineno)


def _start(place: Place) -> tuple[int, int]:
    """Return the first line of the statement, if a call can be inserted before it, and the column if it
    begins within the line.
    """
    source, statement = _statement(place)
    text = source.splitlines()[statement.lineno - 1]
    before = text.encode()[: statement.col_offset].decode()
    is_header = isinstance(statement, (ast.With, ast.If)) or not hasattr(statement, "body")
    if not is_header:
        raise _Unplaced("it is the head of a loop or a definition, before which a call would run only once")
    if before.strip():
        return statement.lineno, len(before)
    if isinstance(statement, ast.If) and not text.lstrip().startswith("if"):
        raise _Unplaced("it is the condition of an elif")
    return statement.lineno, 0
