"""Where the repository keeps what is looked at."""

from __future__ import annotations

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
