"""Formats times and sizes as the command does."""

from __future__ import annotations


def time(ns: float) -> str:
    """Return a time as text, in a readable unit."""
    for unit, size in (("ns", 1e3), ("µs", 1e6), ("ms", 1e9)):
        if ns < size:
            return f"{ns * 1e3 / size:.4g} {unit}"
    return f"{ns / 1e9:.4g} s"


def size(count: int) -> str:
    """Return a number of bytes as text, in a readable unit."""
    if count < 10_000:
        return f"{count} B"
    for unit, most in (("kB", 1e7), ("MB", 1e10)):
        if count < most:
            return f"{count * 1e4 / most:.1f} {unit}"
    return f"{count / 1e9:.1f} GB"
