"""Imports the package without any other installed package."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
import sidestream

# An entry of None in sys.modules makes the import fail, as if the package were not installed.
BLOCKED = "import sys; sys.modules.update(dict.fromkeys(['torch', 'numpy']))\n"


def python(*args: str) -> str:
    """Run a fresh interpreter, outside the sources, and return its output."""
    ran = subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, check=False, cwd=Path(sys.prefix)
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_the_block_does_block() -> None:
    code = BLOCKED + "try: import numpy\nexcept ModuleNotFoundError: print('blocked')"
    assert python("-c", code) == "blocked\n"


def test_everything_works_without_torch_and_numpy(traces: Path, programs: Path) -> None:
    code = BLOCKED + (
        "import sidestream\n"
        f"print(len(sidestream.diagnose({str(traces / 'copy_bound.before.json.gz')!r}).findings))\n"
        f"print(len(sidestream.check_program({str(programs / 'hello_race.yaml')!r}).races))\n"
    )
    assert python("-c", code) == "1\n1\n"


def test_what_is_installed_is_not_imported() -> None:
    import numpy  # noqa: F401 - it is installed, so that this shows something.

    code = "import sys, sidestream; print({'torch', 'numpy'} & set(sys.modules))"
    assert python("-c", code) == "set()\n"


def test_the_module_says_its_version_and_what_there_is() -> None:
    version = importlib.metadata.version("sidestream")
    assert sidestream.__version__ == version
    first, second, third = python("-m", "sidestream").splitlines()
    assert first == f"sidestream {version}"
    assert "sidestream.diagnose(path)" in second and "--help" in third


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in sidestream.__all__:
        assert getattr(sidestream, name).__doc__, name


def test_what_is_listed_is_what_people_call() -> None:
    listed = dir(sidestream)
    assert not [name for name in listed if name.startswith("_") and name != "__version__"]
    assert {"prefetch", "Pipeline", "check", "diagnose"} < set(listed) and len(listed) <= 30
    # A result class exists for annotations, but is not listed.
    assert "Diagnosis" not in listed and hasattr(sidestream, "Diagnosis")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("pipeline", "did you mean Pipeline?"),
        ("prefetcher", "did you mean prefetch?"),
        ("running_mean", "did you mean RunningMean?"),
        ("Diagnose", "did you mean diagnose?"),
        ("lightning", "import sidestream.lightning"),
        ("nothing_like_it", "dir(sidestream) lists all names"),
    ],
)
def test_a_name_that_is_not_there_is_refused_with_what_is(name: str, says: str) -> None:
    with pytest.raises(AttributeError) as refused:
        getattr(sidestream, name)
    assert str(refused.value) == f"module 'sidestream' has no attribute '{name}'; {says}"
    assert not hasattr(sidestream, "__wrapped__")


def test_help_shows_the_function_check_also_where_its_module_was_imported() -> None:
    shown = python("-c", "import sidestream.check; help(sidestream.check)")
    assert "on_race" in shown and "MEMORY_BYTES =" not in shown and "main(" not in shown


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(sidestream.__file__).parent / "py.typed").is_file()
