"""Compiles the programs of this folder; runs each plainly and under `sidestream check --`, racy and repaired.

`// expect: SEVERITY KINDS` says what is to be found: `error`, `warning`, or `race` for either; `silent` is
nothing, `unseen` a race that calls do not show. `// first` and `// second` mark the two sides. The argument
`repaired` makes a program correct: nothing may be found, or warnings only where `// repaired: warns` says
that calls do not show the order; and its output must be that of the plain run.

With `--exact` all run under `sidestream check --exact`, also those of the folder `exact`, which race at exact
bytes only. There `// exact:` counts in place of `// expect:`, and no twin warns that says
`// exact repaired: silent`. A program that prints `race ADDRESS LENGTH` to its errors says which bytes race:
a report that names bytes may name no others.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
KINDS = "UAF|UBA|HOST_RAW|HOST_WAR|HOST_WAW|RAW|WAR|WAW|TIMING"
ENV = os.environ.get
BUILD = Path(ENV("BUILD", "/tmp/sidestream-programs"))
NVCC = f"{ENV('NVCC', 'nvcc')} -g -lineinfo -std=c++17 -arch={ENV('ARCH', 'native')}".split()


def execute(command: list[str], seconds: float = 40) -> tuple[int, str, str]:
    """Runs a command; returns its exit code (124 if it was ended after some seconds), output and errors."""
    # Programs of others may wait for a key, and print what is not UTF-8.
    ran = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = ran.communicate(timeout=seconds)
        return ran.returncode, out, err
    except subprocess.TimeoutExpired:
        os.killpg(ran.pid, signal.SIGKILL)
        return (124, *ran.communicate())


class Program:
    """A program, and what its comments say of it."""

    def __init__(self, path: Path, exact: str) -> None:
        self.path, self.name, self.build = path, path.stem, BUILD / path.stem
        self.lines, self.exact = path.read_text().splitlines(), exact
        self.expected = " ".join(exact and self.header("exact") or self.header("expect"))
        self.may_warn = bool(self.header("repaired")) and not (exact and self.header("exact repaired"))
        self.severity, *self.kinds = re.split(r"[ |]", self.expected)

    def header(self, name: str) -> list[str]:
        """Returns the words after `// NAME:`."""
        found = [line.split(":", 1)[1] for line in self.lines if line.startswith(f"// {name}:")]
        return found[0].split() if found else []

    def marked(self, side: str) -> set[int]:
        """Returns the lines that are a side of the pair."""
        marks = [set(line.split("// ")[-1].split()) for line in self.lines]
        return {n for n, words in enumerate(marks, 1) if side in words and words <= {"first", "second"}}

    def compiled(self) -> str:
        """Compiles it; returns what the compiler said if that failed."""
        code, out, err = execute([*NVCC, *self.header("flags"), "-o", str(self.build), str(self.path)], 120)
        return (out + err)[-1500:] or f"exit {code}" if code else ""

    def findings(self, report: str) -> list[tuple[str, list[set[int]]]]:
        """Returns the kind of each finding, and the lines that each of its operations names."""
        found = []
        for kind, text in re.findall(rf"^ {{2,4}}({KINDS})\b(.*(?:\n    (?:op|  ) .*)*)", report, re.M):
            sides = re.split(r"\bop \d+ on ", text)[1:]
            places = [re.findall(rf"\b{self.name}\.cu:(\d+)", side) for side in sides]
            found.append((kind, [set(map(int, lines)) for lines in places]))
        return found

    def elsewhere(self, report: str, errors: str) -> str:
        """Returns the first bytes that a report names outside those that the program says race."""
        said = re.findall(r"^race 0x([0-9a-f]+) (\d+)$", errors, re.M)
        # With `--exact=first`, the program may run twice: the last run counts.
        report = report[report.rfind(f"{self.name}: ") :]
        named = rf"^ {{2,4}}(?:{KINDS}) on 0x([0-9a-f]+)\b[^$]*?\bboth touch bytes? (\d+)(?: to (\d+))?"
        low, high = (int(said[-1][0], 16), int(said[-1][0], 16) + int(said[-1][1])) if said else (0, 1 << 64)
        for base, first, last in re.findall(named, report, re.M):
            start, end = int(base, 16) + int(first), int(base, 16) + int(last or first) + 1
            if start < low or end > high:
                return f"{start:#x} to {end - 1:#x}"
        return ""

    def judged(self, sidestream: str) -> tuple[bool, list[str]]:
        """Runs it; returns whether the reports are right, and the row of the table."""
        program = [str(self.build)]
        check = [sidestream, "check", *[f"--exact={self.exact}"] * bool(self.exact), "--", *program]
        plain, right = execute(program), execute([*program, "repaired"])
        if right[0] == 77:
            return True, [self.name, self.severity, "", "", right[1].strip()]
        if right[0] != 0 or plain[0] > 1:
            return False, [self.name, self.severity, "broken", "", f"{plain} {right}"[-200:]]
        limit = 150 if self.exact else 40
        checked, twin = execute(check, limit), execute([*check, "repaired"], limit)
        found, accused = self.findings(checked[1]), self.findings(twin[1])
        is_error = re.search(r" CUDA calls?, \d+ races?(,|$)", checked[1], re.M) is not None
        severity = "error" if is_error else "warning" if found else "silent"
        code = abs(plain[0]) + 128 * (plain[0] < 0) or int(is_error)
        fitting = [pair for kind, pair in found if not self.kinds or kind in self.kinds]
        is_told = self.severity == "unseen" or severity == "silent" == self.severity
        is_told |= bool(fitting) and self.severity in ("race", severity)
        sides = [self.marked("first"), self.marked("second")]
        named = [pair for pair in fitting if len(pair) == 2 and all(pair)]
        matched = [pair for pair in named if all(map(set.intersection, sides, pair))]
        places = ["/".join(map(str, sorted(lines))) for lines in (matched or named or [[]])[0]]
        where = "→".join(places) or "no lines"
        is_pair = bool(matched) or not named or not all(sides)
        said_of = [" ".join((out + err).split())[:300] for _, out, err in (checked, twin)]
        others = self.elsewhere(checked[1], checked[2]) if self.exact else ""
        problems = [
            "" if is_told else f"NOT FOUND: exit {checked[0]}: {said_of[0]}",
            "" if is_pair else "WRONG PAIR",
            f"OTHER BYTES {others}" if others else "",
            "" if checked[0] == code else f"EXIT CODE {checked[0]}, not {code}",
            ""
            if twin[0] == 0 and (not accused or self.may_warn) and " fail" not in twin[1]
            else f"TWIN NOT SILENT: exit {twin[0]}: {said_of[1]}",
            "" if twin[1].startswith(right[1]) else f"OTHER OUTPUT than {right[1]!r}: {said_of[1][:60]}",
        ]
        kinds = " ".join(dict.fromkeys(kind for kind, _ in found))
        row = [self.name, self.expected, f"{severity} {kinds}", where if found else ""]
        return not any(problems), [*row, " · ".join(filter(None, problems))]


def main() -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sidestream", default="sidestream")
    launches = {"nargs": "?", "const": "all", "default": "", "choices": ["all", "first"]}
    parser.add_argument("--exact", **launches, help="also the folder `exact`, by check --exact")
    parser.add_argument("--compile-only", action="store_true")
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    folders = [HERE, HERE.parent / "exact"][: 1 + bool(options.exact)]
    paths = [path for folder in folders for path in sorted(folder.glob("*.cu"))]
    paths = [path for path in paths if not options.names or path.stem in options.names]
    began, results = time.monotonic(), []

    def one(path: Path) -> tuple[bool, list[str]]:
        program = Program(path, options.exact)
        problem = program.compiled()
        if problem or options.compile_only:
            return not problem, [path.stem, "", "", "", problem or "compiled"]
        return program.judged(options.sidestream)

    with ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as pool:
        for is_right, row in pool.map(one, paths):
            results.append(is_right)
            cells = " | ".join(f"{cell:{width}}" for cell, width in zip(row, (21, 15, 15, 8, 0), strict=True))
            print("ok " if is_right else "BAD", cells.rstrip(" |"), flush=True)
    print(f"{sum(results)} of {len(results)} as expected, in {time.monotonic() - began:.0f} s")
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
