"""Functions whose implementation differs between operating systems."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

if sys.platform == "win32":

    def after_forks(in_child: Callable[[], None], held: signal.Signals | None = None) -> None:
        """Do nothing: Windows has no forks."""

    def memory_bytes() -> int:
        """Return the number of bytes of host memory."""
        # MEMORYSTATUSEX: its own size and a percentage in the first word, the memory in the second.
        status = (ctypes.c_uint64 * 8)(64)
        ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
        return status[1]

    def fresh_memory(size: int) -> mmap.mmap:
        """Return memory from the system, which is zero."""
        return mmap.mmap(-1, size)

    def flush_c() -> None:
        """Flush the output streams of the C library."""
        ctypes.CDLL("ucrtbase").fflush(None)

    def kill_group(process: subprocess.Popen[bytes]) -> None:
        """Kill a process. Windows has no groups of processes."""
        process.kill()

else:

    def after_forks(in_child: Callable[[], None], held: signal.Signals | None = None) -> None:
        """Call ``in_child`` in each forked child. The signal ``held`` is blocked during the fork, so that a
        child receives it only after the call.
        """
        if held is None:
            os.register_at_fork(after_in_child=in_child)
            return
        masks: list[Any] = []

        def hold() -> None:
            masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [held]))

        def release() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

        def child() -> None:
            in_child()
            release()

        os.register_at_fork(before=hold, after_in_parent=release, after_in_child=child)

    def memory_bytes() -> int:
        """Return the number of bytes of host memory."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def fresh_memory(size: int) -> mmap.mmap:
        """Return memory from the system, which is zero."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        return mmap.mmap(-1, size, flags=flags)

    def flush_c() -> None:
        """Flush the output streams of the C library."""
        ctypes.CDLL(None).fflush(None)

    def kill_group(process: subprocess.Popen[bytes]) -> None:
        """Kill the processes of a group that a process leads, also after its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


if sys.platform == "linux":
    import resource

    def read_at(descriptor: int, at: int, into: memoryview) -> int:
        """Read bytes of a file from a position on, and return how many there were."""
        return os.preadv(descriptor, [into], at)

    def preemptions() -> int:
        """Return how often the system has preempted this thread."""
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw

else:

    def read_at(descriptor: int, at: int, into: memoryview) -> int:
        """Do nothing: only Linux tells which files are mapped."""
        return 0

    def preemptions() -> int:
        """Return 0: the system does not report preemptions of a single thread."""
        return 0
