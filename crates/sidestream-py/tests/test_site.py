"""The site is built without a warning, its links have targets, and its reference has every public name."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import sidestream
from sidestream import images

ROOT = Path(__file__).parents[3]
pytest.importorskip("sphinx", reason="Sphinx needs Python 3.11 or later")


class Page(HTMLParser):
    """The link targets and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key == "id" and value:
                self.anchors.add(value)
            elif key in ("href", "src") and value and tag in ("a", "img"):
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--quiet",
        "--fail-on-warning",
        "--keep-going",
        str(ROOT / "docs"),
    ]
    ran = subprocess.run([*command, str(made)], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    return made


def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    assert len(pages) > 20
    lost = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or parts.path.startswith("../rust/"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else {"", parts.fragment}
            if not target.exists() or unquote(parts.fragment) not in anchors:
                lost.append(f"{path.relative_to(site)}: {link}")
    assert not lost


def test_the_reference_has_every_public_name(site: Path) -> None:
    anchors = Page((site / "reference/python.html").read_text()).anchors
    classes = [name for name, value in vars(sidestream).items() if isinstance(value, type)]
    names = [f"sidestream.{name}" for name in {*sidestream.__all__, *classes} - {"__version__"}]
    names += [f"sidestream.images.{name}" for name in images.__all__]
    assert not sorted(set(names) - anchors)


def test_the_help_of_each_verb_is_a_section(site: Path) -> None:
    anchors = Page((site / "reference/command.html").read_text()).anchors
    verbs = ("overlap", "run", "check", "diagnose", "roofline", "devices")
    assert {f"sidestream-{verb}" for verb in verbs} <= anchors
