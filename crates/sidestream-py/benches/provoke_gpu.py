"""Whether a delay makes each planted race give wrong bytes, and never its fixed twin, on one GPU.

    python crates/sidestream-py/benches/provoke_gpu.py [--runs 20] [--delay-ms 20] [--part 0/1] [NAME ...]

One JSON object per program: for each race the wrong runs with the delay and without, the number of delays,
what differed first or why nothing did; then the wrong runs of the twin with the same delays. Takes five
minutes at 20 runs; with ``--part K/N`` a process takes each Nth program.
"""

from __future__ import annotations

import argparse
import functools
import json
import time

from planted import backward, programs, streams

import sidestream

PLANTED = [*streams.PLANTED, *backward.PLANTED, *programs.PLANTED, *programs.PLANTED_ON_GPU]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    runs, again = given.runs, functools.partial(sidestream.provoke, runs=given.runs, delay_ms=given.delay_ms)
    races = reached = accused = 0
    for program in PLANTED[part::parts]:
        if given.names and program.__name__ not in given.names:
            continue
        start = time.perf_counter()
        try:
            provoked = again(functools.partial(program, False))
            pairs = [(race.first, race.second) for race in provoked.races]
            twin = again(functools.partial(program, True), pairs=pairs)
        except RuntimeError as error:
            print(json.dumps({"program": program.__name__, "error": str(error)}), flush=True)
            continue
        races += len(provoked.races)
        reached += sum(20 * race.wrong >= 19 * runs for race in provoked.races)
        accused += twin.wrong
        row = {
            "program": program.__name__,
            "races": [
                (race.wrong, race.wrong_alone, race.delays, race.how, race.what or str(race))
                for race in provoked.races
            ],
            "twin": [(race.wrong, race.what) for race in twin.races],
            "failed": provoked.failed,
            "s": round(time.perf_counter() - start, 1),
        }
        print(json.dumps(row), flush=True)
    print(json.dumps({"races": races, "wrong in 95 of 100 runs": reached, "twins accused": accused}))


if __name__ == "__main__":
    main()
