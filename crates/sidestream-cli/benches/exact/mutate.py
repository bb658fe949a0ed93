"""Takes single waits out of correct programs, and judges what `sidestream check --exact` says by an oracle.

Each program of the folder `waits` runs as it is, and with one of its waits taken out, at 50 places in all.
`oracle.py` says from the recorded log, by the rules of order alone, which operations race. Where it says that
some do, the check has to find a race, and no pair of call sites that the oracle does not know; where it says
that none does (the wait was not needed), the check has to be silent. No access in a log may be a guess.
"""

import argparse
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import oracle

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "programs"))
from run import BUILD, Program, execute

Sites = frozenset[str]


def said(report: str) -> list[Sites]:
    """Returns the call sites of each race that a report in JSON has, errors and warnings."""
    lines = [json.loads(line) for line in report.splitlines() if line.startswith('{"schema"')]
    if not lines:
        raise ValueError(f"no report: {report[-200:]}")
    return [frozenset(site or "" for site in race["sites"]) for line in lines for race in line["races"]]


def judged(sidestream: str, program: Program, place: int) -> tuple[bool, str]:
    """Runs a program without a wait (-1: with all); returns whether the check is right, and the row."""
    log = BUILD / f"{program.name}.{place}.log"
    begin, end = ["env", f"WITHOUT_WAIT={place}", sidestream], ["--", str(program.build)]
    recorded = execute([*begin, "record", "--exact", "-o", str(log), *end], 150)
    checked = execute([*begin, "check", "--exact", "--json", *end], 150)
    row = f"{program.name:13} {place if place >= 0 else 'all':>4}"
    try:
        pairs, reported = list(oracle.races(oracle.read(log))), said(checked[1])
    except (oracle.UnjudgedError, OSError, ValueError) as problem:
        return False, f"{row} NOT JUDGED: {problem!r} {recorded} {checked}"[:400]
    known = {frozenset((first.site, second.site)) for first, second, _ in pairs}
    problems = [
        "GUESSED ACCESSES" if any(is_guess for _, _, is_guess in pairs) else "",
        "NOT FOUND" if pairs and not reported else "",
        f"NO RACE: {[sorted(sites) for sites in reported if sites not in known]}"
        if set(reported) - known
        else "",
        "NOT CORRECT" if pairs and place < 0 else "",
    ]
    row += f" oracle {len(pairs):3} pairs at {len(known)} sites, check {len(set(reported))} "
    return not any(problems), row + " · ".join(filter(None, problems))


def main() -> int:
    """Prints a row for each place; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sidestream", default="sidestream")
    parser.add_argument("--places", type=int, default=50)
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    paths = sorted((HERE / "waits").glob("*.cu"))
    programs = [Program(path, "all") for path in paths if not options.names or path.stem in options.names]
    jobs: list[tuple[Program, int]] = []
    for index, program in enumerate(programs):
        if problem := program.compiled():
            raise SystemExit(f"{program.name}: {problem}")
        told = execute(["env", "WITHOUT_WAIT=-1", str(program.build)])
        made = re.search(r"^waits (\d+)$", told[2], re.M)
        if told[0] or not made:
            raise SystemExit(f"{program.name}: {told}")
        share = options.places * (index + 1) // len(programs) - options.places * index // len(programs)
        places = min(share, int(made[1]))
        jobs += [(program, place) for place in [-1, *(int(made[1]) * k // places for k in range(places))]]
    results = []
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        for is_right, row in pool.map(lambda job: judged(options.sidestream, *job), jobs):
            results.append(is_right)
            print("ok " if is_right else "BAD", row.rstrip(), flush=True)
    places = len(jobs) - len(programs)
    print(f"{sum(results)} of {len(results)} right: {places} places of {len(programs)} programs")
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
