"""Compiles the programs of this folder, and runs each plainly and under `sidestream check --`, racy and repaired.

    python3 run.py [--sidestream COMMAND] [--build FOLDER] [--compile-only] [NAME…]

A program says in a line `// expect: SEVERITY KIND` what is to be found in it: `error`, `warning`, or `race` for either, and
the kinds that are right. `silent` is nothing; `unseen` is a race that calls do not show. Lines that end in `// first` and
`// second` are the two sides of the pair. The argument `repaired` makes each program correct: then nothing may be found, and
the output has to be that of the plain run. Exit code 1 if a program was not told rightly.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
KINDS = "UAF|UBA|HOST_RAW|HOST_WAR|HOST_WAW|RAW|WAR|WAW|TIMING"
SECONDS = 40


def header(source: str, name: str) -> str:
    """Returns the words after `// NAME:`."""
    found = re.search(rf"^// {name}: *(.*)$", source, re.M)
    return found[1] if found else ""


def execute(command: list[str], seconds: float = SECONDS) -> tuple[int, str, str]:
    """Runs a command; returns its exit code (124 if it was ended after some time), output and errors."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds)
        return ran.returncode, ran.stdout, ran.stderr
    except subprocess.TimeoutExpired as ended:
        return 124, str(ended.stdout or ""), f"ended after {seconds} s"


def findings(report: str, name: str) -> list[tuple[str, list[set[int]]]]:
    """Returns the kind of each finding of a report, and for its two operations the lines of the program that it names."""
    found = []
    for match in re.finditer(rf"^ {{2,4}}({KINDS})\b(.*(?:\n    op .*)*)", report, re.M):
        places = [[int(n) for n in re.findall(rf"\b{name}\.cu:(\d+)", op)] for op in re.split(r"\bop ", match[2])[1:]]
        found.append((match[1], [set(lines) for lines in places]))
    return found


def marked(source: str, side: str) -> set[int]:
    """Returns the lines of a program that are marked as a side of the pair."""
    return {n for n, line in enumerate(source.splitlines(), 1) if re.search(rf"// .*\b{side}$", line)}


def row(path: Path, program: Path, sidestream: str) -> tuple[bool, list[str]]:
    """Runs a program; returns whether it was told rightly, and the row of the table."""
    name, source = path.stem, path.read_text()
    severity, *kinds = header(source, "expect").split()
    racy, repaired = [str(program)], [str(program), "repaired"]
    plain = [execute(racy), execute(repaired)]
    if plain[1][0] == 77:
        return True, [name, severity, "skipped", "", "", plain[1][1].strip()]
    if plain[1][0] != 0:
        return False, [name, severity, "broken", str(plain[1][0]), "", (plain[1][2] or plain[1][1])[-200:]]
    (code, out, err), twin = (execute([sidestream, "check", "--", *command]) for command in (racy, repaired))
    found = findings(out + err, name)
    said = "error" if code == 1 and found else "warning" if code == 0 and found else "nothing" if code == 0 else "failed"
    wanted = ("error", "warning") if severity == "race" else ("nothing",) if severity == "silent" else (severity,)
    right_kind = [pair for kind, pair in found if not kinds or kind in kinds[0].split("|")]
    told = severity == "unseen" or said in wanted and (said == "nothing" or bool(right_kind))
    sides = [marked(source, "first"), marked(source, "second")]
    is_pair = any(len(pair) == 2 and all(map(set.intersection, sides, pair)) for pair in right_kind)
    has_lines = any(lines for _, pair in found for lines in pair)
    pair = "" if not right_kind or not all(sides) else "right" if is_pair else "wrong" if has_lines else "no lines"
    problems = []
    if severity not in ("silent", "unseen") and plain[0][0] != 0:
        problems.append(f"racy, plain: exit {plain[0][0]}")
    accused = findings(twin[1] + twin[2], name)
    if twin[0] != 0 or accused:
        problems.append(f"TWIN NOT SILENT: exit {twin[0]} {' '.join(kind for kind, _ in accused)} {twin[2].strip()[-120:]}")
    if not twin[1].startswith(plain[1][1]):
        problems.append(f"OTHER OUTPUT: {plain[1][1].strip()!r}, checked {twin[1][:40]!r}")
    if not told:
        first = re.search(rf"^  ({KINDS})\b.*(\n    op .*)*", out, re.M)
        problems.append(first[0].strip() if first else (err or out).strip()[-200:])
    is_right = told and pair != "wrong" and twin[0] == 0 and not accused and twin[1].startswith(plain[1][1])
    kind = " ".join(dict.fromkeys(kind for kind, _ in found))
    where = " ".join(f"{min(a, default=0)}→{min(b, default=0)}" for a, b in [p for _, p in found if len(p) == 2][:2])
    text = " ".join(" · ".join(problems).split())
    return is_right, [name, " ".join([severity, *kinds]), f"{said} {kind}".strip(), str(code), f"{pair} {where}", text]


def compiled(path: Path, build: Path) -> tuple[Path, str]:
    """Compiles a program; returns its file, and what the compiler said if that failed."""
    program, flags = build / path.stem, header(path.read_text(), "flags").split()
    nvcc = [os.environ.get("NVCC", "nvcc"), "-g", "-lineinfo", f"-arch={os.environ.get('ARCH', 'native')}"]
    code, out, err = execute([*nvcc, "-std=c++17", *flags, "-o", str(program), str(path)], 120)
    return program, "" if code == 0 else (out + err)[-1500:] or f"exit {code}"


def main() -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sidestream", default="sidestream")
    parser.add_argument("--build", type=Path, default=Path("/tmp/sidestream-programs"))
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 16))
    options = parser.parse_args()
    options.build.mkdir(parents=True, exist_ok=True)
    paths = [path for path in sorted(HERE.glob("*.cu")) if not options.names or path.stem in options.names]
    began, rows = time.monotonic(), []

    def one(path: Path) -> tuple[bool, list[str]]:
        program, problem = compiled(path, options.build)
        if problem or options.compile_only:
            return not problem, [path.stem, "", "compiled" if not problem else "NOT COMPILED", "", "", problem]
        return row(path, program, options.sidestream)

    with ThreadPoolExecutor(options.jobs) as pool:
        for is_right, cells in pool.map(one, paths):
            rows.append(is_right)
            print(("ok   " if is_right else "BAD  ") + " | ".join(f"{c:{w}}" for c, w in zip(cells, WIDTHS)).rstrip(), flush=True)
    print(f"{sum(rows)} of {len(rows)} programs as expected, in {time.monotonic() - began:.0f} s")
    return int(not all(rows))


WIDTHS = (22, 15, 20, 3, 14, 0)

if __name__ == "__main__":
    sys.exit(main())
