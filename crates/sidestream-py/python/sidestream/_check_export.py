"""The report for other tools: SARIF, which code hosts show beside the source, and JUnit XML, which CI servers
read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import linecache
import os
import re
import sys
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from sidestream import _check_fix
from sidestream._check_baseline import Baseline, Finding, written
from sidestream._sidestream import __version__

if TYPE_CHECKING:
    from sidestream._check import CheckedRun
    from sidestream._checked import Place

#: Each kind of race and of remark, in the order of docs/guide/check.md.
RULES = {
    "RAW": "The second access reads what the first may still be writing",
    "WAR": "The second access overwrites what the first may still be reading",
    "WAW": "Both accesses write, and either may come last",
    "HOST_RAW": "The host reads what the device may be writing",
    "HOST_WAR": "The host overwrites what the device may be reading",
    "HOST_WAW": "The host and the device write, and either may come last",
    "UAF": "Memory is freed or reused while it may still be in use",
    "UBA": "Memory is used without being ordered after its allocation",
    "TIMING": "An elapsed time is asked of an event that may not be complete",
    "UNPINNED_ASYNC_COPY": "An asynchronous copy of pageable memory may block the host",
    "DEFAULT_STREAM_SERIALIZATION": "Work in the default stream makes other streams wait for each other",
    "WAIT_ON_UNRECORDED_EVENT": "A wait for an event without a record does nothing",
    "SYNC_IN_LOOP": "The host blocks in a loop",
    "FOREIGN_DEVICE_LAUNCH": "A kernel is launched on a stream of another than the current device",
    "STREAM_POOL_ALIAS": "Two of the program's streams are one, since the pool has no more",
    "HOST_CLOCK": "A clock is read around work that was not waited for",
    "MANY_STREAMS": "The program uses more streams than CUDA has connections",
    "STREAMS_MADE": "Streams are made again and again",
    "LATE_ERROR": "A call raised the error of an earlier kernel",
    "MEMORY_HELD": "Much memory cannot be reused because of record_stream",
    "MUCH_PINNED": "Much of the host's memory is pinned",
    "WAIT_NOT_NEEDED": "No observed access needs this wait",
}
#: Why a report ends early that is written while the program runs.
_RUNNING = "the program had not ended when this was written"
_LEVELS = {"error": "error", "warn": "warning"}
#: Characters that XML 1.0 does not allow.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def findings(found: CheckedRun, baseline: Baseline) -> list[Finding]:
    """Return what identifies the races and the remarks of a report."""
    return [*map(baseline.race, found.races), *map(baseline.remark, found.lints)]


def results(found: CheckedRun, baseline: Baseline, program: str) -> list[dict[str, Any]]:
    """Return the SARIF results of a report. ``program`` is the file to name where no line is known."""

    def location(stack: Sequence[Place]) -> dict[str, Any]:
        place = _check_fix.own(stack)
        if place is not None and place.file.startswith("<"):
            place = None
        file = program if place is None else place.file
        name = baseline.relative(file)
        artifact = {"uri": Path(file).absolute().as_uri()}
        if name is not None:
            artifact = {"uri": urllib.parse.quote(os.fsencode(name)), "uriBaseId": "%SRCROOT%"}
        region = {"startLine": 1 if place is None else place.line}
        if place is not None and (line := linecache.getline(file, place.line).rstrip()):
            region["startColumn"] = len(line) - len(line.lstrip()) + 1
            region["endColumn"] = len(line) + 1
        return {"physicalLocation": {"artifactLocation": artifact, "region": region}}

    def result(finding: Finding, level: str, text: str, stack: Sequence[Place]) -> dict[str, Any]:
        return {
            "ruleId": finding.kind,
            "level": level,
            "message": {"text": baseline.told(text)},
            "locations": [location(stack)],
            "partialFingerprints": {
                "sidestreamFinding/v1": hashlib.sha256(written([finding]).encode()).hexdigest()
            },
        }

    made = []
    for race in found.races:
        # The text links to the first access, since GitHub shows related locations by their links alone.
        text = f"{race._short().strip()}\n    fix: {race.fix}\n    [the first access](1)"
        sides = [
            {**location(side.stack), "message": {"text": baseline.told(side._short())}}
            for side in (race.first, race.second)
        ]
        one = result(baseline.race(race), _LEVELS[race.severity], text, race.second.stack)
        one["relatedLocations"] = [{**sides[0], "id": 1}]
        one["codeFlows"] = [{"threadFlows": [{"locations": [{"location": side} for side in sides]}]}]
        made.append(one)
    for remark in found.lints:
        made.append(result(baseline.remark(remark), "note", remark.text, remark.stack))
    return made


def sarif(results: Sequence[dict[str, Any]], problems: Iterable[str], skipped: Iterable[str]) -> str:
    """Return a SARIF 2.1.0 log of results, each finding once for a line. ``problems`` say why the check or
    the program ended early.
    """
    once: dict[str, dict[str, Any]] = {}
    for result in results:
        once.setdefault(json.dumps([result["partialFingerprints"], result["locations"]]), result)
    errors = [{"level": "error", "message": {"text": text}} for text in problems]
    notes = [{"level": "warning", "message": {"text": text}} for text in skipped]
    driver = {
        "name": "sidestream",
        "version": __version__,
        "rules": [{"id": kind, "shortDescription": {"text": text}} for kind, text in RULES.items()],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": not errors, "toolExecutionNotifications": errors + notes}],
        "results": list(once.values()),
    }
    return json.dumps(
        {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    )


def junit(found: CheckedRun, problems: Sequence[str], program: str) -> str:
    """Return the report as JUnit XML: a failed test for each race that is certain, an error for each of
    ``problems``, and a passed test for each warning and remark, or if there is nothing.
    """
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", name="sidestream.check")

    def case(
        name: str, stack: Sequence[Place] = (), tag: str = "", text: str = "", **attributes: str
    ) -> None:
        place = _check_fix.own(stack)
        named = name if place is None else f"{name} at {_check_fix.line(place)}"
        file = _check_fix.shown(program if place is None else place.file)
        made = ElementTree.SubElement(suite, "testcase", classname=_xml(file), name=_xml(named))
        if tag:
            told = {name: _xml(value) for name, value in attributes.items()}
            ElementTree.SubElement(made, tag, told).text = _xml(text)

    for race in found.races:
        name = f"{race.kind}, {race.second.operator} after {race.first.operator}"
        if race.severity == "error":
            case(name, race.second.stack, "failure", str(race), type=race.kind, message=race._head)
        else:
            case(name, race.second.stack, "system-out", str(race))
    for remark in found.lints:
        case(remark.code, remark.stack, "system-out", str(remark))
    for problem in problems:
        case("the check", (), "error", problem, message=problem)
    for text in found.skipped:
        case("not simulated", (), "skipped", message=text)
    if not len(suite):
        case("no race")
    for name, tag in (("tests", "."), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    made: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return made.decode()


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def distinct(files: Mapping[str, str | None]) -> None:
    """Find out whether the files of these options are different ones.

    Raises:
        ValueError: Two are the same.
    """
    options: dict[Path, str] = {}
    for option, file in files.items():
        if file and (other := options.setdefault(Path(file).resolve(), option)) != option:
            raise ValueError(f"{other} and {option} name the same file, {file}; give each its own")


def usable(file: Path) -> None:
    """Find out whether a file can be written, and leave it as it is.

    Raises:
        OSError: It cannot.
    """
    existed = file.exists()
    file.open("a").close()
    if not existed:
        file.unlink()


def put(file: Path, text: str) -> None:
    """Replace the whole file at once, so that a process that is killed meanwhile leaves the previous text.

    Raises:
        OSError: The file cannot be written.
    """
    part = file.with_name(file.name + ".part")
    try:
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


@dataclass
class Reports:
    """The report files of a run, by format: ``json``, ``sarif`` and ``junit``."""

    files: Mapping[str, Path]
    found: CheckedRun
    baseline: Baseline
    program: str
    #: What delays did, as data: for the program as it is, and with the calls that fix it.
    provoked: list[dict[str, Any]] = field(default_factory=list)
    _last: dict[str, str] = field(default_factory=dict)

    def write(self, died: str | None = None, running: bool = False) -> bool:
        """Write the files; while the program runs, those that have changed. Return whether that succeeded. A
        failure is printed.

        Args:
            died: How the program ended, if by an exception.
            running: Whether the program still runs.
        """
        done = True
        for name, file in self.files.items():
            text = self._text(name, died, running)
            if running and text == self._last.get(name):
                continue
            try:
                put(file, text)
                self._last[name] = text
            except OSError as error:
                print(f"the report cannot be written to {file}: {error}", file=sys.stderr)
                done = False
        return done

    def _text(self, name: str, died: str | None, running: bool) -> str:
        found = self.found
        ended = found.ended or (_RUNNING if running else None)
        if name == "json":
            return json.dumps({**found.to_dict(), "ended": ended, "provoked": self.provoked})
        problems = [problem for problem in (ended, died) if problem]
        if name == "junit":
            return junit(found, problems, self.program)
        return sarif(results(found, self.baseline, self.program), problems, found.skipped)
