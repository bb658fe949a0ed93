"""The remarks of ``sidestream.check`` about things other than races, on a GPU. Each part runs in a separate
process, since a device-side assert destroys its context.

    python remarks_gpu.py [PART…]      # one JSON object for each part and its twin, with "ok"
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

#: For each name: the remark that the first of two programs must have and the second must not have.
PARTS = {"late": "LATE_ERROR", "made": "STREAMS_MADE", "held": "MEMORY_HELD", "wait": "WAIT_NOT_NEEDED"}


def late(twin: bool) -> None:
    """An index is beyond the end of a table, which is noticed when the host waits."""
    import torch

    table = torch.ones(8, 4, device="cuda")
    index = torch.tensor([1, 2, 3 if twin else 99], device="cuda")
    torch.cuda.synchronize()
    rows = table[index]
    try:
        # The error may surface here, if the kernel has already completed.
        rows = rows * 2
        torch.cuda.synchronize()
    except RuntimeError:
        pass


def made(twin: bool) -> None:
    import torch

    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    x = torch.ones(1 << 20, device="cuda")
    for _ in range(20):
        side = side if twin else torch.cuda.Stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            x.mul_(1)
        main.wait_stream(side)
    torch.cuda.synchronize()


def held(twin: bool) -> None:
    """A side stream is slow: memory that was recorded for it cannot be reused yet."""
    import torch

    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    for _ in range(16):
        x = torch.ones(16 << 20, device="cuda")
        side.wait_stream(main)
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            x.sum()
        if twin:
            main.wait_stream(side)
        else:
            x.record_stream(side)
        del x
    torch.cuda.synchronize()


def wait(twin: bool) -> None:
    import torch

    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    w = torch.ones(1 << 20, device="cuda")
    with torch.cuda.stream(side):
        own = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    for _ in range(5):
        w.mul_(2)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            own.add_(w if twin else 1)
        torch.cuda.synchronize()


def alone(name: str, twin: bool, simulate: bool) -> dict[str, Any]:
    import sidestream

    with sidestream.check(simulate=simulate) as found:
        globals()[name](twin)
    lints = [str(lint) for lint in found.lints if lint.code == PARTS[name]]
    return {"ok": bool(lints) is not twin and not found.races, "lints": lints, "races": len(found.races)}


def main(arguments: list[str]) -> None:
    simulate = "--simulate" in arguments
    names = [name for name in arguments if name in PARTS]
    if "alone" in arguments:
        print(json.dumps(alone(names[0], "twin" in arguments, simulate)), flush=True)
        return
    for name in names or PARTS:
        for twin in (False, True):
            command = [
                sys.executable,
                __file__,
                "alone",
                name,
                *(["twin"] if twin else []),
                *(["--simulate"] if simulate else []),
            ]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            last = (ran.stdout.strip().splitlines() or [""])[-1]
            result = json.loads(last) if last.startswith("{") else {"ok": False, "error": ran.stderr[-2000:]}
            print(json.dumps({"part": name, "twin": twin, **result}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
