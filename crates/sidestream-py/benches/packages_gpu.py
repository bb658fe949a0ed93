"""The tests of published packages that use streams, under ``sidestream.check``.

    python packages_gpu.py [--simulate] torchgpipe=FOLDER fairscale=FOLDER

A folder is a checkout of the package's repository, since neither package ships its tests; the package
itself is installed from the package index: ``pip install --no-deps torchgpipe==0.0.7 fairscale==0.4.13``.
Prints a JSON object for each: how pytest ended, and what was found. No race may be found in the correct
packages. fairscale's ``OffloadModel`` moves its shards on two streams without any wait; that race must be
found.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

#: For each name: the package, its tests, and whether they race.
TESTS = {
    "torchgpipe": [("torchgpipe", ["tests"], False)],
    "fairscale": [
        (
            "fairscale.nn.pipe",
            [
                "tests/nn/pipe/test_stream.py",
                "tests/nn/pipe/test_copy.py",
                "tests/nn/pipe/test_pipe.py",
                "tests/nn/pipe/skip",
            ],
            False,
        ),
        ("fairscale.experimental.nn.OffloadModel", ["tests/experimental/nn/test_offload.py"], True),
    ],
}


def run(name: str, folder: Path, tests: list[str], races: bool, options: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = [
            sys.executable,
            "-m",
            "sidestream.check",
            "--json",
            str(report),
            *options,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *tests,
        ]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        try:
            found = json.loads(report.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"part": "package", "name": name, "error": ran.stderr[-2000:]}
    # Old packages fail some tests with a new PyTorch; the GPU work of these tests counts all the same.
    summary = next(
        (line for line in reversed(ran.stdout.splitlines()) if " passed" in line or " failed" in line), ""
    )
    ok = bool(found["races"]) is races and found["operations"] > 0 and found["ended"] is None
    return {
        "part": "package",
        "name": name,
        "ok": ok,
        "pytest": summary,
        "operations": found["operations"],
        "races": len(found["races"]),
        "lints": sorted({lint["code"] for lint in found["lints"]}),
        "skipped": found["skipped"],
        "report": "" if ok else ran.stderr[-4000:],
    }


def main(arguments: list[str]) -> None:
    options = ["--simulate", "--devices", "2"] if "--simulate" in arguments else []
    folders = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    if not folders or not set(folders) <= set(TESTS):
        sys.exit(f"name the folders, as in torchgpipe=FOLDER; these are known: {', '.join(TESTS)}")
    for name, folder in folders.items():
        for package, tests, races in TESTS[name]:
            print(json.dumps(run(package, Path(folder), tests, races, options)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
