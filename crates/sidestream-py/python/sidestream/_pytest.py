"""A pytest fixture: a test that requests it is checked for races between streams."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sidestream._check import CheckedRun


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the fixture."""
    group = parser.getgroup("sidestream", "races between streams, in tests with the fixture sidestream_check")
    group.addoption(
        "--sidestream-suppress", metavar="FILE", help="findings to leave out, one FILE:LINE REASON per line"
    )
    group.addoption(
        "--sidestream-baseline",
        metavar="FILE",
        help="known findings to leave out, as --sidestream-write-baseline writes them",
    )
    group.addoption(
        "--sidestream-write-baseline",
        metavar="FILE",
        help="write the findings of this run, which then fail no test; --sidestream-baseline is ignored",
    )
    group.addoption("--sidestream-sarif", metavar="FILE", help="write the findings as SARIF 2.1.0")
    group.addoption(
        "--sidestream-provoke",
        metavar="RUNS",
        type=_runs,
        default=0,
        help="call a test again for each of its races: some times to find a delay that shows it, then RUNS "
        "times with that; on a simulated GPU, run each race in up to 10,000 schedules",
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


def _runs(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"{text}: give a number of runs, 1 or more")
    return int(text)


def pytest_configure(config: pytest.Config) -> None:
    """Collect what all tests with the fixture found."""
    config.pluginmanager.register(_Session(config), "sidestream-session")


class _Session:
    """What all tests with the fixture found, also in the workers of pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        from sidestream._check_baseline import Baseline
        from sidestream._check_export import distinct, usable

        def given(option: str) -> Path | None:
            file = config.getoption(f"--sidestream-{option}")
            return None if file is None else Path(file).absolute()

        self.writes, self._sarif = given("write-baseline"), given("sarif")
        known = None if self.writes else given("baseline")
        self._is_worker = hasattr(config, "workerinput")
        #: JSON values, which a worker sends.
        self._found: dict[str, list[Any]] = {
            name: [] for name in ("new", "known", "results", "problems", "skipped", "empty")
        }
        options = ["suppress", "write-baseline" if self.writes else "baseline", "sarif"]
        names = [f"--sidestream-{option}" for option in options]
        try:
            distinct({name: config.getoption(name) for name in names})
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
        try:
            for file in (self.writes, self._sarif):
                if file and not self._is_worker:
                    usable(file)
            self.baseline = Baseline(self.writes or known, is_read=not self.writes)
        except OSError as error:
            remedy = "; --sidestream-write-baseline writes one" if error.filename == str(known) else ""
            raise pytest.UsageError(f"sidestream: {error.filename}: {error.strerror}{remedy}") from None
        except ValueError as error:
            raise pytest.UsageError(f"--sidestream-baseline: {error}") from None

    def add(self, found: CheckedRun, item: pytest.Item) -> None:
        from sidestream._check_export import findings, results

        if self.writes:
            self._found["new"] += map(dataclasses.asdict, findings(found, self.baseline))
        if self._sarif:
            self._found["results"] += results(found, self.baseline, str(item.path))
        self._found["known"] += map(dataclasses.asdict, found._found.known)
        self._found["problems"] += [] if found.ended is None else [found.ended]
        self._found["skipped"] += found.skipped
        self._found["empty"] += [] if found.operations else [item.nodeid]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for name, values in json.loads(getattr(node, "workeroutput", {}).get("sidestream", "{}")).items():
            self._found[name] += values

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        from sidestream._check_baseline import found, written
        from sidestream._check_export import put, sarif

        of = self._found
        if self._is_worker:
            session.config.workeroutput["sidestream"] = json.dumps(of)  # type: ignore[attr-defined]
            return
        try:
            if self.writes:
                put(self.writes, written(map(found, of["new"])))
            if self._sarif:
                put(self._sarif, sarif(of["results"], of["problems"], dict.fromkeys(of["skipped"])))
        except OSError as error:
            pytest.exit(f"{error.filename} cannot be written: {error.strerror}", pytest.ExitCode.USAGE_ERROR)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        from sidestream._check_baseline import counted, found

        tell, of = terminalreporter.write_line, self._found
        if self.writes:
            tell(f"sidestream: {counted(len(set(map(found, of['new']))))} written to {self.writes.name}")
        elif of["known"] or self.baseline.known:
            known = set(map(found, of["known"]))
            gone = len(self.baseline.known - known)
            more = f"; {self.baseline.shown(gone)}" if gone else ""
            tell(f"sidestream: {counted(len(known))} left out as known{more}")
        if empty := of["empty"]:
            # The simulated GPU comes after imports: a module that asks for a GPU meanwhile finds none.
            more = "" if len(empty) == 1 else f" and {len(empty) - 1} more"
            tell(f"sidestream: nothing was checked in {empty[0]}{more}, since nothing ran on a GPU")


#: Shown with a test that fails.
_NO_GPU = "PyTorch finds no GPU here; with --sidestream-simulate the tests have a simulated one."


@pytest.fixture
def sidestream_check(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Run the test under ``sidestream.check``, and fail it at its end if there was a race or the check ended
    early.

    The value is the ``CheckedRun``. A test that does not request the fixture is not checked.
    ``--sidestream-suppress FILE`` names a file as for ``check(suppress=...)``, and ``--sidestream-baseline
    FILE`` known findings, which ``--sidestream-write-baseline FILE`` writes. ``--sidestream-sarif FILE``
    writes the findings of all tests for code scanning. With
    ``--sidestream-require-gpu`` a test fails if it ran nothing on a GPU. Where PyTorch finds no GPU,
    ``--sidestream-simulate``, or ``sidestream_simulate = true`` in pytest's configuration, simulates one.
    ``--sidestream-provoke RUNS`` calls a test with a race again, with the same fixtures, as ``provoke`` does.
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
    session: Any = config.pluginmanager.get_plugin("sidestream-session")
    # Most of the suppressed lines belong to other tests, so unused suppressions are not reported.
    runs = config.getoption("--sidestream-provoke")
    with checking(
        suppress=suppress, baseline=session.baseline, simulate=int(simulates), log=bool(runs and simulates)
    ) as found:
        yield found
    session.add(found, request.node)
    if found.ended is not None or not (found.is_clean or session.writes):
        text = found.text(unused=False)
        pytest.fail(f"{text}\n\n{_provoked(request.node, found, runs)}" if runs else text, pytrace=False)
    if requires and not found.operations:
        pytest.fail("this test ran nothing on a GPU (--sidestream-require-gpu)", pytrace=False)


def _provoked(test: Any, found: CheckedRun, runs: int) -> str:
    """Return what delays do to the results of a test function."""
    from sidestream._check_provoke import explored, provoke, raced

    if found._simulation is not None:
        return str(explored(found))
    arguments = {name: test.funcargs[name] for name in test._fixtureinfo.argnames}

    def again() -> Any:
        try:
            return test.obj(**arguments)
        except (pytest.fail.Exception, pytest.skip.Exception) as ended:
            raise RuntimeError(str(ended)) from None

    try:
        return str(provoke(again, pairs=raced(found.races), runs=runs))
    except Exception as error:
        return f"--sidestream-provoke: the test cannot be called again: {type(error).__name__}: {error}"
