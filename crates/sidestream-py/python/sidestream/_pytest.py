"""A pytest fixture: a test that requests it is checked for races between streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the fixture."""
    group = parser.getgroup("sidestream", "races between streams, in tests with the fixture sidestream_check")
    group.addoption(
        "--sidestream-suppress", metavar="FILE", help="findings to leave out, one FILE:LINE REASON per line"
    )
    group.addoption(
        "--sidestream-require-gpu",
        action="store_true",
        help="fail a test with the fixture if it ran nothing on a GPU",
    )


@pytest.fixture
def sidestream_check(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Run the test under ``sidestream.check``, and fail it at its end if there was a race or the check ended
    early.

    The value is the ``CheckedRun``. A test that does not request the fixture is not checked.
    ``--sidestream-suppress FILE`` names a file as for ``check(suppress=...)``; with
    ``--sidestream-require-gpu`` a test fails if it ran nothing on a GPU.
    """
    from sidestream._check import checking
    from sidestream._check_suppress import suppressions

    path = request.config.getoption("--sidestream-suppress")
    try:
        suppress = () if path is None else suppressions(path)
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"--sidestream-suppress: {error}") from None
    # Most of the suppressed lines belong to other tests, so unused suppressions are not reported.
    with checking(suppress=suppress) as found:
        yield found
    if not found.is_clean:
        pytest.fail(found.text(unused=False), pytrace=False)
    if request.config.getoption("--sidestream-require-gpu") and not found.operations:
        pytest.fail("this test ran nothing on a GPU (--sidestream-require-gpu)", pytrace=False)
