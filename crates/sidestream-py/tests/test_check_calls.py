"""System calls through functions that are looked up by name, on memory that a copy uses."""

from __future__ import annotations

import ctypes
import json
import os
import socket
from pathlib import Path

import pytest
from test_check_host import DATA, PAGE, SIDE, SIZE, checked, found, line, memory, pinned, upload


class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class Message(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p), ("name_size", ctypes.c_uint),
        ("pieces", ctypes.POINTER(Piece)), ("count", ctypes.c_size_t),
        ("control", ctypes.c_void_p), ("control_size", ctypes.c_size_t),
        ("flags", ctypes.c_int), ("got", ctypes.c_uint),
    ]  # fmt: skip


COUNT = 3 * PAGE


def by_name(name: str, at: int, file: int) -> tuple[int, bytes | None]:
    """Call a function of the C library that is looked up by name. Return the call's result, and its number of
    bytes if that is known.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    call, room = getattr(libc, name), ctypes.c_void_p(at)
    call.restype = ctypes.c_long
    size, data = ctypes.c_size_t(COUNT), DATA[:COUNT].tobytes()
    if name in ("read", "__read_chk"):
        return call(file, room, size, size), data
    if name in ("pread", "__pread_chk"):
        return call(file, room, size, ctypes.c_long(0), size), data
    if name == "syscall":
        return call(ctypes.c_long(READ), file, room, size), data
    if name == "getrandom":
        return call(room, size, 0), None
    if name == "stat":
        return call(b"/", room), None
    if name == "getcwd":
        return int(call(room, size) == at), os.getcwd().encode()
    if "fread" in name:
        libc.fdopen.restype = ctypes.c_void_p
        opened = ctypes.c_void_p(libc.fdopen(os.dup(file), b"rb"))
        bound = [size] if name.endswith("chk") else []
        got = call(room, *bound, ctypes.c_size_t(1), size, opened)
        libc.fclose(opened)
        return got, data
    if name == "process_vm_readv":
        source = ctypes.create_string_buffer(data)
        pieces = [Piece(at, COUNT), Piece(ctypes.addressof(source), COUNT)]
        return call(os.getpid(), ctypes.byref(pieces[0]), 1, ctypes.byref(pieces[1]), 1, 0), data
    there, here = socket.socketpair()
    with there, here:
        there.sendall(data)
        if name == "__recv_chk":
            return call(here.fileno(), room, size, size, 0), data
        assert name == "recvmmsg"
        message = Message(pieces=ctypes.pointer(Piece(at, COUNT)), count=1)
        assert call(here.fileno(), ctypes.byref(message), 1, 0, None) == 1
        return message.got, data


READ = {"x86_64": 0, "aarch64": 63}[os.uname().machine]
BY_NAME = [
    "read", "__read_chk", "pread", "__pread_chk", "syscall", "getrandom", "stat", "getcwd", "fread",
    "fread_unlocked", "__fread_chk", "process_vm_readv", "__recv_chk", "recvmmsg",
]  # fmt: skip


@pytest.mark.parametrize("name", BY_NAME)
def test_a_call_that_is_looked_up_by_name_does_what_it_does_without_a_check(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "data").write_bytes(DATA.tobytes())
    plain = memory(SIZE)
    with open(tmp_path / "data", "rb", buffering=0) as file:
        answer, _ = by_name(name, plain.ctypes.data + PAGE, file.fileno())
    with checked() as run, open(tmp_path / "data", "rb", buffering=0) as file:
        array = pinned(run, memory(SIZE))
        upload(run, array)
        got, data = by_name(name, array.ctypes.data + PAGE, file.fileno())
        assert (got, ctypes.get_errno()) == (answer, 0) and got >= 0
        if data is not None:
            assert array[PAGE:].tobytes().startswith(data)
        run.stream_synchronize(SIDE)
        (race,) = found(run)
        assert race["kind"] == "HOST_WAR" and race["bytes"][0] == array.ctypes.data + PAGE
        assert line(run, race) == f"{Path(__file__).name}:by_name"
        assert json.loads(run.report())["host"]["refused"] is None


def test_a_call_that_fails_for_the_check_is_named() -> None:
    libc = ctypes.CDLL(None)
    address = ctypes.cast(libc.getrandom, ctypes.c_void_p).value or 0

    def fails() -> int:
        return int(unseen(array.ctypes.data, PAGE, 0))

    with checked() as run:
        unseen = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)(address)
        array = pinned(run, memory(SIZE))
        assert fails() == PAGE
        upload(run, array)
        assert fails() == -1
        run.stream_synchronize(SIDE)
        refused = json.loads(run.report())["host"]["refused"]
        code, _ = run.frames(refused)[0]
        assert code.co_name == "fails"
    with checked() as run:
        assert json.loads(run.report())["host"]["refused"] is None
