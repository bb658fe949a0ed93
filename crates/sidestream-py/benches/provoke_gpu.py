"""Whether a delay makes each planted race give wrong bytes, and never its fixed twin, on one GPU.

    python crates/sidestream-py/benches/provoke_gpu.py [RUNS]

One JSON object per program: for each race the wrong runs with the delay and without, the number of delays,
and what differed first; then the wrong runs of the twin with the same delays. Takes two minutes at 10 runs.
"""

from __future__ import annotations

import functools
import json
import sys

from planted import backward, programs, streams

import sidestream

PLANTED = [*streams.PLANTED, *backward.PLANTED, *programs.PLANTED, *programs.PLANTED_ON_GPU]


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    races = reached = accused = 0
    for program in PLANTED:
        try:
            provoked = sidestream.provoke(functools.partial(program, False), runs=runs)
            pairs = [(race.first, race.second) for race in provoked.races]
            twin = sidestream.provoke(functools.partial(program, True), pairs=pairs, runs=runs)
        except RuntimeError as error:
            print(json.dumps({"program": program.__name__, "error": str(error)}), flush=True)
            continue
        wrong = [(race.wrong, race.wrong_alone, race.delays, race.what) for race in provoked.races]
        races += bool(wrong)
        reached += any(20 * race[0] >= 19 * runs for race in wrong)
        accused += twin.wrong
        row = {"program": program.__name__, "races": wrong, "twin": [race.wrong for race in twin.races]}
        print(json.dumps(row), flush=True)
    print(json.dumps({"racy programs": races, "wrong in 95 of 100 runs": reached, "twins accused": accused}))


if __name__ == "__main__":
    main()
