"""Checks that the Python code in the pages for users parses, and that the names in it exist."""

from __future__ import annotations

import ast
import csv
import importlib.util
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import sidestream
from forked import python

ROOT = Path(__file__).parents[3]


#: Each page that shows Python, by its path.
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", ROOT / "crates/sidestream-py/README.md", *(ROOT / "docs").rglob("*.md")]
    if "```python" in path.read_text()
)
#: Libraries besides PyTorch that a block may need. Such a block runs if the library is installed.
LIBRARIES = {"accelerate", "fastapi", "lightning", "ray", "torchvision", "transformers"}
NEEDS = {"gpu", "processes"} | LIBRARIES


def program_of(page: str) -> str:
    """Return the Python code of a page as one program, each line at its line number in the page.

    Readers see the blocks. A comment ``<!-- python`` has code that readers need not see, such as a small
    loader, and ``<!-- needs: gpu -->`` above a block gives the reason why it does not run here.
    """
    text = (ROOT / page).read_text()
    lines = [""] * (text.count("\n") + 1)
    shown = re.compile(
        r"^(?:<!-- needs: (?P<needs>\w+) -->\n+)?"
        r"(?:<!-- python\n(?P<hidden>.*?)^-->|```python\n(?P<block>.*?)^```)",
        re.MULTILINE | re.DOTALL,
    )
    for found in shown.finditer(text):
        kind = "block" if found["hidden"] is None else "hidden"
        code, first = found[kind], text.count("\n", 0, found.start(kind))
        # An example may have an `…` instead of the reader's own code.
        ast.parse(code.replace("…", "..."))
        needs = found["needs"]
        assert needs is None or needs in NEEDS, f"{page}:{first}: {needs} is none of {sorted(NEEDS)}"
        if needs is None or (needs in LIBRARIES and importlib.util.find_spec(needs)):
            lines[first : first + code.count("\n")] = code.replace("…", "...").splitlines()
    return "\n".join(lines)


@pytest.mark.parametrize("page", PAGES)
def test_the_page_shows_python_with_names_that_exist(page: str) -> None:
    program_of(page)
    text = (ROOT / page).read_text()
    names = set(re.findall(r"\bsidestream\.([A-Za-z_]\w*)", text)) - {"toml", "py", "git"}
    # A module that needs another library is not imported with the package.
    missing = {
        name
        for name in names
        if not hasattr(sidestream, name) and not importlib.util.find_spec(f"sidestream.{name}")
    }
    assert not missing, f"{page} names {missing}"


@pytest.mark.torch
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_the_page_run_one_after_the_other(page: str, tmp_path: Path) -> None:
    program = tmp_path / f"{Path(page).stem}.py"
    program.write_text(program_of(page))
    # Each page gets its own process: pages enter a simulated GPU, which requires a process that has used
    # none, and write files into their folder.
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    ran = python(program, cwd=tmp_path)
    assert ran.returncode == 0, f"{page}: {ran.stdout[-2000:]}{ran.stderr[-4000:]}"


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


@pytest.mark.torch
def test_what_the_readme_shows_of_a_script_is_what_it_prints() -> None:
    text = (ROOT / "README.md").read_text()
    shown = re.findall(r"^```\n\$ python (.*)\n((?:.*\n)*?)```$", text, re.MULTILINE)
    assert shown
    for command, lines in shown:
        ran = python(*command.split(), cwd=ROOT)
        printed = [line.rstrip() for line in (ran.stdout + ran.stderr).splitlines()]
        # An ellipsis marks an omission.
        missing = [line for line in lines.splitlines() if line != "…" and line not in printed]
        assert not missing, command
    # The loop on the page must equal the loop of the script.
    script = (ROOT / "examples/python/racy_copy.py").read_text()
    assert script[script.index("import torch") :] in text


@pytest.mark.torch
def test_the_tutorial_prints_what_it_says(tmp_path: Path) -> None:
    program = tmp_path / "tutorial.py"
    program.write_text(program_of("docs/guide/tutorial.md"))
    # The program enters a simulated GPU, which requires a process that has used none.
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
#: The place where a result was seen. For a GPU it has the day, as the measurements do.
SEEN = r"CPU|sim|stand-in|trace|(H[12]00) (2026-\d\d-\d\d)"
#: The pattern of a test function, by language.
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


