"""Whether a delay makes each planted race give wrong bytes, and never its fixed twin, on one GPU.

    python crates/sidestream-py/benches/provoke_gpu.py [RUNS [NAME ...]]

One JSON object per program: for each race the wrong runs with the delay and without, the number of delays,
what differed first or why nothing did; then the wrong runs of the twin with the same delays. Takes five
minutes at 100 runs.
"""

from __future__ import annotations

import functools
import json
import sys
import time

from planted import backward, programs, streams

import sidestream

PLANTED = [*streams.PLANTED, *backward.PLANTED, *programs.PLANTED, *programs.PLANTED_ON_GPU]


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    races = reached = accused = 0
    for program in PLANTED:
        if sys.argv[2:] and program.__name__ not in sys.argv[2:]:
            continue
        start = time.perf_counter()
        try:
            provoked = sidestream.provoke(functools.partial(program, False), runs=runs)
            pairs = [(race.first, race.second) for race in provoked.races]
            twin = sidestream.provoke(functools.partial(program, True), pairs=pairs, runs=runs)
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
