"""Checks that the type stub of the calls that drive a recorder agrees with the extension."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import driven


def typed() -> dict[str, ast.FunctionDef]:
    tree = ast.parse(Path(driven.__file__).read_text(encoding="utf-8"))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {each.name: each for each in classes[0].body if isinstance(each, ast.FunctionDef)}


def test_each_call_has_the_arguments_and_defaults_of_the_extension() -> None:
    for name, function in typed().items():
        real = inspect.signature(getattr(driven.Recorder, name)).parameters.values()
        given = function.args
        assert [one.name for one in real] == [one.arg for one in (*given.args, *given.kwonlyargs)], name
        defaults = [
            ast.literal_eval(default)
            for default in (*given.defaults, *given.kw_defaults)
            if default is not None
        ]
        assert [one.default for one in real if one.default is not one.empty] == defaults, name


def test_those_that_the_stub_leaves_out_are_these() -> None:
    allowed = Path(__file__).with_name("driven.allowlist").read_text(encoding="utf-8")
    assert sorted(line.rpartition(".")[2] for line in allowed.split()) == sorted(typed())
