"""Where the repository keeps what is looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def traces() -> Path:
    """Traces of an H200."""
    return EXAMPLES / "traces"


@pytest.fixture
def programs() -> Path:
    """Stream programs, each racy one with its repaired twin."""
    return EXAMPLES / "streams"


@pytest.fixture
def on_stand_in(tmp_path: Path) -> Callable[[str], str]:
    """Run a program on a driver without a GPU, and return what it prints.

    The driver is the crate `stand-in`. `cargo xtask python` builds it and says where it is.
    """
    library = os.environ.get("SIDESTREAM_STAND_IN")
    if library is None:
        pytest.fail("SIDESTREAM_STAND_IN names no library: `cargo xtask python` builds it and runs these tests")
    (tmp_path / "libcuda.so.1").symlink_to(library)

    def run(code: str) -> str:
        start = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        ran = subprocess.run(
            [sys.executable, "-c", start + code],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert ran.returncode == 0 and not ran.stderr, ran.stderr
        return ran.stdout

    return run
