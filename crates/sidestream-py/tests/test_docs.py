"""Checks that the Python in the pages for users parses, and that the names in it exist."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import sidestream
from forked import python

ROOT = Path(__file__).parents[3]


PAGES = [
    "README.md",
    "docs/python.md",
    "docs/images.md",
    "docs/augmentation.md",
    "docs/migration.md",
    "docs/tutorial.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_shows_python_with_names_that_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks, page
    for block in blocks:
        # An example may have an `…` in place of the reader's own code.
        ast.parse(textwrap.dedent(block).replace("…", "..."))
    names = set(re.findall(r"\bsidestream\.([A-Za-z_]\w*)", text)) - {"toml", "py", "git"}
    # A module that needs another library is not imported with the package.
    missing = {
        name
        for name in names
        if not hasattr(sidestream, name) and not importlib.util.find_spec(f"sidestream.{name}")
    }
    assert not missing, f"{page} names {missing}"


RESULTS = {name: inspect.get_annotations(of) for name, of in vars(sidestream).items() if isinstance(of, type)}


@pytest.mark.parametrize("name", [name for name, fields in RESULTS.items() if fields])
def test_help_says_what_each_field_of_a_result_is(name: str) -> None:
    shown = inspect.getdoc(getattr(sidestream, name)) or ""
    fields = [field for field in RESULTS[name] if not field.startswith("_")]
    assert not [field for field in fields if not re.search(rf"^    {field}: \S", shown, re.MULTILINE)]


@pytest.mark.torch
def test_what_a_result_exports_says_its_form_and_version() -> None:
    batches = sidestream.prefetch([1, 2], "cpu")
    traces = ROOT / "examples/traces"
    program = sidestream.check_program(ROOT / "examples/streams/hello_race.yaml")
    with sidestream.check() as checked:
        pass
    results: list[Any] = [
        sidestream.benchmark(sum, range(1000), repeat=2, device="cpu"),
        sidestream.compare(sum, max, range(1000), device="cpu", seconds=1e-6),
        sidestream.overlap("sim:h200", count=2),
        sidestream.Pipeline.sweep([abs], lambda size: size, [1], device="cpu"),
        sidestream.roofline(1e12, 1e9, device="sim:h200"),
        sidestream.diagnose(traces / "copy_bound.before.json.gz"),
        sidestream.diagnose([traces / "copy_bound.before.json.gz"]),
        program,
        *program.programs,
        checked,
        batches.statistics,
    ]
    schemas = [result.to_dict()["schema"] for result in results]
    assert all(re.fullmatch(r"sidestream\.[a-z.]+/[0-9]+", schema) for schema in schemas), schemas
    assert len(set(schemas)) == len(schemas)
    assert [json.loads(result.json())["schema"] for result in results] == schemas


def test_what_the_readme_shows_of_an_example_is_what_it_prints() -> None:
    text = (ROOT / "README.md").read_text()
    shown = re.findall(r"^```\n\$ python (examples/python/.*)\n((?:.*\n)*?)```$", text, re.MULTILINE)
    assert shown
    for command, lines in shown:
        script, *options = command.split()
        ran = subprocess.run(
            [sys.executable, ROOT / script, *options], capture_output=True, text=True, check=True, timeout=300
        )
        printed = ran.stdout.splitlines()
        # An ellipsis marks what is left out.
        missing = [line for line in lines.splitlines() if line != "…" and line not in printed]
        assert not missing, command


@pytest.mark.torch
def test_the_blocks_of_the_tutorial_run_one_after_the_other(tmp_path: Path) -> None:
    text = (ROOT / "docs/tutorial.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 7
    program = tmp_path / "tutorial.py"
    program.write_text("\n".join(blocks))
    # A simulated GPU is entered in the middle, which requires a process that has not used a GPU.
    ran = python(program)
    assert ran.returncode == 0, ran.stderr
    assert "no race" in ran.stdout and "Worth it: " in ran.stdout
    lines = program.read_text().splitlines()
    waits = [
        lines[int(line) - 1]
        for line in re.findall(r"^SYNC_IN_LOOP: .*tutorial\.py:(\d+)\)", ran.stdout, re.MULTILINE)
    ]
    assert [call for line in waits for call in ('.to("cuda")', ".item()") if call in line] == [".item()"]
    assert "the loader keeps up" in ran.stdout or "your loader is the limit" in ran.stdout


#: The number of items in each of the five texts.
ITEMS = [14, 14, 61, 66, 22]
#: Where an item was seen to work: a GPU has a date, which a page of measurements has, too.
SEEN = r"CPU|sim|stand-in|trace|(H[12]00) (2026-\d\d-\d\d)"
#: Test functions, in each language.
TESTS = {
    "test_*.py": r"^(?:async )?def (test_\w+)\(",
    "*.rs": r"#\[test\]\s*(?:(?://[^\n]*|#\[[^\]]*\])\s*)*fn (\w+)\(",
}


def known_tests() -> set[str]:
    return {
        name
        for files, pattern in TESTS.items()
        for path in (ROOT / "crates").rglob(files)
        for name in re.findall(pattern, path.read_text(), re.MULTILINE)
    }


def test_each_item_of_the_list_of_seeds_names_things_that_are_there() -> None:
    text = (ROOT / "docs/seeds.md").read_text()
    rows = [line for line in text.splitlines() if re.match(r"\| [0-4]\.[0-9]+ ", line)]
    numbers = [f"{text}.{item}" for text, count in enumerate(ITEMS) for item in range(1, count + 1)]
    assert [row.split("|")[1].strip() for row in rows] == numbers
    tests = known_tests()
    judged = re.findall(r"^\| ([^|]+?) \|", (ROOT / "docs/judged.md").read_text(), re.MULTILINE)
    blocks = [re.split(r", and |, | and | to ", each) for each in re.findall(r"judged \(([^)]+)\)", text)]
    assert not (missing := {each for of in blocks for each in of} - set(judged)), f"not judged: {missing}"
    # Tests are listed after the items, too: their names are the long ones.
    behind = set(re.findall(r"`(\w+(?:_\w+){3,})`", text[text.index("## Where a text is wrong") :]))
    assert not (missing := behind - tests), f"no test is called {missing}"
    measured = "".join((ROOT / f"docs/{page}.md").read_text() for page in ("performance", "reliability"))
    for row in rows:
        _, number, what, how, test, seen, _ = map(str.strip, row.split("|"))
        assert what and ("`" in how or "](" in how), row
        named = re.findall(r"`(\w+)`", test)
        # A row without a test says what is missing.
        assert named or (test == "none" and "Not done" in how), row
        assert not (missing := set(named) - tests), f"{number}: no test is called {missing}"
        for place in seen.split(", "):
            device = re.fullmatch(SEEN, place)
            assert device, f"{number}: {place}"
            near = rf"{device[1]}[^#]{{0,300}}?{device[2]}"
            assert not device[1] or re.search(near, measured), f"{number}: nothing was measured on {place}"
        for path in re.findall(r"\]\(\.\./([^)#]+)", row):
            assert (ROOT / path).exists(), path
