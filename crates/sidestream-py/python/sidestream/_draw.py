"""Draws times as bars, for a notebook. The page loads nothing."""

from __future__ import annotations

import html
from collections.abc import Sequence

from sidestream import _units as units

_ROW, _NAME, _WIDTH, _ROOM = 20, 210, 420, 90


def bars(rows: Sequence[tuple[str, float]], limit_ns: float, lines: Sequence[str]) -> str:
    """Return HTML with a bar for each time, in nanoseconds, and a line at the limit.

    Args:
        rows: Names and times.
        limit_ns: The time below which none of them can go.
        lines: Lines of text: the first comes above the bars, the others below.
    """
    longest = max([ns for _, ns in rows] + [limit_ns, 1.0])
    height = _ROW * len(rows) + 4
    parts = []
    for at, (name, ns) in enumerate(rows):
        top, long = _ROW * at + 2, _WIDTH * ns / longest
        parts.append(f'<text x="{_NAME - 6}" y="{top + 13}" text-anchor="end">{html.escape(name)}</text>')
        parts.append(
            f'<rect x="{_NAME}" y="{top + 2}" width="{long:.1f}" height="{_ROW - 6}" fill-opacity="0.45"/>'
        )
        parts.append(f'<text x="{_NAME + long + 4:.1f}" y="{top + 13}">{html.escape(units.time(ns))}</text>')
    limit = _NAME + _WIDTH * limit_ns / longest
    parts.append(
        f'<line x1="{limit:.1f}" y1="0" x2="{limit:.1f}" y2="{height}" stroke="currentColor" '
        'stroke-dasharray="3 2"/>'
    )
    drawn = "".join(parts)
    first, *rest = (html.escape(line) for line in lines)
    return (
        f'<div>{first}<br><svg width="{_NAME + _WIDTH + _ROOM}" height="{height}" fill="currentColor" '
        f'font-size="12" role="img">{drawn}</svg>'
        f"<br>{'<br>'.join(rest)}</div>"
    )
