"""Reads an op log (docs/reference/op-log.md) and says which operations race, from the rules of order alone.

It knows the rules of streams, events and waits of one process and one device, in the plainest form: each
operation keeps the set of all that are complete before it. What else a log may hold is refused, not guessed.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KERNEL, COPY, MEMSET, COPY_BLOCKING, MEMSET_BLOCKING, FUNCTION, GRAPH, MALLOC_ASYNC, FREE_ASYNC = range(9)
RECORD, WAIT, WAIT_STREAM, SYNC_STREAM, SYNC_EVENT, SYNC_DEVICE, QUERY_STREAM, QUERY_EVENT = range(9, 17)
TOUCH, MALLOC, FREE, FREE_HOST, ELAPSED, CREATE_EVENT, DESTROY_EVENT = 19, 23, 24, 25, 26, 27, 28
CREATE_STREAM, DESTROY_STREAM, SET_DEVICE, UNREGISTER = 29, 30, 31, 40
WORK = {KERNEL, COPY, MEMSET, FUNCTION, GRAPH, MALLOC_ASYNC, FREE_ASYNC}
#: How many fields each kind has.
FIELDS = [2, 2, 1, 1, 1, 2, 2, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 1, 1, 0, 3]
FIELDS += [2, 1, 0, 1, 0, 2, 1, 1, 1, 1, 1, 1, 1, 2, 3, 4, 4, 1, 1, 0]
READ, WRITE, MAY_WRITE, ATOMIC = range(4)
PINNED, PAGEABLE, MANAGED = 1, 2, 3
BLOCKING, PER_THREAD, LEGACY = 1, 2, 3


class UnjudgedError(Exception):
    """The log has what the oracle does not know."""


@dataclass
class Access:
    """Bytes of a memory that an operation touches."""

    memory: int
    start: int
    end: int
    mode: int

    def conflicts(self, other: "Access") -> bool:
        """Returns whether both touch a byte, and not both only read or only change it atomically."""
        is_shared = self.memory == other.memory and self.start < other.end and other.start < self.end
        return is_shared and not (self.mode == other.mode and self.mode in (READ, ATOMIC))


@dataclass
class Op:
    """A call, and the calls that are complete before what it submits."""

    kind: int
    site: str
    fields: list[int]
    accesses: list[Access]
    before: int = 0


@dataclass
class Log:
    """The streams' kinds and the operations of a log."""

    streams: list[int] = dataclasses.field(default_factory=list)
    ops: list[Op] = dataclasses.field(default_factory=list)


