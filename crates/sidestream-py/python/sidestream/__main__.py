"""``python -m sidestream`` and ``sidestream``: the command line."""

from __future__ import annotations

import signal
import sys

from sidestream import __version__, _sidestream


def main() -> int:
    """Run the command with the arguments of the process, and return its exit code."""
    # Under Python's own handler the command would only note Ctrl-C, and continue.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    verb, rest = sys.argv[1:2], sys.argv[2:]
    is_simulated = verb == ["diagnose"] and any(option.startswith("--simulate") for option in rest)
    if is_simulated and "--" not in rest:
        # A script ends the options, as it does for Python.
        begins = [at for at, word in enumerate(rest) if word == "-m" or word.endswith(".py")]
        rest = [*rest[: begins[0]], "--", *rest[begins[0] :]] if begins else rest
    if verb in (["check"], ["devices"], ["diagnose"]):
        # Python programs run with this interpreter, unless an option names another.
        options = rest[: rest.index("--")] if "--" in rest else rest
        named = any(option == "--python" or option.startswith("--python=") for option in options)
        rest = rest if named else [f"--python={sys.executable}", *rest]
    return _sidestream.command(["sidestream", *verb, *rest])


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(main())
    print(f"sidestream {__version__}")
    print(
        "In Python: sidestream.diagnose(path) says why a GPU idled, "
        "sidestream.check_program(path) finds races."
    )
    print("The command: python -m sidestream --help")
