"""``Pipeline.sweep``: the speed of each mode of a pipeline, by batch size."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sidestream._arguments import whole
from sidestream._devices import SIMULATED_TIMES, has_no_times
from sidestream._pipeline._choice import MODES, SERIAL, Choice, html_table
from sidestream._pipeline._stage import StageError
from sidestream._results import Result

#: Number of batches of each size, which are used in turn.
BATCHES = 4


@dataclass(frozen=True)
class SweepRow:
    """The speed of a pipeline at one batch size.

    Attributes:
        size: Number of samples in a batch.
        choice: The measurement: seconds per step in each mode, and the mode that a ``Pipeline`` would choose.
            None if a stage ran out of memory.
        failed: The reason if there are no figures; otherwise empty.
    """

    size: int
    choice: Choice | None
    failed: str = ""

    @property
    def steps_per_s(self) -> dict[str, float]:
        """Steps per second after warm-up, by mode; ``serial`` is the plain loop."""
        return {} if self.choice is None else {m: 1 / s for m, s in self.choice.seconds_per_item.items()}

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second in the mode that a ``Pipeline`` would choose."""
        return None if self.choice is None else self.size * self.steps_per_s[self.choice.mode]

    @property
    def gain(self) -> float | None:
        """The relative gain in steps per second over the plain loop: in the mode that a ``Pipeline`` would
        choose, or if that is the plain loop, in the fastest other mode. None if no other mode was measured.
        """
        steps = self.steps_per_s
        others = [rate for mode, rate in steps.items() if mode != SERIAL]
        if self.choice is None or not others:
            return None
        return (max(others) if self.choice.mode == SERIAL else steps[self.choice.mode]) / steps[SERIAL] - 1

    @property
    def verdict(self) -> str:
        """One sentence that says whether streams or graphs are worth their effort at this size."""
        if self.choice is None:
            return f"no figures: {self.failed}"
        if self.gain is None:
            return f"nothing was compared: {self.choice.reason}"
        if self.choice.mode == SERIAL:
            return f"do not bother: {self.choice.reason}"
        return f"worth it: {1 + self.gain:.2f} times as fast with {self.choice.mode}"


@dataclass(frozen=True)
class Sweep(Result):
    """The speed of each mode of a pipeline, by batch size. ``print`` shows a table.

    Attributes:
        stages: The names of the stages, in order.
        device: ``cpu``, or a GPU as ``cuda:0`` with its name.
        rows: A row for each size, in the order in which the sizes were given.
    """

    stages: str
    device: str
    rows: tuple[SweepRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as new dictionaries and lists, of the schema ``sidestream.pipeline.sweep/1``."""
        figures = ("size", "steps_per_s", "samples_per_s", "gain", "verdict")
        rows = [
            {name: getattr(row, name) for name in figures}
            | {"choice": None if row.choice is None else row.choice.to_dict()}
            for row in self.rows
        ]
        where = {"stages": self.stages, "device": self.device}
        return {"schema": "sidestream.pipeline.sweep/1", **where, "rows": rows}

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells)]
        lines = [
            "  " + "  ".join([*(cell.rjust(width) for cell, width in zip(row[:-1], widths)), row[-1]])
            for row in cells
        ]
        return "\n".join([self._title(), *lines, *(f"  note: {note}" for note in self._notes())])

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self._notes())
        return f"<div><p>{html.escape(self._title())}</p>{html_table(head, rows)}<ul>{notes}</ul></div>"

    def _title(self) -> str:
        return f"{self.stages} on {self.device}: steps a second after warm-up, by the size of a batch"

    def _notes(self) -> list[str]:
        return [f"batch {row.size}: {note}" for row in self.rows if row.choice for note in row.choice.notes]

    def _cells(self) -> list[list[str]]:
        modes = [mode for mode in MODES if any(mode in row.steps_per_s for row in self.rows)]
        cells = [["batch", *modes, "gain", "samples/s", "verdict"]]
        for row in self.rows:
            steps = [f"{row.steps_per_s[mode]:.1f}" if mode in row.steps_per_s else "-" for mode in modes]
            gain = "-" if row.gain is None else f"{100 * row.gain:+.1f} %"
            samples = "-" if row.samples_per_s is None else f"{row.samples_per_s:.0f}"
            cells.append([str(row.size), *steps, gain, samples, row.verdict])
        return cells


def swept(
    stages: str,
    device: str,
    measured: Callable[[list[Any]], Choice],
    make_batch: Callable[[int], Any],
    sizes: Iterable[int],
) -> Sweep:
    """Measure the batches of each size."""
    if not callable(make_batch):
        raise TypeError(
            f"make_batch is {make_batch!r}; give a function that is given a size and returns a batch of it"
        )
    if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Iterable):
        raise TypeError(f"sizes is {sizes!r}; give sizes of a batch, as in (8, 32, 128)")
    wanted = [whole("one of sizes", size, 1, "how many samples a batch has") for size in sizes]
    if not wanted:
        raise ValueError("sizes is empty; give sizes of a batch, as in (8, 32, 128)")
    rows = []
    for size in wanted:
        try:
            choice = measured([make_batch(size) for _ in range(BATCHES)])
            rows.append(
                SweepRow(size, None, SIMULATED_TIMES)
                if has_no_times(device)
                else SweepRow(size, choice)
            )
        except StageError as error:
            if type(error.__cause__).__name__ != "OutOfMemoryError":
                raise
            rows.append(SweepRow(size, None, f"stage `{error.stage}` ran out of the device's memory"))
    return Sweep(stages, device, tuple(rows))
