"""The common base of results: JSON, HTML for a notebook, and data classes built from JSON."""

from __future__ import annotations

import html
import json
import types
import typing
from typing import Any


class Result:
    """A result: ``print`` shows it as text, a notebook as HTML, and ``to_dict`` and ``json`` export it."""

    _style = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as new dictionaries and lists."""
        raise NotImplementedError

    def json(self) -> str:
        """Return the value of ``to_dict`` as one line of JSON."""
        return json.dumps(self.to_dict())

    def _repr_html_(self) -> str:
        return f"<pre{self._style}>{html.escape(str(self))}</pre>"


class Told(Result):
    """A result that the extension returned as JSON and as text."""

    def __init__(self, as_json: str, as_text: str) -> None:
        """Take the result as JSON and as text. The functions of the package make these."""
        self._json = as_json
        self._text = as_text

    def to_dict(self) -> dict[str, Any]:
        """Return the result as new dictionaries and lists, with the fields of the JSON."""
        value: dict[str, Any] = json.loads(self._json)
        return value

    def json(self) -> str:
        """Return the result as one line of JSON."""
        return self._json

    def __str__(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._json == other._json

    def __hash__(self) -> int:
        return hash(self._json)


def made(of: Any, value: Any) -> Any:
    """Build a value of a type from a JSON value: tuples from lists, and data classes from objects, by the
    names of their fields.

    Keys that the data class does not have are ignored: a later version of a schema may have more. A value
    that has the type is kept.
    """
    parts = typing.get_args(of)
    if value is None:
        return None
    if typing.get_origin(of) in (types.UnionType, typing.Union):
        return made(parts[0], value)
    if typing.get_origin(of) is tuple:
        kinds = parts[:1] * len(value) if parts[-1] is ... else parts
        return tuple(made(kind, one) for kind, one in zip(kinds, value, strict=True))
    if hasattr(of, "__dataclass_fields__") and not isinstance(value, of):
        types_of = typing.get_type_hints(of)
        return of(
            **{name: made(types_of[name], value[name]) for name in of.__dataclass_fields__ if name in value}
        )
    return value
