"""The remarks of a check on things other than races: each with its text, its line and advice."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sidestream import _check_fix
from sidestream._system import memory_bytes

if TYPE_CHECKING:
    from sidestream._checked import Place

Stack = tuple["Place", ...]
#: The code of a remark, its text, and the stack of the call.
Said = tuple[str, str, Stack]
#: Connections that CUDA makes to a device unless CUDA_DEVICE_MAX_CONNECTIONS sets their number.
CONNECTIONS = 8
#: Maximum number of streams that are created at one place, used and dropped without a remark.
LET_GO = 8


def remarks(value: Mapping[str, Any], simulated: bool) -> Iterator[Said]:
    """Yield all remarks, from what the recorder reports on a simulated or a real GPU."""
    noticed = value["noticed"]
    for said in (_idle(noticed["idle"]), _timed(noticed["timed"]), _queued(noticed["queued"])):
        yield from _once(said)
    yield from _late(noticed["late"])
    yield from _many(noticed["used"])
    yield from _made(noticed["made"])
    yield from _held(noticed["held"], simulated)
    yield from _pinned(noticed["pinned"])
    # A wait between the two streams of a race may be one that comes too early for it.
    raced = {(race["first"]["stream"], race["second"]["stream"]) for race in value["races"]}
    waits = [wait for wait in noticed["waits"] if (wait["source"], wait["stream"]) not in raced]
    yield from _waits(waits)


def _once(said: Iterable[Said]) -> Iterable[Said]:
    """Return the remarks with a line in the program, one for each line."""
    found: dict[Any, Said] = {}
    for one in said:
        if (at := _check_fix.own(one[2])) is not None:
            found.setdefault((at.file, at.line), one)
    return found.values()


#: Operators for which the host must know the size of the result.
_SIZED = frozenset(
    {
        "_unique2",
        "bincount",
        "masked_select",
        "nonzero",
        "repeat_interleave",
        "unique_consecutive",
        "unique_dim",
    }
)
#: The text of a remark, for each way in which the host waits.
_IDLE = {
    "value": (
        "the host reads a value here each time, and enqueues nothing until it is complete: read it a step "
        "later (`sidestream.fetch`), or after the loop; `sidestream.RunningMean` keeps a mean without "
        "waiting"
    ),
    "download": (
        "the host blocks here each time until the copy to it is complete, and enqueues nothing meanwhile: "
        "copy into contiguous pinned memory with `non_blocking=True`, and read it a step later, after an "
        "event (`sidestream.fetch` does both), or copy once after the loop"
    ),
    "sized": (
        "the size of the result depends on values, so the host blocks here each time until they are "
        "complete, and enqueues nothing meanwhile: `torch.where`, or a product with the mask, keeps the size"
    ),
    "checked": (
        "`torch.linalg` checks for an error here each time, so the host blocks until the result is complete, "
        "and enqueues nothing meanwhile: the function of the same name with `_ex` checks only on request"
    ),
    "landed": (
        "the host blocks here each time for data that was copied to it, and the device has no kernels to run "
        "meanwhile: read it a step later, after an event that is recorded after the copy "
        "(`sidestream.fetch` does that)"
    ),
    "explicit": (
        "the host blocks here each time until the device has no kernels left to run, and nothing was "
        "observed that needs it: no time is taken after it, no value is read, and no host memory of a copy "
        "is reused; leave the wait out, or, if it orders streams, let one wait for the other "
        "(`wait_stream`), which does not block the host"
    ),
}


def _idle(values: list[Any]) -> Iterator[Said]:
    """Yield the lines at which the host waits again and again."""
    for value in values:
        operator, how = value["at"]["operator"], value["how"]
        if how == "read":
            how = (
                "checked"
                if operator == "_linalg_check_errors"
                else "sized" if operator in _SIZED or "index" in operator else "value"
            )
        yield "SYNC_IN_LOOP", _IDLE[how], value["at"]["stack"]


def _timed(values: list[Any]) -> Iterator[Said]:
    """Yield readings of a clock between which work was submitted but not waited for."""
    for first, second in values:
        since = _check_fix.own(first["stack"])
        if since is not None:
            text = (
                f"{second['operator']} is read while work that was launched since {_check_fix.line(since)} "
                f"({first['operator']}) is not waited for: between the two lies the time of the launches, "
                "not that of the work; wait first (`torch.cuda.synchronize()`), or measure with events"
            )
            yield "HOST_CLOCK", text, second["stack"]


def _queued(values: list[Any]) -> Iterator[Said]:
    """Yield readings that start a clock before earlier kernels are complete."""
    for before, first, second in values:
        launched, ends = (_check_fix.own(side["stack"]) for side in (before, second))
        if launched is not None and ends is not None:
            text = (
                f"{first['operator']} starts a measurement while earlier work ({before['operator']} at "
                f"{_check_fix.line(launched)}) may still be running, and the host waits for that work before "
                f"{_check_fix.line(ends)} reads the clock again: the measured time includes the rest of the "
                "earlier work; wait before the first reading as well (`torch.cuda.synchronize()`), or "
                "measure with events"
            )
            yield "HOST_CLOCK", text, first["stack"]


def _late(late: Mapping[str, Any] | None) -> Iterator[Said]:
    """Yield a device error, with the calls that it may belong to. With CUDA_LAUNCH_BLOCKING=1 it belongs to
    the call that raises it.
    """
    if late is None or os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        return
    head = (
        f"`{late['text'].splitlines()[0]}` was raised by {late['at']['operator']}, and CUDA raises such an "
        "error of a kernel at a later call"
    )
    names = "CUDA_LAUNCH_BLOCKING=1 names the call"
    if not late["count"]:
        text = (
            f"{head}; the host knew all operators on cuda:{late['device']} to be complete, so a kernel that "
            f"is not an operator may be at fault: {names}"
        )
    else:
        calls = "1 call" if late["count"] == 1 else f"one of {late['count']:,} calls"
        last = "; ".join(_call(side, stream, count) for side, stream, count in late["last"])
        text = (
            f"{head}. Unless a kernel that is not an operator is at fault, it belongs to {calls} on "
            f"cuda:{late['device']} that the host did not know to be complete, the last first: "
            f"{last}. {names}"
        )
    yield "LATE_ERROR", text, late["at"]["stack"]


def _call(side: Mapping[str, Any], stream: str, count: int) -> str:
    at = _check_fix.own(side["stack"])
    text = f"{side['operator']} on {stream}"
    if at is not None:
        source = _check_fix.source(at)
        text += f" at {_check_fix.line(at)}" + (f" ({source})" if source else "")
    return text if count == 1 else f"{text}, {count:,} times"


def _many(used: list[Any]) -> Iterator[Said]:
    """Yield devices with more streams than connections, with the line that created most of the streams. If
    CUDA_DEVICE_MAX_CONNECTIONS is set, the user already knows about connections.
    """
    if "CUDA_DEVICE_MAX_CONNECTIONS" in os.environ:
        return
    for device in sorted({device for device, _ in used}):
        stacks = [side["stack"] for on, side in used if on == device]
        if len(stacks) > CONNECTIONS:
            text = (
                f"the program uses {len(stacks)} streams on cuda:{device}, and by default CUDA has "
                f"{CONNECTIONS} connections to a device: work of streams that share one may wait for each "
                "other though nothing orders it (Connections in docs/reference/stream-programs.md has a "
                "program that shows it); use fewer streams, or set CUDA_DEVICE_MAX_CONNECTIONS, up to 32"
            )
            yield "MANY_STREAMS", text, max(stacks, key=stacks.count)


def _made(values: list[Any]) -> Iterator[Said]:
    """Yield lines at which streams are created again and again."""
    lines: dict[Any, tuple[int, int, Stack]] = {}
    for side, count, let_go in values:
        stack = side["stack"]
        if (at := _check_fix.own(stack)) is not None:
            counted = lines.get((at.file, at.line), (0, 0, stack))
            lines[(at.file, at.line)] = (counted[0] + count, counted[1] + let_go, stack)
    for count, let_go, stack in lines.values():
        if let_go > LET_GO:
            text = (
                f"{count:,} streams were made here, and {let_go:,} of them were used and dropped: PyTorch "
                "has 32 of each priority and hands them out in turn, so a stream that seems new may have "
                "pending work of other code, and memory that was freed on a stream is reused only there; "
                "make the stream once, before the loop"
            )
            yield "STREAMS_MADE", text, stack


def _held(values: list[Any], simulated: bool) -> Iterator[Said]:
    """Yield memory that was freed and cannot be reused yet."""
    # On a simulated GPU, work takes no time, so only a wait of the host shows that work is complete.
    since = ", and the host has not waited for {} since" if simulated else ""
    for side, stream, size in sorted(values, key=lambda held: -held[2]):
        text = (
            f"{size:,} bytes that were freed could not be used again when the check looked, because this line"
            f" records {stream} for them{since.format(stream)}: PyTorch keeps such memory until all work is "
            f"complete that {stream} had when it was freed; instead, let the stream on which it was "
            f"allocated wait for {stream} before the last reference dies (`home.wait_stream({stream})`): "
            "then that stream can reuse it at once"
        )
        yield "MEMORY_HELD", text, side["stack"]


def _pinned(value: Any) -> Iterator[Said]:
    """Yield a remark if much of the host's memory was pinned at once."""
    if value is not None:
        pinned, memory, stack = value[0], memory_bytes(), value[1]["stack"]
        by = "" if _check_fix.own(stack) else ", by a thread that a loader or another library has for it,"
        text = (
            f"with this allocation{by} {pinned:,} bytes are pinned at once, {100 * pinned // memory} % of "
            f"the host's {memory:,}: the system can neither move pinned memory nor write it to disk, and has "
            "less left for everything else, such as its file cache; pin memory only for copies in flight, "
            "and reuse it"
        )
        yield "MUCH_PINNED", text, stack


def _waits(values: list[Any]) -> Iterator[Said]:
    """Yield waits that no observed access needs."""
    for wait in values:
        count, followed = wait["count"], wait["followed"]
        all_of = "it was" if count == 1 else f"{followed:,} of {count:,} such waits were"
        text = (
            f"no access that was observed in this run needs this wait of {wait['stream']} for "
            f"{wait['source']}: {all_of} followed until the host had waited for {wait['source']} or the "
            "program had ended, and all accesses to the same bytes are ordered without it, too. Kernels "
            "that are not operators may need it; `drop-wait` of `sidestream diagnose` on a trace shows its "
            "cost"
        )
        yield "WAIT_NOT_NEEDED", text, wait["at"]["stack"]