def rows_of(data: Path) -> list[dict[str, str]]:
    with data.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert len(set(header)) == len(header) and all(header), data
    assert rows and all(len(row) == len(header) and row[0] for row in rows), data
    return [dict(zip(header, row, strict=True)) for row in rows]


#: The pattern of the block by which a page shows data.
SHOWN = r"^```\{csv-table\}\n:file: (\S+)\n:header-rows: 1\n```$"


def test_each_file_of_data_is_shown_by_a_page_that_links_to_it() -> None:
    files = set()
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        shown = re.findall(SHOWN, text, re.MULTILINE)
        assert len(shown) == text.count("```{csv-table}"), page
        # The page also links the file, for readers without the site.
        assert all(f"]({file})" in text for file in shown), page
        files |= {(page.parent / file).resolve() for file in shown}
    assert files == {file.resolve() for file in (ROOT / "docs").rglob("*.csv")}
    assert all(rows_of(file) for file in files)


def test_each_figure_has_its_device_its_date_and_its_command() -> None:
    for file in (ROOT / "docs/benchmarks").glob("*.csv"):
        for row in rows_of(file):
            assert row["device"] and re.fullmatch(r"2026-\d\d(-\d\d)?", row["date"]), f"{file}: {row}"
            assert row["command"], f"{file}: {row}"
            assert all((ROOT / script).exists() for script in re.findall(r"\S+\.py\b", row["command"])), row


def devices_and_days() -> set[tuple[str, str]]:
    """Return the real GPUs on which something was measured, and the days."""
    rows = [row for file in (ROOT / "docs/benchmarks").glob("*.csv") for row in rows_of(file)]
    real = [(re.match(r"(?:\d )?(H[12]00)", row["device"]), row["date"]) for row in rows]
    return {(device[1], date) for device, date in real if device}


def test_each_item_of_the_list_of_seeds_names_things_that_are_there() -> None:
    page = (ROOT / "docs/developers/seeds.md").read_text()
    rows = rows_of(ROOT / "docs/developers/seeds.csv")
    numbers = [f"{text}.{item}" for text, count in enumerate(ITEMS, 1) for item in range(1, count + 1)]
    assert [row["item"] for row in rows] == numbers
    tests = known_tests()
    judged = re.findall(r"^\| ([^|]+?) \|", (ROOT / "docs/developers/judged.md").read_text(), re.MULTILINE)
    named = [each for row in rows for each in re.findall(r"judged \(([^)]+)\)", row["what does it"])]
    blocks = {block for each in named for block in re.split(r", and |, | and | to ", each)}
    # The evidence that a text is wrong is a test or a block, too.
    wrong = page[page.index("## Where a text is wrong") : page.index("Exercise 3.3")]
    behind = [row.strip("|").split("|")[-1].strip() for row in re.findall(r"^\| \d.*$", wrong, re.MULTILINE)]
    assert behind
    shown = set(re.findall(r"`(\w+)`", " ".join(behind)))
    behind = [each for row in behind for each in re.split(r", (?!without)", row)]
    blocks |= {each for each in behind if "`" not in each} - {"below"}
    assert blocks and not (missing := blocks - set(judged)), f"not judged: {missing}"
    assert shown and not (missing := shown - tests), f"no test is called {missing}"
    measured = devices_and_days()
    reliability = (ROOT / "docs/developers/reliability.md").read_text()
    for row in rows:
        number, how = row["item"], row["what does it"]
        assert set(row["want"].split(", ")) <= {"run", "time", "diagnose", "check", "feed", "serve"}, row
        assert row["a reader wants"] and ("`" in how or "](" in how), row
        # A row without a test must say what is missing.
        assert row["test"] or "Not done" in how, row
        assert not (missing := {*row["test"].split(", ")} - {"", *tests}), f"{number}: no test {missing}"
        for place in row["seen on"].split(", "):
            device = re.fullmatch(SEEN, place)
            assert device, f"{number}: {place}"
            near = rf"{device[1]}[^#]{{0,300}}?{device[2]}"
            there = not device[1] or (device[1], device[2]) in measured or re.search(near, reliability)
            assert there, f"{number}: nothing was measured on {place}"
        for path in re.findall(r"\]\((\.\./[^)#]+)", how):
            assert (ROOT / "docs/developers" / path).exists(), path
        for path in re.findall(r"\b(?:examples|crates)/[\w./-]+\.(?:py|yaml)\b", how):
            assert (ROOT / path).exists(), path
