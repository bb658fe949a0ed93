"""Draws times as bars, and what happens at the same time as lanes, as SVG and as text. Pages load nothing."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from sidestream import _units as units
from sidestream._arguments import whole

_ROW, _NAME, _WIDTH, _ROOM = 20, 210, 420, 90

#: Where something begins and ends.
Spans = Sequence[tuple[float, float]]


def bars(rows: Sequence[tuple[str, float | Spans]], limit_ns: float, lines: Sequence[str]) -> str:
    """Return HTML with a bar for each time, in nanoseconds, and a line at the limit.

    Args:
        rows: Names, and times or spans of time.
        limit_ns: The time below which none of them can go.
        lines: Lines of text: the first comes above the bars, the others below.
    """
    first, *rest = (html.escape(line) for line in lines)
    return f"<div>{first}<br>{svg(rows, limit_ns)}<br>{'<br>'.join(rest)}</div>"


def svg(rows: Sequence[tuple[str, float | Spans]], limit_ns: float, style: str = "") -> str:
    """Return the bars alone. Each row ends with its time, or the sum of its spans."""
    drawn = [(name, [(0.0, of)] if isinstance(of, (int, float)) else of) for name, of in rows]
    longest = max([end for _, spans in drawn for _, end in spans] + [limit_ns, 1.0])
    height = _ROW * len(rows) + 4
    parts = []
    for at, (name, spans) in enumerate(drawn):
        top, scale = _ROW * at + 2, _WIDTH / longest
        parts.append(f'<text x="{_NAME - 6}" y="{top + 13}" text-anchor="end">{html.escape(name)}</text>')
        # A gap shows where one span follows another.
        gap = 0.6 if len(spans) > 1 else 0.0
        for begin, end in spans:
            x, long = _NAME + begin * scale, max((end - begin) * scale - gap, min(gap, 0.2))
            parts.append(
                f'<rect x="{x:.1f}" y="{top + 2}" width="{long:.1f}" height="{_ROW - 6}" '
                'fill-opacity="0.45"/>'
            )
        ends, total = max((end for _, end in spans), default=0.0), sum(end - begin for begin, end in spans)
        x = _NAME + ends * scale + 4
        parts.append(f'<text x="{x:.1f}" y="{top + 13}">{html.escape(units.time(total))}</text>')
    limit = _NAME + _WIDTH * limit_ns / longest
    parts.append(
        f'<line x1="{limit:.1f}" y1="0" x2="{limit:.1f}" y2="{height}" stroke="currentColor" '
        'stroke-dasharray="3 2"/>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_NAME + _WIDTH + _ROOM}" height="{height}" '
        f'{style}fill="currentColor" font-size="12" role="img">{"".join(parts)}</svg>'
    )


def text(lanes: Mapping[str, Spans], until: float, columns: int) -> list[str]:
    """Return a line for each lane, in the frame of ``diagnose``: the first letter of its name where it is
    busy for half of a column or more, a small one where for less.
    """
    label = max(map(len, lanes), default=0)
    columns = max(columns - label - 5, 20)
    lines = []
    for name, spans in lanes.items():
        busy = [0.0] * columns
        for begin, end in spans:
            begin, end = begin / until * columns, min(end / until * columns, columns)
            for at in range(int(begin), min(int(end) + 1, columns)):
                busy[at] += max(min(end, at + 1) - max(begin, at), 0.0)
        cells = (name[0].upper() if share >= 0.5 else name[0] if share > 0.01 else " " for share in busy)
        lines.append(f"  {name:{label}} |{''.join(cells)}|")
    return lines


class Pictured:
    """A plan with a picture: what its lanes do during a step, in milliseconds, and the least time of it."""

    lanes: Mapping[str, Spans]
    predicted_ms: float
    measured_ms: float | None

    @property
    def limit_ms(self) -> float:
        """The least time of the step."""
        raise NotImplementedError

    def timeline(self, columns: int = 100) -> str:
        """Return the predicted step as a line of text for each lane.

        Raises:
            TypeError: ``columns`` is not a whole number.
            ValueError: It is less than 1.
        """
        columns = whole("columns", columns, 1, "a number of characters")
        return "\n".join(text(self.lanes, max(self.predicted_ms, 1e-9), columns))

    def svg(self) -> str:
        """Return the predicted step as an SVG picture, with the limit as a line."""
        return svg(self._rows(), 1e6 * self.limit_ms, 'style="color:#14171b;background:#fff" ')

    def _rows(self) -> list[tuple[str, float | Spans]]:
        rows: list[tuple[str, float | Spans]] = [
            (name, [(1e6 * begin, 1e6 * end) for begin, end in spans]) for name, spans in self.lanes.items()
        ]
        rows.append(("step, predicted", 1e6 * self.predicted_ms))
        return rows + ([("step, measured", 1e6 * self.measured_ms)] if self.measured_ms is not None else [])

    def _repr_html_(self) -> str:
        return bars(self._rows(), 1e6 * self.limit_ms, str(self).split("\n"))
