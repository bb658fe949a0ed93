"""The configuration of Sphinx, which builds the site from the Markdown files of this folder: ``cargo xtask
site``.

Python's reference comes from docstrings, the command's from its own help. Links of pages to files outside
this folder go to the repository, whose address Cargo.toml states.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import sidestream

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PACKAGE = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]

project = "Sidestream"
author = copyright = "The authors of Sidestream"
version = release = sidestream.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["conf.py"]
html_theme = "furo"
html_title = f"Sidestream {release}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
# Options in tables keep their two hyphens.
smartquotes = False
# Anchors follow GitHub's rules, so that a link works in both places.
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
# This way Lightning need not be installed.
autodoc_mock_imports = ["lightning", "pytorch_lightning"]
autodoc_class_signature = "mixed"
# Each class documents the fields of its results in one list.
napoleon_use_ivar = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# A block without a language is the output of a command.
highlight_language = "none"
# An ellipsis for omitted code does not parse.
suppress_warnings = ["misc.highlighting_failure"]

#: The address at which a release's files can be viewed. There is no public address before the first release.
REPOSITORY = "" if ".invalid/" in PACKAGE["repository"] else f"{PACKAGE['repository']}/blob/v{release}/"


def _linked(page: Path, text: str) -> str:
    """Return the text of a page. Links to files outside this folder go to the repository, or are removed."""

    def sent(link: re.Match[str]) -> str:
        shown, target = link["shown"], link["target"]
        path, mark, anchor = target.partition("#")
        path = Path(os.path.normpath(page.parent / path))
        if "://" in target or not target.partition("#")[0]:
            return link[0]
        if path.is_relative_to(DOCS):
            return (
                f"{link['picture']}[{shown}]({path.relative_to(DOCS)}{mark}{anchor})"
                if page.parent == ROOT
                else link[0]
            )
        return f"[{shown}]({REPOSITORY}{path.relative_to(ROOT)})" if REPOSITORY else shown

    return re.sub(r"(?P<picture>!?)\[(?P<shown>[^\]]+)\]\((?P<target>[^)\s]*)\)", sent, text)


def _help() -> str:
    """Return the help of the command and of each of its verbs, as sections."""

    def asked(*verb: str) -> str:
        command = [sys.executable, "-m", "sidestream", *verb, "--help"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    verbs = re.findall(r"^  (\w+) ", asked().partition("Commands:")[2].partition("Options:")[0], re.MULTILINE)
    shown = [
        f"## sidestream {verb}\n\n```\n{asked(verb).rstrip()}\n```\n" for verb in verbs if verb != "help"
    ]
    return "\n".join(shown)


def _source(app: Any, page: str, text: list[str]) -> None:
    text[0] = _linked(DOCS / f"{page}.md", text[0])
    if page == "index":
        # The first page is the repository's README.
        text[0] = _linked(ROOT / "README.md", (ROOT / "README.md").read_text()) + "\n" + text[0]
    if page == "reference/command":
        text[0] += "\n" + _help()


def setup(app: Any) -> None:
    app.connect("source-read", _source)
