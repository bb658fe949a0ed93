"""Does with the installed package what a new user would do first: imports it, reads an example trace, and
runs the command.

Runs in the root of a clone, with a Python in which nothing but the wheel is installed.
"""

import subprocess
import sys
from pathlib import Path

import sidestream

TRACE = "examples/traces/copy_bound.before.json.gz"
EXPECTED = "COPY_ON_COMPUTE_STREAM"


def command(*words: str) -> str:
    run = [sys.executable, "-m", "sidestream", *words]
    return subprocess.run(run, check=True, stdout=subprocess.PIPE, encoding="utf-8", timeout=300).stdout


def main() -> None:
    print(f"sidestream {sidestream.__version__} of {Path(sidestream.__file__).parent}")

    codes = [finding.code for finding in sidestream.diagnose(TRACE).findings]
    assert EXPECTED in codes, f"{TRACE}: {codes}"
    assert EXPECTED in command("diagnose", "--json", TRACE)

    shown = command("overlap")
    assert "Worth it" in shown, shown
    print(shown.rstrip().splitlines()[-1])


main()
