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
    group.addoption(
        "--sidestream-simulate",
        action="store_true",
        help="simulate a GPU for tests with the fixture, where PyTorch finds none",
    )
    parser.addini("sidestream_simulate", "as --sidestream-simulate, for all runs", type="bool", default=False)


#: Shown with a test that fails.
_NO_GPU = "PyTorch finds no GPU here; with --sidestream-simulate the tests have a simulated one."


@pytest.fixture
def sidestream_check(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Run the test under ``sidestream.check``, and fail it at its end if there was a race or the check ended
    early.

    The value is the ``CheckedRun``. A test that does not request the fixture is not checked.
    ``--sidestream-suppress FILE`` names a file as for ``check(suppress=...)``; with
    ``--sidestream-require-gpu`` a test fails if it ran nothing on a GPU. Where PyTorch finds no GPU,
    ``--sidestream-simulate``, or ``sidestream_simulate = true`` in pytest's configuration, simulates one.
    """
    import torch
    from sidestream._check import checking
    from sidestream._check_suppress import suppressions

    config = request.config
    path = config.getoption("--sidestream-suppress")
    try:
        suppress = () if path is None else suppressions(path)
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"--sidestream-suppress: {error}") from None
    requires = config.getoption("--sidestream-require-gpu")
    simulates = False
    if not requires and not torch.cuda.is_available():
        simulates = config.getoption("--sidestream-simulate") or config.getini("sidestream_simulate")
        if not simulates:
            request.node.add_report_section("setup", "sidestream", _NO_GPU)
    # Most of the suppressed lines belong to other tests, so unused suppressions are not reported.
    with checking(suppress=suppress, simulate=int(simulates)) as found:
        yield found
    if not found.is_clean:
        pytest.fail(found.text(unused=False), pytrace=False)
    if requires and not found.operations:
        pytest.fail("this test ran nothing on a GPU (--sidestream-require-gpu)", pytrace=False)
