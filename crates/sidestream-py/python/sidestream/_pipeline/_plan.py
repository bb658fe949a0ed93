"""The steps that are issued for an item, in order, and their waits: plain data, without PyTorch.

An item has one of ``depth`` slots, in turn. A slot has memory: the buffers of captured stages, or the tensors
of the item, which the pipeline holds until the slot's next item comes. The same order makes both safe.

Why the waits suffice. All accesses to an item's slot are ordered after the head of the item (the upload, or
the stages of the first level if nothing is uploaded), since each level waits for the one before it. The
head waits for the last level of the slot's previous item, and so for all earlier accesses to the slot. Each
stage has one stream and runs the items in order, so its parameters need no wait. The first item of a run
waits for the caller's stream, and the caller's stream waits for the last level of each item that is handed
out. Between runs the heads wait for the last item, since all slots are freed at once.

Why no wait is superfluous: the tests remove each one, and find a race.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The caller's current stream, and the pipeline's upload stream. The stream of stage ``n`` is ``n``.
CALLER = -1
UPLOAD = -2

#: Events of a slot: after the caller's work at the item's arrival, and after the item's upload. The event of
#: stage ``n`` is ``n``.
ENTRY = -1
UPLOADED = -2


@dataclass(frozen=True)
class Step:
    """One step to issue. ``wait`` and ``record`` use an event of the item's slot; ``run`` runs the stage that
    has the number of the stream.
    """

    do: str
    stream: int
    #: The event of a wait or record.
    event: int | None = None


def item_steps(levels: tuple[tuple[int, ...], ...], *, uploads: bool, entry: bool) -> tuple[Step, ...]:
    """Return the steps for one item.

    A wait for a stage's event that comes before the record of that event is for the slot's previous item.

    Args:
        levels: The numbers of the stages, level by level.
        uploads: Whether a part of the item is copied to the device.
        entry: Whether the item must wait for the caller's stream: it was on the device already, or is the
            first of a run.
    """
    last = levels[-1]
    steps: list[Step] = []
    if uploads:
        steps += [Step("wait", UPLOAD, event) for event in last]
        steps += [Step("upload", UPLOAD), Step("record", UPLOAD, UPLOADED)]
    if entry:
        steps.append(Step("record", CALLER, ENTRY))
    for number, level in enumerate(levels):
        for stage in level:
            if number:
                steps += [Step("wait", stage, before) for before in levels[number - 1]]
            else:
                # With one level, a stream would only wait for itself or for a branch that shares no memory.
                if not uploads and len(levels) > 1:
                    steps += [Step("wait", stage, event) for event in last]
                if entry:
                    steps.append(Step("wait", stage, ENTRY))
                if uploads:
                    steps.append(Step("wait", stage, UPLOADED))
            steps += [Step("run", stage), Step("record", stage, stage)]
    return tuple(steps)


def hand_over_steps(levels: tuple[tuple[int, ...], ...]) -> tuple[Step, ...]:
    """Return the waits before the caller gets the result of an item."""
    return tuple(Step("wait", CALLER, stage) for stage in levels[-1])


def end_steps(levels: tuple[tuple[int, ...], ...]) -> tuple[Step, ...]:
    """Return the waits after the last item of a run, before the slots are freed. They use the events of the
    last item.
    """
    # Results of the last level belong to the caller, so with one level only uploads are freed.
    heads = (UPLOAD, *levels[0]) if len(levels) > 1 else (UPLOAD,)
    return tuple(Step("wait", head, stage) for head in heads for stage in levels[-1])


def default_depth(levels: tuple[tuple[int, ...], ...]) -> int:
    """Return the default number of items in flight: one at each level, and one that is being uploaded."""
    return len(levels) + 1
