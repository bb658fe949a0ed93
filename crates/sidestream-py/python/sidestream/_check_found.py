"""Finds Python programs in a document whose code blocks are not marked: lines that parse as code. Lost
indentation is rebuilt.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

#: The head of a statement with a suite.
_HEAD = re.compile(r"(?:async +)?(?:for|while|with|if|elif|else|try|except|finally|def|class)\b")
_DEFINES = re.compile(r"(?:async +)?def\b|class\b|@")
#: Statements after which no other follows in the same suite.
_ENDS = re.compile(r"(?:return|break|continue|raise)\b")
#: Positions at which prose is glued to the end of a line of code.
_GLUED = re.compile(r"(?<=[)\]\"'])(?=[A-Za-z(])|(?<=\bpass)(?=[A-Z])|(?<=\bbreak)(?=[A-Z])")
#: A comment with a heading glued to its end.
_GLUED_HEADING = re.compile(r"#.*[a-z][A-Z][a-z]+ \w+:$")
#: Maximum number of lines of a statement.
_MOST_LINES = 60


def found(text: str) -> list[tuple[int, str]]:
    """Return the programs that use torch, each with the number of lines before it."""
    lines = list(_unmarked(text.expandtabs(4).splitlines()))
    programs: list[tuple[int, str]] = []
    at = 0
    while at < len(lines):
        run = _Run(lines, at)
        if not run.statements:
            at += 1
            continue
        source = run.source()
        if re.search(r"\btorch\b", source) and _parses(source):
            programs.append((at, source))
        at = run.end
    return programs


def _unmarked(lines: list[str]) -> Iterator[str]:
    """Yield the lines. Lines of blocks that are marked as another language are replaced by a line that is not
    code.
    """
    marked, inside = False, False
    for line in lines:
        if line.strip().startswith("```"):
            inside = not inside
            marked = inside and line.strip() != "```"
            yield "|"
        else:
            yield "|" if marked else line


def _parses(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_code(source: str, inside: bool) -> bool:
    """Return whether a statement does something: a word of prose parses, too."""
    if re.search(r";\s*$", source):
        return False
    head = source.rstrip().endswith(":") and _HEAD.match(source)
    start = (
        "if x:\n    pass\n"
        if re.match(r"el(?:se|if)\b", source)
        else "try:\n    pass\n" if re.match(r"(?:except|finally)\b", source) else ""
    )
    tree = _parses(f"{start}{source}\n    pass" if head else source)
    if tree is None:
        # These statements are valid only inside a function or a loop.
        return (
            inside
            and bool(_ENDS.match(source) or source.startswith(("@", "nonlocal ")))
            and _parses(f"def f():\n  while x:\n    {source}") is not None
        )
    if head or not tree.body:
        return bool(tree.body)
    if isinstance(tree.body[0], ast.Expr):
        value = tree.body[0].value
        return isinstance(value, (ast.Call, ast.Await, ast.Yield)) or (
            inside and isinstance(value, ast.Constant) and isinstance(value.value, str)
        )
    return inside or not isinstance(tree.body[0], ast.Pass)


class _Run:
    """Consecutive lines of code, with comments and blank lines between them."""

    def __init__(self, lines: list[str], start: int) -> None:
        self._lines = lines
        self._start = self.end = start
        #: For each statement its first line, one past its last, and its text.
        self.statements: list[tuple[int, int, str]] = []
        #: For a line of code with prose glued to its end: the code alone.
        self._cut: dict[int, str] = {}
        at = start
        while at < len(lines):
            if self.statements and (not lines[at].strip() or lines[at].lstrip().startswith("#")):
                at += 1
                continue
            statement = self._statement(at)
            if statement is None:
                break
            at = self.end = statement[1]
            self.statements.append(statement)
            if at - 1 in self._cut or _GLUED_HEADING.search(lines[at - 1]):
                break

    def _statement(self, at: int) -> tuple[int, int, str] | None:
        inside = bool(self.statements)
        for end in range(at + 1, min(at + _MOST_LINES, len(self._lines)) + 1):
            text = "\n".join(line.strip() for line in self._lines[at:end])
            bare = re.sub(r"\s+#.*", "", text) if end == at + 1 else text
            if _is_code(bare, inside):
                return at, end, bare
            for glue in _GLUED.finditer(text):
                if "\n" not in text[glue.start() :] and _is_code(text[: glue.start()], inside):
                    last = self._lines[end - 1]
                    self._cut[end - 1] = last[: len(last) - (len(text) - glue.start())]
                    return at, end, text[: glue.start()]
            is_open = sum(map(text.count, "([{")) > sum(map(text.count, ")]}")) or text.endswith("\\")
            if not is_open and text.count('"""') % 2 == text.count("'''") % 2 == 0:
                return None
        return None

    def source(self) -> str:
        """Return the program as it is, or with its indentation rebuilt."""
        lines = [self._cut.get(at, self._lines[at]) for at in range(self._start, self.end)]
        kept = textwrap.dedent("\n".join(lines)) + "\n"
        return kept if _parses(kept) else self._rebuilt(lines)

    def _rebuilt(self, lines: list[str]) -> str:
        indents = _Indents([text for _, _, text in self.statements])
        last = self._start
        for number, (at, end, text) in enumerate(self.statements):
            blank = "".join("c" if self._lines[line].strip() else " " for line in range(last, at))
            gap = max(map(len, blank.split("c")))
            level = indents.level(number, gap)
            inner = 0
            for line in range(last, end):
                # The further lines of a statement are indented one level deeper.
                inner = int(line > at)
                bare = lines[line - self._start].strip()
                lines[line - self._start] = bare and "    " * (level + inner) + bare
            last = end
        return "\n".join(lines) + "\n"