class Reader:
    """The bytes of a log, and what has been declared so far."""

    def __init__(self, data: bytes) -> None:
        if data[:8] != b"SIDESTRM" or data[8] not in (3, 4):
            raise UnjudgedError("no op log of a version that the oracle knows")
        self.data, self.at, self.log = data, 16, Log()
        self.buffers: list[tuple[int, int, int]] = []
        self.sites: list[str] = []

    def number(self) -> int:
        """Reads a number in LEB128."""
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def text(self) -> str:
        """Reads a text."""
        length = self.number()
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def buffer(self) -> None:
        """Reads the declaration of a buffer: the memory that it is part of, from which byte on, its size."""
        flags, size = self.number(), self.number()
        memory, start = len(self.buffers), 0
        if flags & 4:
            memory, start, _ = self.buffers[-1 - self.number()]
            start += self.number()
        self.text()
        self.buffers.append((memory, start, size))

    def access(self) -> Access:
        """Reads an access."""
        word = self.number()
        memory, start, size = self.buffers[-1 - word // 8]
        if word & 1:
            start, size = start + self.number(), self.number()
        return Access(memory, start, start + size, word >> 1 & 3)

    def op(self, first: int) -> Op:
        """Reads an operation after its first byte."""
        if first & 64:
            self.number(), self.number()
        site, kind = self.sites[self.number()], first & 63
        if kind >= len(FIELDS):
            raise UnjudgedError(f"an operation of kind {kind}")
        fields = [self.number() for _ in range(FIELDS[kind])]
        return Op(kind, site, fields, [self.access() for _ in range(self.number())])

    def read(self) -> Log:
        """Reads all records."""
        while first := self.number_of_record():
            if first >= 128:
                self.log.ops.append(self.op(first))
            elif first == 1:
                self.log.streams.append(self.number())
                if self.number():
                    raise UnjudgedError("a second device")
                self.text()
            elif first == 2:
                if self.number() & 2:
                    self.number()
                self.text()
            elif first == 3:
                self.buffer()
            elif first in (4, 5):
                name = self.text()
                self.sites += [name] * (first == 5)
            elif first == 6:
                [self.number() for _ in range(3)]
            elif first == 7:
                enters, _ = self.number(), self.number()
                if enters:
                    self.text()
            elif first == 8:
                flags, _ = self.number(), self.number()
                [self.number() for _ in range(2 * flags.bit_count())]
            else:
                raise UnjudgedError(f"a record of kind {first}")
        return self.log

    def number_of_record(self) -> int:
        """Reads the first byte of a record, 0 at the end."""
        self.at += 1
        return self.data[self.at - 1]


class Order:
    """What is complete before what, as sets of operations: bit `n` is operation `n`."""

    def __init__(self, log: Log) -> None:
        self.log = log
        kinds = dict(enumerate(log.streams))
        self.legacy = next((id for id, kind in kinds.items() if kind == LEGACY), -1)
        self.blocking = [id for id, kind in kinds.items() if kind in (BLOCKING, PER_THREAD)]
        self.host, self.streams = 0, dict.fromkeys([-1, *kinds], 0)
        self.events: dict[int, int] = {}
        self.graphs: dict[int, int] = {}

    def enter(self, stream: int) -> int:
        """Begins an action in a stream: returns what is complete before it (R1, R3, R14 to R18)."""
        if stream == self.legacy:
            for other in self.blocking:
                self.streams[stream] |= self.streams[other]
        elif stream in self.blocking:
            self.streams[stream] |= self.streams[self.legacy]
        self.streams[stream] |= self.host
        return self.streams[stream]

    def run(self) -> None:
        """Goes through all calls."""
        for number, op in enumerate(self.log.ops):
            self.call(1 << number, op)

    def call(self, bit: int, op: Op) -> None:
        """Goes through one call."""
        first, last = (op.fields[0], op.fields[-1]) if op.fields else (0, 0)
        if op.kind in WORK or op.kind in (COPY_BLOCKING, MEMSET_BLOCKING):
            stream = first if op.kind in WORK else self.legacy
            op.before = self.enter(stream)
            if op.kind == GRAPH:
                op.before |= self.graphs.get(last, 0)
                self.graphs[last] = op.before | bit
            self.streams[stream] |= op.before | bit
            if self.blocks(op):
                self.host |= self.streams[stream]
        elif op.kind == RECORD:
            self.events[last] = self.enter(first)
        elif op.kind == WAIT:
            self.enter(first)
            self.streams[first] |= self.events.get(last, 0)
        elif op.kind == WAIT_STREAM:
            self.streams[first] |= self.enter(last)
            self.enter(first)
        elif op.kind == SYNC_STREAM or (op.kind == QUERY_STREAM and last):
            self.host |= self.streams[first]
            for other in self.blocking if first == self.legacy else []:
                self.host |= self.streams[other]
        elif op.kind == SYNC_EVENT or (op.kind == QUERY_EVENT and last):
            self.host |= self.events.get(first, 0)
        elif op.kind == SYNC_DEVICE:
            for complete in self.streams.values():
                self.host |= complete
        elif op.kind in (TOUCH, FREE, FREE_HOST, UNREGISTER):
            op.before = self.host
            self.host |= bit
        elif op.kind in (CREATE_EVENT, DESTROY_EVENT):
            self.events.pop(first, None)
        elif op.kind == CREATE_STREAM:
            self.streams[first] = 0
        elif op.kind == SET_DEVICE and first == 0:
            pass
        elif op.kind not in (MALLOC, QUERY_STREAM, QUERY_EVENT, ELAPSED, DESTROY_STREAM):
            raise UnjudgedError(f"an operation of kind {op.kind}")

    @staticmethod
    def blocks(op: Op) -> bool:
        """Returns whether the call returns when its work is complete (R19 to R25)."""
        source, target = op.fields[-1] & 3, op.fields[-1] >> 2
        if op.kind == COPY:
            if PAGEABLE in (source, target):
                raise UnjudgedError("an asynchronous copy of pageable memory")
            return source == target == PINNED
        if op.kind == COPY_BLOCKING:
            return target in (PINNED, PAGEABLE) or source == PINNED
        return op.kind == MEMSET_BLOCKING and op.fields[0] in (PINNED, MANAGED)


def races(log: Log) -> Iterator[tuple[Op, Op, bool]]:
    """Returns the pairs of operations that race, in order, and whether that is a guess."""
    Order(log).run()
    kept = [(number, op) for number, op in enumerate(log.ops) if op.accesses]
    for (one, first), (_, second) in itertools.combinations(kept, 2):
        if second.before >> one & 1:
            continue
        pairs = itertools.product(first.accesses, second.accesses)
        modes = [{a.mode, b.mode} for a, b in pairs if a.conflicts(b)]
        if modes:
            yield first, second, all(MAY_WRITE in both for both in modes)


def read(path: Path) -> Log:
    """Reads a log."""
    return Reader(path.read_bytes()).read()
