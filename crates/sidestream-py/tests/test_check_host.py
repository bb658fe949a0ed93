"""Host accesses to memory that a copy uses, by NumPy, C and the kernel: they are recorded, and otherwise
behave as without a check. Neither a GPU nor PyTorch is needed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driven import Recorder, recorder
from sidestream._check_fix import PACKAGE
from sidestream._check_host import watched
from sidestream._sidestream import RaceError

SIDE, THIRD = 0x100, 0x200
PAGE = mmap.PAGESIZE
SIZE = 16 * PAGE


@contextmanager
def checked(raises: bool = False) -> Iterator[Recorder]:
    run = recorder(raises, hidden=([], [], PACKAGE))
    with watched(run, True, True) as problem:
        assert problem == []
        yield run


def memory(size: int, after: int = 0) -> Any:
    """Return bytes that count as pinned memory, beginning `after` bytes into a page."""
    return np.frombuffer(mmap.mmap(-1, size + after + PAGE), np.uint8)[after : after + size]


def pinned(run: Recorder, array: Any) -> Any:
    run.host_memory(array.ctypes.data, array.nbytes, True)
    return array


def upload(run: Recorder, array: Any, stream: int = SIDE, to: int = 0x1000) -> None:
    run.host_copy("copy_", array.ctypes.data, to, array.nbytes, True, stream)


def download(run: Recorder, array: Any, stream: int = SIDE) -> None:
    run.host_copy("copy_", array.ctypes.data, 0x1000, array.nbytes, False, stream)


def found(run: Recorder) -> list[dict[str, Any]]:
    report = json.loads(run.report())
    assert report["ended"] is None and report["host"]["problem"] is None
    races: list[dict[str, Any]] = report["races"]
    return races


def line(run: Recorder, race: dict[str, Any], frame: int = 0) -> str:
    code, _ = run.frames(race["second"]["stack"])[frame]
    return f"{Path(code.co_filename).name}:{code.co_name}"


def here(function: Callable[..., Any]) -> str:
    return f"{Path(__file__).name}:{function.__name__}"


def synchronizes(run: Recorder) -> None:
    run.stream_synchronize(SIDE)


def waits_for_an_event(run: Recorder) -> None:
    run.event_record(1, SIDE)
    run.on_event_synchronization(1)


def asks_an_event(run: Recorder) -> None:
    run.event_record(1, SIDE)
    run.event_complete(1)


def asks_the_stream(run: Recorder) -> None:
    run.stream_complete(SIDE, 0)


def waits_for_the_device(run: Recorder) -> None:
    run.device_synchronize()


WAITS = [synchronizes, waits_for_an_event, asks_an_event, asks_the_stream, waits_for_the_device]


def too_early(run: Recorder) -> None:
    run.event_record(1, SIDE)


def of_another_stream(run: Recorder) -> None:
    run.event_record(1, THIRD)
    run.on_event_synchronization(1)
    run.stream_synchronize(THIRD)


NO_WAITS = [too_early, of_another_stream]


@pytest.mark.parametrize("wait", WAITS + NO_WAITS)
def test_a_source_filled_again_by_numpy(wait: Callable[[Recorder], None]) -> None:
    def refill() -> None:
        array[5000:5010] = 7

    with checked() as run:
        array = pinned(run, memory(SIZE))
        upload(run, array)
        assert array[5000] == 0
        assert mode(array) == "r--"
        wait(run)
        assert mode(array) == ("rw-" if wait in WAITS else "r--")
        refill()
        run.device_synchronize()
        races = found(run)
        if wait in WAITS:
            assert races == []
            return
        (race,) = races
        assert race["kind"] == "HOST_WAR" and race["bytes"][0] == array.ctypes.data + 5000
        assert (
            line(run, race) == here(refill)
            and line(run, race, 1) == here(test_a_source_filled_again_by_numpy)
        )
    assert list(array[4999:5011]) == [0, *[7] * 10, 0]


@pytest.mark.parametrize("wait", WAITS + NO_WAITS)
@pytest.mark.parametrize("store", [False, True])
def test_a_download_used_too_early(wait: Callable[[Recorder], None], store: bool) -> None:
    with checked() as run:
        array = pinned(run, memory(SIZE))
        download(run, array)
        assert mode(array) == "---"
        wait(run)
        assert mode(array) == ("rw-" if wait in WAITS else "---")
        if store:
            array[6000] = 1
        else:
            assert array[6000] == 0
        run.device_synchronize()
        races = found(run)
    if wait in WAITS:
        assert races == []
        return
    (race,) = races
    at = array.ctypes.data + 6000
    assert race["kind"] == ("HOST_WAW" if store else "HOST_RAW") and race["bytes"] == [at, at + 1]
    assert race["second"]["operator"].startswith("store" if store else "load")


def test_a_source_may_be_read_and_a_page_is_reported_once() -> None:
    with checked() as run:
        array = pinned(run, memory(SIZE))
        upload(run, array)
        assert int(array.sum()) == 0
        for value in range(3):
            array[PAGE + value] = value
        run.stream_synchronize(SIDE)
        (race,) = found(run)
        # After another copy, the pages are watched again.
        upload(run, array)
        array[PAGE] = 9
        assert race["count"] == 1 and len(found(run)) == 1
        run.stream_synchronize(SIDE)
        assert sum(race["count"] for race in found(run)) == 2


@pytest.mark.parametrize("wait", [*WAITS, too_early])
def test_small_tensors_of_one_page_are_compared(wait: Callable[[Recorder], None]) -> None:
    """A store to a neighbour is not a store to the tensor."""
    with checked() as run:
        page = memory(PAGE)
        tensors = [pinned(run, page[at : at + 100]) for at in range(0, PAGE, 512)]
        for tensor in tensors[:4]:
            upload(run, tensor)
        tensors[4][:] = 5
        page[100:512] = 6
        wait(run)
        tensors[2][10:12] = 7
        run.device_synchronize()
        races = found(run)
        report = json.loads(run.report())["host"]
    assert report == {
        "copies": 4, "bytes": 400, "guarded_bytes": 0, "compared_bytes": 400, "unwatched_bytes": 0,
        "lost": 0, "refused": None, "problem": None,
    }  # fmt: skip
    if wait in WAITS:
        assert races == []
        return
    (race,) = races
    at = tensors[2].ctypes.data
    assert (race["kind"], race["bytes"]) == ("HOST_WAR", [at + 10, at + 12])
    assert race["second"]["operator"] == "a store before this torch.cuda.synchronize"


@pytest.mark.parametrize(
    ("at", "operator"), [(3, "a store before"), (-3, "a store before"), (PAGE, "store"), (-PAGE, "store")]
)
def test_the_ends_of_a_range_are_compared_and_its_pages_watched(at: int, operator: str) -> None:
    with checked() as run:
        array = pinned(run, memory(4 * PAGE, after=100))
        upload(run, array)
        array[at] = 1
        run.stream_synchronize(SIDE)
        (race,) = found(run)
        host = json.loads(run.report())["host"]
    start = array.ctypes.data + at % array.nbytes
    assert race["second"]["operator"].startswith(operator) and race["bytes"] == [start, start + 1]
    assert (host["guarded_bytes"], host["compared_bytes"], host["unwatched_bytes"]) == (3 * PAGE, PAGE, 0)


def test_what_is_not_watched_is_counted() -> None:
    with checked() as run:
        array = pinned(run, memory(4 * PAGE, after=100))
        download(run, array)
        array[0]
        run.stream_synchronize(SIDE)
        assert found(run) == []
        host = json.loads(run.report())["host"]
        assert (host["guarded_bytes"], host["compared_bytes"], host["unwatched_bytes"]) == (3 * PAGE, 0, PAGE)
        # This uses as many ranges as a process may have mappings; further ranges are not watched.
        many = pinned(run, memory(4000 * PAGE))
        for at in range(0, many.nbytes, 2 * PAGE):
            upload(run, many[at : at + PAGE])
        run.stream_synchronize(SIDE)
        host = json.loads(run.report())["host"]
        assert 0 < host["guarded_bytes"] < 2000 * PAGE and host["unwatched_bytes"] > PAGE
        many[:] = 1
        assert found(run) == []


def test_a_small_source_filled_again_between_two_copies_of_it() -> None:
    with checked() as run:
        array = pinned(run, memory(100))
        for value in range(3):
            array[7] = value
            upload(run, array)
        run.stream_synchronize(SIDE)
        array[7] = 9
        (race,) = found(run)
    assert (race["second"]["operator"], race["count"]) == ("a store before this copy_", 2)
    assert race["bytes"][0] == array.ctypes.data + 7


def test_what_the_device_may_write_is_not_a_store_of_the_host() -> None:
    """A buffer that is sent and then used to receive, on one stream."""
    with checked() as run:
        array = pinned(run, memory(100))
        upload(run, array)
        array[:] = 3  # The device has done this by the time the call returns.
        download(run, array)
        run.stream_synchronize(SIDE)
        assert found(run) == []
        assert json.loads(run.report())["host"]["unwatched_bytes"] == 200


def test_read_only_memory_stays_read_only() -> None:
    with checked() as run:
        array = pinned(run, np.frombuffer(mmap.mmap(-1, SIZE, prot=mmap.PROT_READ), np.uint8))
        assert mode(array) == "r--"
        upload(run, array)
        run.stream_synchronize(SIDE)
        assert mode(array) == "r--"
        assert json.loads(run.report())["host"]["guarded_bytes"] == 0


def test_a_download_into_what_was_uploaded_changes_it_by_right() -> None:
    with checked() as run:
        array = pinned(run, memory(100))
        upload(run, array)
        download(run, array)
        array[:] = 3  # The device may have done this.
        run.stream_synchronize(SIDE)
        assert found(run) == []


@pytest.mark.parametrize("right", [False, True])
def test_memory_that_is_unpinned_under_its_upload(right: bool) -> None:
    with checked() as run:
        array = pinned(run, memory(SIZE))
        upload(run, array)
        if right:
            run.stream_synchronize(SIDE)
        run.host_unpinned(array.ctypes.data, array.nbytes)
        array[:] = 1
        assert [(race["kind"], race["second"]["operator"]) for race in found(run)] == (
            [] if right else [("UAF", "cudaHostUnregister")]
        )


def test_two_copies_of_one_range_are_both_waited_for() -> None:
    with checked() as run:
        array = pinned(run, memory(SIZE))
        upload(run, array, SIDE)
        upload(run, array[PAGE : 3 * PAGE], THIRD, 0x100_0000)
        run.stream_synchronize(SIDE)
        assert mode(array[PAGE : 3 * PAGE]) == "r--" and mode(array[3 * PAGE :]) == "rw-"
        array[4 * PAGE] = 1
        assert found(run) == []
        array[PAGE] = 1
        run.stream_synchronize(THIRD)
        array[PAGE + 1] = 1
        (race,) = found(run)
    assert race["bytes"][0] == array.ctypes.data + PAGE


def test_a_race_is_raised_by_the_next_observed_call() -> None:
    with checked(raises=True) as run:
        array = pinned(run, memory(SIZE))
        upload(run, array)
        array[PAGE] = 1
        with pytest.raises(RaceError):
            run.unwatch_host()


# ---------------------------------------------------------------- C and the kernel

LIBRARY = """
#include <stdio.h>
#include <string.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
long by_fread(void *to, long n, const char *path) {
    FILE *f = fopen(path, "rb"); long k = fread(to, 1, n, f); fclose(f); return k;
}
long by_read(int fd, void *to, long n) { return read(fd, to, n); }
long by_memcpy(void *to, const void *from, long n) { memcpy(to, from, n); return n; }
int by_munmap(void *at, unsigned long n) { return munmap(at, n); }
long by_ring(void) { char room[120] = {0}; return syscall(SYS_io_uring_setup, 4, room); }
static void ended(int number) { (void)number; write(1, "ended\\n", 6); _exit(3); }
void by_signal(void) { signal(SIGSEGV, ended); }
long by_fwrite(const void *from, long n, const char *path) {
    FILE *f = fopen(path, "wb"); long k = fwrite(from, 1, n, f); fclose(f); return k;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """C code, compiled like an extension or like the program itself."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "calls.c").write_text(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", "calls.so", "calls.c"], cwd=folder, check=True)
    loaded = ctypes.CDLL(str(folder / "calls.so"))
    for name in ("by_fread", "by_read", "by_memcpy", "by_fwrite"):
        getattr(loaded, name).restype = ctypes.c_long
    return loaded


DATA = np.random.default_rng(7).integers(0, 256, 1 << 20, np.uint8)


def address(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def filled_unbuffered(array: Any, file: Path, _: Any) -> int:
    with open(file, "rb", buffering=0) as opened:
        return opened.readinto(memoryview(array)) or 0


def filled_buffered(array: Any, file: Path, _: Any) -> int:
    with open(file, "rb") as opened:
        return opened.readinto(memoryview(array))


def filled_by_preadv(array: Any, file: Path, _: Any) -> int:
    opened = os.open(file, os.O_RDONLY)
    try:
        return os.preadv(opened, [memoryview(array)[:70_000], memoryview(array)[70_000:]], 0)
    finally:
        os.close(opened)


def filled_by_readv(array: Any, file: Path, _: Any) -> int:
    opened = os.open(file, os.O_RDONLY)
    try:
        return os.readv(opened, [memoryview(array)])
    finally:
        os.close(opened)


def filled_by_a_socket(array: Any, _: Path, __: Any) -> int:
    there, here = socket.socketpair()
    with there, here:
        thread = threading.Thread(target=there.sendall, args=(DATA,))
        thread.start()
        got = 0
        while got < len(array):
            got += here.recv_into(memoryview(array)[got:])
        thread.join()
    return got


def filled_from_a_file_of_numpy(array: Any, file: Path, _: Any) -> int:
    array[:] = np.fromfile(file, np.uint8)
    return len(array)


def filled_by_fread(array: Any, file: Path, library: Any) -> int:
    return int(library.by_fread(address(array), ctypes.c_long(len(array)), str(file).encode()))


def filled_by_read_in_c(array: Any, file: Path, library: Any) -> int:
    with open(file, "rb", buffering=0) as opened:
        return int(library.by_read(opened.fileno(), address(array), ctypes.c_long(len(array))))


def filled_by_memcpy(array: Any, _: Path, library: Any) -> int:
    return int(library.by_memcpy(address(array), address(DATA), ctypes.c_long(len(array))))


FILLS = [
    filled_unbuffered, filled_buffered, filled_by_preadv, filled_by_readv, filled_by_a_socket,
    filled_from_a_file_of_numpy, filled_by_fread, filled_by_read_in_c, filled_by_memcpy,
]  # fmt: skip


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("right", [False, True])
def test_contents_that_are_read_under_an_upload_are_those_without_a_check(
    fill: Callable[[Any, Path, Any], int], right: bool, library: Any, tmp_path: Path
) -> None:
    file = tmp_path / "data"
    file.write_bytes(DATA.tobytes())
    with checked() as run:
        array = pinned(run, memory(len(DATA), after=100))
        upload(run, array)
        if right:
            run.stream_synchronize(SIDE)
        assert fill(array, file, library) == len(DATA)
        run.stream_synchronize(SIDE)
        races = found(run)
        assert bool(races) != right
        assert all(race["kind"] == "HOST_WAR" for race in races)
        assert right or line(run, races[0]).startswith(f"{Path(__file__).name}:filled_")
    assert (array == DATA).all()


@pytest.mark.parametrize("how", ["write", "fwrite", "send"])
def test_contents_that_are_written_under_a_download_are_those_without_a_check(
    how: str, library: Any, tmp_path: Path
) -> None:
    file = tmp_path / "data"
    array = memory(len(DATA), after=100)
    array[:] = DATA
    with checked() as run:
        download(run, pinned(run, array))
        if how == "write":
            with open(file, "wb", buffering=0) as opened:
                assert opened.write(memoryview(array)) == len(DATA)
        elif how == "fwrite":
            written = library.by_fwrite(address(array), ctypes.c_long(len(array)), str(file).encode())
            assert written == len(DATA)
        else:
            there, here = socket.socketpair()
            with there, here:
                sent = here.send(memoryview(array)[:4096])
                file.write_bytes(there.recv(sent))
                assert sent == 4096
        run.stream_synchronize(SIDE)
        assert [race["kind"] for race in found(run)] == ["HOST_RAW"]
    read = file.read_bytes()
    assert read == DATA[: len(read)].tobytes()


def test_a_buffer_that_a_call_waits_to_fill_is_not_protected() -> None:
    """The kernel writes into the buffer when data arrives, however late."""
    there, here = socket.socketpair()
    with there, here, checked() as run:
        array = pinned(run, memory(SIZE))
        thread = threading.Thread(target=here.recv_into, args=(memoryview(array), SIZE, socket.MSG_WAITALL))
        thread.start()
        # The call has begun once some of the data has arrived.
        there.sendall(bytes([5]) * PAGE)
        while array[PAGE - 1] != 5:
            pass
        upload(run, array)
        there.sendall(bytes([5]) * (SIZE - PAGE))
        thread.join()
        run.stream_synchronize(SIDE)
        assert (array == 5).all()


RING = """
import ctypes, json, mmap, sys
sys.path.insert(0, {tests!r})
import numpy as np
from test_check_host import checked, memory, pinned, upload, SIDE, SIZE
syscall = ctypes.CDLL(None).syscall
with checked() as run:
    array = pinned(run, memory(SIZE))
    room = ctypes.create_string_buffer(120)
    ring = syscall(425, 4, room)
    if ring < 0:
        print("none")
        sys.exit()
    upload(run, array)
    array[5000] = 1
    run.stream_synchronize(SIDE)
    report = json.loads(run.report())
    print(report["host"]["problem"], len(report["races"]), report["host"]["unwatched_bytes"])
"""


def ran(code: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    code = code.replace("{tests!r}", repr(str(Path(__file__).parent)))
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | variables,
    )


OUTSIDE = """
import json, sys
sys.path.insert(0, {tests!r})
from test_check_host import *
with checked() as run:
    array = pinned(run, memory(SIZE))
    upload(run, array)
    array[5000] = 1
    report = json.loads(run.report())["host"]
    print(report["guarded_bytes"], report["problem"])
"""


def test_where_a_check_from_outside_guards_the_process_this_one_does_not(tmp_path: Path) -> None:
    inside = ran(OUTSIDE, SIDESTREAM_RINGS=str(tmp_path))
    why = "`sidestream check -- PROGRAM` watches the host's memory in this process"
    assert inside.stdout == f"0 {why}\n", inside.stderr
    alone = ran(OUTSIDE, SIDESTREAM_RINGS=str(tmp_path / "gone"))
    assert alone.stdout == f"{SIZE} None\n", alone.stderr


def test_a_ring_that_a_library_makes_opens_all_pages(library: Any) -> None:
    with checked() as run:
        array = pinned(run, memory(SIZE))
        upload(run, array)
        assert mode(array) == "r--"
        ring = library.by_ring()
        if ring >= 0:
            os.close(ring)
        assert mode(array) == "rw-"
        upload(run, array)
        assert mode(array) == "rw-"
        host = json.loads(run.report())["host"]
        assert (
            host["problem"].startswith("the program uses asynchronous input")
            and host["compared_bytes"] == SIZE
        )
        array[5000] = 1
        run.stream_synchronize(SIDE)
        assert [race["kind"] for race in json.loads(run.report())["races"]] == ["HOST_WAR"]


def test_a_handler_that_c_code_sets_gets_what_is_not_the_checks(library: Any) -> None:
    code = """
import ctypes
from test_check_host import *
library = ctypes.CDLL(PATH)
with checked() as run:
    array = pinned(run, memory(SIZE))
    upload(run, array)
    library.by_signal()
    array[5000] = 1
    run.stream_synchronize(SIDE)
    print(len(found(run)), flush=True)
    ctypes.string_at(8)
"""
    start = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    done = ran(start + code.replace("PATH", repr(library._name)))
    assert (done.returncode, done.stdout) == (3, "1\nended\n"), done.stderr


def test_where_a_program_uses_io_uring_nothing_is_protected() -> None:
    done = ran(RING)
    assert done.returncode == 0, done.stderr
    # A system may forbid io_uring. Small ranges are compared all the same.
    assert done.stdout in ("none\n", "the program uses io_uring, whose reads would fail 1 0\n")


def test_a_call_with_more_pieces_than_there_is_room_for(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA.tobytes())
    with checked() as run, open(tmp_path / "data", "rb", buffering=0) as file:
        array = pinned(run, memory(256 * PAGE))
        upload(run, array)
        pieces = [memoryview(array)[at * PAGE : at * PAGE + 100] for at in range(256)]
        assert os.readv(file.fileno(), pieces) == 25_600
        # The entries are free again, so the next copy is watched.
        upload(run, array, THIRD, 0x100_0000)
        assert mode(array) == "r--"
        run.device_synchronize()
        assert array.reshape(256, PAGE)[:, :100].tobytes() == DATA[:25_600].tobytes()
        assert {race["second"]["operator"] for race in found(run)} == {"readv"}


@pytest.mark.parametrize("c_code", [False, True])
def test_memory_that_c_code_unmaps_under_its_copy_is_none_of_the_checks(c_code: bool, library: Any) -> None:
    """The next mapping at that address keeps its protection."""
    with checked() as run:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p

        def mapped(at: int | None, protection: int, flags: int) -> int:
            return int(
                libc.mmap(
                    ctypes.c_void_p(at),
                    ctypes.c_size_t(SIZE),
                    protection,
                    flags | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                    -1,
                    ctypes.c_long(0),
                )
            )

        at = mapped(None, mmap.PROT_READ | mmap.PROT_WRITE, 0)
        run.host_memory(at, SIZE, True)
        run.host_copy("copy_", at, 0x1000, SIZE, True, SIDE)
        array = np.ctypeslib.as_array((ctypes.c_ubyte * SIZE).from_address(at))
        assert mode(array) == "r--"
        unmap = library.by_munmap if c_code else libc.munmap
        assert unmap(ctypes.c_void_p(at), ctypes.c_size_t(SIZE)) == 0
        fixed = 0x10
        assert mapped(at, 0, fixed) == at
        run.stream_synchronize(SIDE)
        assert mode(array) == "---"
        assert libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(SIZE)) == 0


# ---------------------------------------------------------------- forks, threads and signals


def mode(array: Any) -> str:
    """Return the protection of the middle page of an array."""
    at = array.ctypes.data + array.nbytes // 2
    for each in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(bound, 16) for bound in each.split()[0].split("-"))
        if start <= at < end:
            return each.split()[1][:3]
    return "none"


def test_a_forked_child_uses_the_memory_freely() -> None:
    with checked() as run:
        array = pinned(run, memory(SIZE))
        upload(run, array)
        assert mode(array) == "r--"
        child = os.fork()
        if child == 0:
            is_open = mode(array) == "rw-"
            array[PAGE] = 3
            os._exit(0 if is_open else 1)
        assert os.waitpid(child, 0)[1] == 0
        # The memory is shared, so the child's store is visible, and the parent's next store is recorded.
        assert array[PAGE] == 3 and found(run) == []
        array[PAGE] = 4
        run.stream_synchronize(SIDE)
        assert len(found(run)) == 1


def test_many_threads_store_at_once_and_nothing_is_lost_of_it() -> None:
    count = 8
    with checked() as run:
        arrays = [pinned(run, memory(SIZE)) for _ in range(count)]

        def work(array: Any, value: int) -> None:
            gate.wait()
            for at in range(0, SIZE, PAGE):
                array[at : at + PAGE] = value

        for turn in range(20):
            gate = threading.Barrier(count)
            for array in arrays:
                upload(run, array)
            threads = [threading.Thread(target=work, args=(array, turn + 1)) for array in arrays]
            for thread in threads:
                thread.start()
            # The pages are opened and protected during the loop.
            run.stream_synchronize(SIDE)
            for thread in threads:
                thread.join()
            assert all((array == turn + 1).all() for array in arrays)
        run.device_synchronize()
        for race in found(run):
            assert race["kind"] == "HOST_WAR" and line(run, race) == here(work)


SIGNALS = """
import ctypes, faulthandler, os, signal, sys
sys.path.insert(0, {tests!r})
from test_check_host import *
if "before" in sys.argv:
    faulthandler.enable()
with checked() as run:
    array = pinned(run, memory(SIZE))
    upload(run, array)
    if "after" in sys.argv or "gone" in sys.argv:
        faulthandler.enable()
    if "gone" in sys.argv:
        faulthandler.disable()
    array[5000] = 1
    upload(run, array)
    array[9000] = 1
    run.stream_synchronize(SIDE)
    print(len(found(run)), flush=True)
    if "raised" in sys.argv:
        signal.raise_signal(signal.SIGSEGV)
    ctypes.string_at(8)
"""


@pytest.mark.parametrize("how", ["alone", "before", "after", "gone", "raised", "before raised"])
def test_a_fault_of_the_programs_own_still_ends_it(how: str) -> None:
    code = SIGNALS.replace("{tests!r}", repr(str(Path(__file__).parent)))
    done = subprocess.run(
        [sys.executable, "-c", code, *how.split()], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "2\n"), done.stderr
    told = 1 if how.startswith(("before", "after")) else 0
    assert done.stderr.count("Fatal Python error: Segmentation fault") == told, done.stderr


def test_a_process_may_run_many_checks() -> None:
    for _ in range(100):
        with checked() as run:
            upload(run, pinned(run, memory(SIZE)))
            assert found(run) == []


def test_afterwards_the_signal_and_the_memory_are_as_before() -> None:
    class Action(ctypes.Structure):
        _fields_ = [("handler", ctypes.c_void_p), ("rest", ctypes.c_byte * 256)]

    def handler() -> int | None:
        action = Action()
        assert ctypes.CDLL(None).sigaction(signal.SIGSEGV, None, ctypes.byref(action)) == 0
        address: int | None = action.handler
        return address

    before = handler()
    with checked() as run:
        array = pinned(run, memory(SIZE))
        upload(run, array)
        assert handler() != before
    assert handler() == before
    array[:] = 3
    assert found(run) == []
    assert faulthandler.is_enabled() or before is None
