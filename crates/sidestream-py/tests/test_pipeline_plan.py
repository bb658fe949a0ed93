"""The steps that a pipeline issues, judged by the checker: they have no race, and each wait is needed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import sidestream
from sidestream._pipeline._plan import (
    CALLER,
    UPLOAD,
    Step,
    default_depth,
    end_steps,
    hand_over_steps,
    item_steps,
)

Levels = tuple[tuple[int, ...], ...]

SHAPES: list[Levels] = [
    ((0,), (1,)),
    ((0,), (1,), (2,)),
    ((0,), (1, 2), (3,)),
    ((0, 1), (2,)),
    ((0,), (1, 2)),
    ((0,),),
    ((0, 1),),
]


class Program:
    """The stream program of a pipeline's runs, as PyTorch's allocator and the stages' kernels make it. Memory
    of the pipeline is reused at once. Memory of the caller is reused only if ``polls``: then the allocator
    has observed that the work is complete, and this knowledge of the host would hide a missing wait.
    """

    def __init__(
        self,
        levels: Levels,
        *,
        uploads: bool,
        on_device: bool,
        callers: int = 1,
        captured: bool = False,
        polls: bool = False,
    ) -> None:
        self.levels = levels
        self.stages = [stage for level in levels for stage in level]
        self.depth = default_depth(levels)
        self.uploads, self.on_device, self.callers, self.captured, self.polls = (
            uploads,
            on_device,
            callers,
            captured,
            polls,
        )
        self.ops: list[str] = []
        #: Each wait's place in the plan, by the number of its op.
        self.sites: dict[int, tuple[object, ...]] = {}
        self.names: set[str] = set()
        #: Freed blocks, by their stream and their use.
        self.freed: dict[str, list[str]] = {}
        self.held: list[list[tuple[str, str]]] = [[] for _ in range(self.depth)]
        self.calls = self.items = 0
        #: The index of the first op of the latest run.
        self.latest = 0

    def op(self, do: str, fields: str) -> None:
        self.ops.append(f"{{do: {do}, {fields}}}")

    def caller(self) -> str:
        return f"caller{self.calls % self.callers}"

    def run(self, items: int, breaks: bool = False) -> None:
        """Add one run. A caller with one stream writes the weights before the run and reads them after it. A
        caller with two streams alternates between them, item by item, and does not make one wait for the
        other. Such a caller writes the weights only before the first run.
        """
        self.latest = len(self.ops)
        weights = ", ".join(f"w{stage}" for stage in self.stages)
        if self.callers == 1 or not self.items:
            self.op("kernel", f"s: {self.caller()}, w: [{weights}]")
            for other in range(1, self.callers):
                self.op("wait_stream", f"s: caller{other}, src: {self.caller()}")
        pending: list[tuple[int, int]] = []
        for number in range(items):
            self.item(number)
            pending.append((number, self.items - 1))
            if len(pending) == self.depth:
                self.hand_over(*pending.pop(0))
                self.calls += 1
        last = (items - 1) % self.depth
        if not breaks:
            while pending:
                self.hand_over(*pending.pop(0))
                self.calls += bool(pending)
        elif pending:
            self.steps("unclaimed", hand_over_steps(self.levels), last)
        self.steps("end", end_steps(self.levels), last)
        for slot in self.held:
            self.let_go(slot)
        if self.callers == 1:
            self.op("kernel", f"s: {self.caller()}, r: [{weights}]")
        self.calls += 1

    def item(self, number: int) -> None:
        slot = number % self.depth
        seen: list[str] = []
        if self.on_device:
            seen.append(self.block(f"theirs_of_{self.caller()}", self.caller(), after_events=True))
            self.op("kernel", f"s: {self.caller()}, w: [{seen[-1]}]")
            for final in self.levels[-1]:
                self.op("record_stream", f"buf: {seen[-1]}, st: s{final}")
        if not self.captured:
            self.let_go(self.held[slot])
        entry = number == 0 or self.on_device
        steps = item_steps(self.levels, uploads=self.uploads, entry=entry)
        made: dict[int, str] = {}
        for at, step in enumerate(steps):
            if step.do == "upload":
                seen.append(self.memory(slot, "in", "up"))
                self.op("copy_async", f"s: up, from: h{self.items}, to: {seen[-1]}")
                self.names.add(f"h{self.items}")
            elif step.do == "run":
                stage = step.stream
                # A stage may pass on its input, so a later one may read all earlier results.
                level = next(level for level in self.levels if stage in level)
                reads = seen + [made[earlier] for earlier in made if earlier < level[0]]
                if stage in self.levels[-1]:
                    made[stage] = self.block(
                        f"result_of_s{stage}", f"s{stage}", after_events=True, name=f"r{self.items}_{stage}"
                    )
                else:
                    made[stage] = self.memory(slot, f"v{stage}", f"s{stage}")
                self.op("kernel", f"s: s{stage}, r: [{', '.join(reads)}], w: [{made[stage]}, w{stage}]")
            else:
                self.step(("item", self.uploads, entry, at), step, slot)
        if self.on_device:
            self.free(f"theirs_of_{self.caller()}", seen[0])
        self.items += 1

    def hand_over(self, number: int, item: int) -> None:
        self.steps("hand_over", hand_over_steps(self.levels), number % self.depth)
        for stage in self.levels[-1]:
            result = f"r{item}_{stage}"
            self.op("record_stream", f"buf: {result}, st: {self.caller()}")
            self.op("kernel", f"s: {self.caller()}, r: [{result}]")
            self.free(f"result_of_s{stage}", result)

    def steps(self, where: str, steps: tuple[Step, ...], slot: int) -> None:
        for at, step in enumerate(steps):
            self.step((where, at), step, slot)

    def step(self, site: tuple[object, ...], step: Step, slot: int) -> None:
        assert step.event is not None
        stream = {CALLER: self.caller(), UPLOAD: "up"}.get(step.stream, f"s{step.stream}")
        event = f"e{slot}_{step.event + 2}"
        if step.do == "wait":
            self.sites[len(self.ops)] = site
        self.op(step.do, f"s: {stream}, ev: {event}")

    def memory(self, slot: int, use: str, home: str) -> str:
        """Return the slot's buffer if stages are captured, otherwise memory that the slot keeps until its
        next item.
        """
        if self.captured:
            name = f"{use}_{slot}"
            self.names.add(name)
            return name
        name = self.block(use, home, after_events=False)
        self.held[slot].append((use, name))
        return name

    def block(self, use: str, home: str, *, after_events: bool, name: str | None = None) -> str:
        name = name or f"{use}_{self.items}_{len(self.names)}"
        self.names.add(name)
        freed = None if after_events and not self.polls else self.freed.get(use)
        over = f", over: {freed.pop()}, after_events: {str(after_events).lower()}" if freed else ""
        self.op("alloc", f"buf: {name}, s: {home}{over}")
        return name

    def let_go(self, slot: list[tuple[str, str]]) -> None:
        for use, name in slot:
            self.free(use, name)
        slot.clear()

    def free(self, use: str, name: str) -> None:
        self.op("free", f"buf: {name}")
        self.freed.setdefault(use, []).append(name)

    def text(self, without: int | None = None) -> str:
        streams = ["up: nb", *(f"caller{one}: nb" for one in range(self.callers))]
        buffers = [f"w{stage}: dev" for stage in self.stages]
        buffers += [f"{name}: {'pinned' if name.startswith('h') else 'dev'}" for name in sorted(self.names)]
        ops = "\n".join(f"  - {op}" for at, op in enumerate(self.ops) if at != without)
        head = f"- name: {'all' if without is None else f'without{without}'}"
        return (
            f"{head}\n  streams: {{{', '.join(streams)}}}\n  buffers: {{{', '.join(buffers)}}}\n  ops:\n"
            f"{ops}\n"
        )


def programs(levels: Levels) -> Iterator[Program]:
    """Return two runs of each kind; the second begins while the device still works on the first."""
    kinds = [(True, False), (False, True), (True, True), (False, False)]
    for (uploads, on_device), callers, captured in itertools.product(kinds, (1, 2), (False, True)):
        program = Program(levels, uploads=uploads, on_device=on_device, callers=callers, captured=captured)
        program.run(2 * program.depth, breaks=captured)
        program.run(program.depth + 2)
        yield program


def verdicts(cases: list[str]) -> list[str]:
    if not cases:
        return []
    report = sidestream.check_program(text="cases:\n" + "".join(cases))
    return [program.verdict for program in report.programs]


@pytest.mark.parametrize("levels", SHAPES)
def test_a_plan_has_no_race_and_no_wait_to_spare(levels: Levels) -> None:
    needed: set[tuple[object, ...]] = set()
    sites: set[tuple[object, ...]] = set()
    for program in programs(levels):
        report = sidestream.check_program(text="cases:\n" + program.text())
        assert report.is_clean, str(report)
        sites |= set(program.sites.values())
        # Each wait of the plan in each run, except those already known to be needed. The last wait of a kind
        # waits for some work.
        without = {
            (site, at < program.latest): at for at, site in program.sites.items() if site not in needed
        }
        found = verdicts([program.text(at) for at in without.values()])
        needed |= {site for (site, _), verdict in zip(without, found, strict=True) if verdict == "race"}
    assert sites - needed == set()
    assert len(sites) > 3


@pytest.mark.parametrize("levels", SHAPES)
def test_what_is_noted_for_the_allocator_is_needed(levels: Levels) -> None:
    for noted, on_device in (("theirs", True), ("r", False)):
        program = Program(levels, uploads=not on_device, on_device=on_device, polls=True)
        program.run(program.depth + 3)
        assert verdicts([program.text()]) == ["clean"]
        ops = [at for at, op in enumerate(program.ops) if f"{{do: record_stream, buf: {noted}" in op]
        # The memory blocks of the last items are not reused.
        assert verdicts([program.text(at) for at in ops[:2]]) == ["race", "race"]


def test_the_caller_gets_a_result_while_later_items_are_under_way() -> None:
    assert default_depth(((0,), (1,))) == 3
    assert hand_over_steps(((0,), (1, 2))) == (Step("wait", CALLER, 1), Step("wait", CALLER, 2))
