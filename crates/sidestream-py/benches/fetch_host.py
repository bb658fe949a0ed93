"""The host's cost of a call of `fetch` and `RunningMean.update`, on the stand-in for CUDA's driver. Needs
PyTorch and no GPU.

    cargo build -p sidestream-stand-in --lib
    python crates/sidestream-py/benches/fetch_host.py target/debug/libsidestream_stand_in.so [--quick]

Prints one JSON object: microseconds of the calling thread's CPU time per call, the lowest of seven turns.
They contain the time of the stand-in, not that of a real driver.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

#: With more calls the host would wait for the stand-in's device.
TIMES = 20 if "--quick" in sys.argv else 200


def least(call: Callable[[], object], after: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(7):
        start = time.thread_time()
        for _ in range(TIMES):
            call()
        best = min(best, (time.thread_time() - start) / TIMES)
        after()
    return round(best * 1e6, 2)


def measured() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import sidestream
    import torch
    from device_double import Double

    double = Double()
    x = double.on_device(torch.tensor(2.0))
    mean, read = sidestream.RunningMean(), sidestream.RunningMean()

    def asked() -> None:
        read.update(x)
        read.value()

    rows: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "fetch": (lambda: sidestream.fetch(x), double.current.synchronize),
        "update": (lambda: mean.update(x), mean.result),
        "update_and_value": (asked, read.result),
    }
    said = {f"{name}_us": least(call, after) for name, (call, after) in rows.items()}
    print(json.dumps({"part": "host", "torch": torch.__version__} | said))


def main() -> int:
    libraries = [name for name in sys.argv[1:] if not name.startswith("--")]
    if not libraries:
        measured()
        return 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "libcuda.so.1").symlink_to(Path(libraries[0]).resolve())
        again = [sys.executable, __file__, *(name for name in sys.argv[1:] if name.startswith("--"))]
        return subprocess.run(again, env={**os.environ, "LD_LIBRARY_PATH": folder}).returncode


if __name__ == "__main__":
    sys.exit(main())