def _named(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


class _Indents:
    """The indentation of each statement, where it was lost.

    A suite continues until one of these: a blank line, a `return`, the beginning of a method or function, a
    statement of the same kind as the one that opened it, or a wait for the stream that the suite uses.
    """

    def __init__(self, statements: list[str]) -> None:
        self._all = statements
        #: The indices of the statements whose suites are open.
        self._open: list[int] = []

    def level(self, number: int, gap: int) -> int:
        text = self._all[number]
        if number and self._is_head(number - 1):
            self._open.append(number - 1)
        else:
            if number and _ENDS.match(self._all[number - 1]):
                self._pop()
            self._close(number, text, gap)
        return len(self._open)

    def _is_head(self, number: int) -> bool:
        return bool(self._all[number].endswith(":") and _HEAD.match(self._all[number]))

    def _pop(self) -> None:
        if self._open:
            self._open.pop()

    def _close(self, number: int, text: str, gap: int) -> None:
        if pairs := next((pairs for word, pairs in _PAIRS.items() if re.match(rf"{word}\b", text)), None):
            while self._open and not re.match(pairs, self._all[self._open[-1]]):
                self._pop()
            self._pop()
            return
        if _DEFINES.match(text) or re.match(r"import\b|from\b|if __name__", text):
            self._define(number, gap)
            return
        if text.startswith("return") and (
            number + 1 == len(self._all) or _DEFINES.match(self._all[number + 1])
        ):
            # This is the last statement of a function.
            while self._open and not _DEFINES.match(self._all[self._open[-1]]):
                self._pop()
            return
        if gap > 1:
            self._open.clear()
        while self._open and self._is_over(number, text, gap):
            self._pop()

    def _define(self, number: int, gap: int) -> None:
        """Close suites before a definition: methods are in their class, a function that changes nonlocal
        names is in its maker, and all others are at the top.
        """
        names = [text for text in self._all[number : number + 2] if re.match(r"(?:async +)?def\b", text)]
        is_method = bool(names) and re.search(r"def \w+\(\s*(?:self|cls)\b", names[0]) is not None
        is_inner = number + 1 < len(self._all) and self._all[number + 1].startswith("nonlocal ")
        keep = r"class\b" if is_method and gap < 2 else r"(?:async +)?def\b" if is_inner else r"$^"
        while self._open and not re.match(keep, self._all[self._open[-1]]):
            self._pop()

    def _is_over(self, number: int, text: str, gap: int) -> bool:
        head = self._all[self._open[-1]]
        body = self._all[self._open[-1] + 1 : number]
        outer = self._all[self._open[-2]] if len(self._open) > 1 else ""
        if head.startswith("class"):
            return True
        if re.match(r"(?:async +)?def\b", head):
            called = re.search(r"def (\w+)", head)
            later = "\n".join(self._all[number : number + 4])
            # A function is unlikely to call itself, so its suite ended before this call.
            return bool(
                outer and called and re.search(rf"(?<![\w.]){called[1]}\(", later)
            ) and not text.startswith("return")
        if head.startswith(("with", "if", "elif", "else", "try", "except", "finally")):
            return gap > 0 or self._is_sibling(number, head, text, body)
        return self._loop_is_over(number, head, text, body, gap)

    def _is_sibling(self, number: int, head: str, text: str, body: list[str]) -> bool:
        callee = re.match(r"with ([\w.]+)\(", head)
        if callee and text.startswith(f"with {callee[1]}("):
            return True
        guarded = re.match(r"if (\w+) is not None:", head)
        if guarded:
            # The object that the condition tests is created after the suite.
            return text.startswith("with torch.cuda.stream(") or bool(
                re.match(rf"{guarded[1]}\b[^=]*=[^=]", text)
            )
        if head.startswith("if") and text.startswith("if "):
            return True
        if head.startswith("with torch.no_grad"):
            # Training code comes after the suite.
            return "record_stream" in text or any(
                ".backward(" in line for line in self._all[number : number + 8]
            )
        if head.startswith("with torch.cuda.device("):
            return text.startswith("with torch.cuda.stream(")
        if head.startswith("with torch.cuda.stream("):
            stream = head.removeprefix("with torch.cuda.stream(").rstrip("): ")
            waits = text.startswith(f"{stream}.synchronize(") or re.search(
                rf"\.wait_stream\({re.escape(stream)}\)", text
            )
            # Uploads end at statements that do not use the uploaded tensors.
            uploads = (
                all("non_blocking" in line for line in body)
                and not text.startswith(f"{stream}.")
                and ".copy_(" not in text
            )
            made = [re.match(r"[^=(]+?(?=\.copy_|\s*=)", line) for line in body]
            next_two = "\n".join(self._all[number : number + 2])
            uploads = uploads and not any(
                each and re.search(rf"(?<!\w){re.escape(each[0].strip())}(?!\w)", next_two) for each in made
            )
            return (
                bool(waits)
                or uploads
                or "record_stream(" in body[-1]
                or text.startswith("torch.cuda.synchronize(")
            )
        return head.startswith("with") and text.startswith(("print(", "torch.cuda.synchronize("))

    def _loop_is_over(self, number: int, head: str, text: str, body: list[str], gap: int) -> bool:
        target = re.match(r"(?:async +)?for (.+?) in ", head)
        targets = _named(target[1]) - {"_"} if target else set()
        if body and body[-1] == "break":
            return not any(targets & _named(line) for line in self._all[number:])
        if not targets and text.startswith("torch.cuda.synchronize("):
            return True
        timed = re.match(r"(\w+)\.record\(", self._all[self._open[-1] - 1])
        if timed and (ends := re.match(r"(\w+)\.record\(", text)) and ends[1] != timed[1]:
            return not any(line.startswith(f"{timed[1]}.record(") for line in body)
        grown = {each[1] for line in body if (each := re.match(r"(\w+)\.append\(", line))}
        if grown & _named(text) and ".append(" not in text:
            return True
        if gap == 0:
            return False
        made = targets | {each[1] for line in body if (each := re.match(r"(\w+)\b[^=(]*=[^=]", line))}
        # For a head its suite counts too; for a loop the names that it binds do not.
        read = text.partition(" in ")[2] if text.startswith("for ") else text
        if text.startswith("with "):
            read += "\n".join(self._all[number + 1 : number + 2])
        # The optimizer's step after the statements of a training loop is part of the loop.
        return not made & _named(read) and not re.match(r"\w+\.(?:step|zero_grad)\(", text)


_PAIRS = {
    "else": r"if|elif|for|while|try|except",
    "elif": r"if|elif",
    "except": r"try|except",
    "finally": r"try|except|else",
}
