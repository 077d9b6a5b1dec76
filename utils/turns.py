"""One device, many kernels: timed sections take turns, so that none is measured in another's shadow.

A turn is a lock on a file in the system's folder for temporary files, which every kernel on the machine sees. The
operating system frees it when its holder ends, however it ends, and nobody waits longer than ten minutes. Without
`filelock`, with a folder that cannot be written, or with TOKEN_GENERATION_TURNS=off in the environment there are no
turns, and everything is timed at once.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

try:
    from filelock import FileLock, Timeout
except ImportError:  # a bare machine
    FileLock = None

SWITCH = "TOKEN_GENERATION_TURNS"
TOLD_EVERY_S = 1.0
GIVE_UP_S = 600.0  # a section takes seconds: by then its holder has been stopped, and must not stop the room


def _lock(name: str) -> "FileLock | None":
    """A lock that belongs to the process, not to one of its threads, and that other users may take too."""
    file = Path(tempfile.gettempdir()) / f"token-generation-{name}.lock"
    return FileLock and FileLock(file, mode=0o666, thread_local=False)


# Who wants the device waits in the queue first. Only the first in the queue tries for the device, so that a kernel
# with many sections, one right after the other, cannot take it again before somebody who waits.
_queue, _device = _lock("queue"), _lock("device")


@contextmanager
def turn() -> Iterator[None]:
    """Have the machine to oneself, as far as other kernels of this course go: `with turn():`, or `@turn()`.

    Within a turn of this process it does nothing. Who waits longer than a second is told so.
    """
    taken = _take()
    try:
        yield
    finally:
        if taken:
            _device.release()


def _take() -> bool:
    """Wait for the device. Whether it has to be given back: not within a turn, nor where there are no turns."""
    if FileLock is None or os.environ.get(SWITCH, "").lower() == "off" or _device.is_locked:
        return False
    try:
        _wait(_queue)
        try:
            _wait(_device)
        finally:
            _queue.release()
    except (OSError, NotImplementedError):  # nothing to lock here, or given up: better untidy than not at all
        return False
    return True


def _wait(lock: "FileLock") -> None:
    """Take the lock, and say every second that somebody else has it."""
    start, told = perf_counter(), False
    while True:
        try:
            lock.acquire(timeout=TOLD_EVERY_S)
        except Timeout:
            if perf_counter() - start > GIVE_UP_S:
                raise
            _tell(f"kernel {os.getpid()} waits its turn: another one is measuring ({perf_counter() - start:.0f} s)")
            told = True
        else:
            break
    if told:
        _tell(f"kernel {os.getpid()} waited {perf_counter() - start:.0f} s for its turn", end="\n")


def _tell(text: str, end: str = "") -> None:
    """Replace the line, where somebody is looking: in a notebook or a terminal."""
    in_notebook = type(sys.stdout).__module__.startswith("ipykernel")
    if in_notebook or sys.stderr.isatty():
        print(f"\r{text:<70}", end=end, file=sys.stdout if in_notebook else sys.stderr, flush=True)
