"""Benchmarks of several parts, which print lines of JSON; ``part`` names the part."""

from __future__ import annotations

import json
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sidestream
import torch


def say(part: str, **found: Any) -> None:
    print(json.dumps({"part": part, **found}), flush=True)


def run(parts: Mapping[str, Callable[[], dict[str, Any] | None]], asked: Iterable[str] = ()) -> int:
    """Run the requested parts, or all, and return the program's exit code.

    The last line of a part has its result, with ``ok`` true unless the part sets it. The line of a part that
    fails has the error, and the other parts run anyway.
    """
    names = [*asked] or [*parts]
    if unknown := set(names) - set(parts):
        sys.exit(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    devices = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    versions = {"torch": torch.__version__, "sidestream": sidestream.__version__}
    say("machine", devices=devices, **versions, python=platform.python_version())
    failed = 0
    for name in names:
        start = time.perf_counter()
        try:
            found = parts[name]()
            line = {} if found is None else {"ok": True, **found}
        except Exception:
            line = {"ok": False, "error": traceback.format_exc()[-4000:]}
        failed += line.get("ok") is False
        say(name, **line, seconds=round(time.perf_counter() - start, 1))
    return 1 if failed else 0
