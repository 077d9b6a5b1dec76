"""Kernels take turns: one at a time, none lost, freed when the holder dies, nothing when turned off or nested."""

import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from chapter01 import loop
from utils import turns
from utils.models import Shape
from utils.timing import time_call
from utils.turns import turn
from utils.weights import random_decoder

ROOT = Path(__file__).resolve().parent.parent
# Notes when it began and ended its turn, by a clock that all processes share.
NOTE = """
import sys, time
from utils.turns import turn
with turn():
    begun = time.monotonic()
    time.sleep(0.2)
    print(begun, time.monotonic())
"""
HOLD = """
import time
from utils.turns import turn
with turn():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_locks(monkeypatch, tmp_path):
    """Locks of this test alone: whoever else measures on this machine does not matter."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # for the processes that are started
    monkeypatch.setattr(turns.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(turns, "_queue", turns._lock("queue"))
    monkeypatch.setattr(turns, "_device", turns._lock("device"))
    monkeypatch.delenv(turns.SWITCH, raising=False)


def start(code: str, **environment: str) -> subprocess.Popen:
    env = {**os.environ, **environment}
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)


def turns_taken(count: int, **environment: str) -> list[tuple[float, float]]:
    """When each of several processes at once began and ended its turn, in that order."""
    started = [start(NOTE, **environment) for _ in range(count)]
    spoken = [process.communicate(timeout=60)[0] for process in started]
    return sorted(tuple(map(float, text.split())) for text in spoken)


def test_processes_at_once_go_one_after_another_and_none_is_lost():
    taken = turns_taken(5)
    assert len(taken) == 5
    assert all(end <= begin for (_, end), (begin, _) in pairwise(taken))


def test_what_is_timed_has_the_turn_and_what_only_writes_has_not():
    model = random_decoder(Shape("Tiny", 1, 32, 2, 1, 16, 64, 64, True))
    seen: list[bool] = []
    model.register_forward_hook(lambda *args: seen.append(turns._device.is_locked))
    timed = {
        "interleave": lambda: time_call(lambda: seen.append(turns._device.is_locked), torch.device("cpu"), 0.001),
        "run": lambda: loop.timed_generate(model, [1, 2], 3),
        "steps": lambda: loop.steps_in_a_run(model, [1, 2], 3),
    }
    for name, section in timed.items():
        seen.clear()
        section()
        assert seen and all(seen), name
    seen.clear()
    loop.generate(model, [1, 2], 3)
    assert seen and not any(seen)


def test_a_holder_that_is_killed_frees_it():
    holder = start(HOLD)
    assert holder.stdout.readline() == "held\n"
    waiter = start(NOTE)
    time.sleep(0.5)
    assert waiter.poll() is None
    holder.send_signal(signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
    assert len(waiter.communicate(timeout=30)[0].split()) == 2
    holder.wait()
    holder.stdout.close()


def test_turned_off_it_waits_for_nobody():
    holder = start(HOLD)
    assert holder.stdout.readline() == "held\n"
    assert len(turns_taken(1, **{turns.SWITCH: "off"})) == 1
    holder.kill()
    holder.communicate()


def test_a_turn_within_a_turn_does_nothing_even_in_another_thread():
    done = []

    def timed() -> None:
        with turn():
            done.append(time_call(lambda: None, torch.device("cpu"), budget_s=0.001))

    with turn():
        with turn():
            pass
        assert turns._device.is_locked
        thread = threading.Thread(target=timed, daemon=True)
        thread.start()
        thread.join(timeout=20)
    assert len(done) == 1 and not turns._device.is_locked and not turns._queue.is_locked


def test_a_turn_within_a_turn_does_not_wait_for_those_who_wait_for_it():
    done = []

    def nested() -> None:
        with turn():
            done.append(True)

    with turn():
        waiter = start(NOTE)
        while not _is_waited_for():
            time.sleep(0.05)
        thread = threading.Thread(target=nested, daemon=True)
        thread.start()
        thread.join(timeout=10)
        assert done == [True]
    assert len(waiter.communicate(timeout=30)[0].split()) == 2


def _is_waited_for() -> bool:
    """Whether another process stands first in the queue."""
    probe = turns._lock("queue")
    try:
        probe.acquire(timeout=0)
    except turns.Timeout:
        return True
    probe.release()
    return False


def test_an_error_or_an_interruption_inside_gives_it_back():
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), turn():
            raise error
        assert not turns._device.is_locked


def test_an_interruption_while_waiting_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(turns, "TOLD_EVERY_S", 0.05)
    holder = start(HOLD)
    assert holder.stdout.readline() == "held\n"

    def interrupt(text, end=""):
        raise KeyboardInterrupt

    monkeypatch.setattr(turns, "_tell", interrupt)
    with pytest.raises(KeyboardInterrupt), turn():
        pytest.fail("another process has the turn")
    holder.kill()
    holder.communicate()
    assert not turns._queue.is_locked
    with turn():
        assert turns._device.is_locked


def test_who_waits_is_told_so(monkeypatch):
    monkeypatch.setattr(turns, "TOLD_EVERY_S", 0.05)
    lines = []
    monkeypatch.setattr(turns, "_tell", lambda text, end="": lines.append(text))
    holder = start(HOLD)
    assert holder.stdout.readline() == "held\n"
    threading.Timer(0.5, holder.kill).start()
    with turn():
        pass
    holder.communicate()
    assert lines[0] == f"kernel {os.getpid()} waits its turn: another one is measuring (0 s)"
    assert lines[-1] == f"kernel {os.getpid()} waited {lines[-1].split()[3]} s for its turn"


def test_a_holder_that_never_ends_does_not_stop_the_others(monkeypatch):
    monkeypatch.setattr(turns, "TOLD_EVERY_S", 0.05)
    monkeypatch.setattr(turns, "GIVE_UP_S", 0.3)
    holder = start(HOLD)
    assert holder.stdout.readline() == "held\n"
    with turn():
        assert holder.poll() is None and not turns._device.is_locked and not turns._queue.is_locked
    holder.kill()
    holder.communicate()


def test_alone_nothing_is_printed(capfd):
    with turn():
        pass
    assert capfd.readouterr() == ("", "")


def test_without_filelock_or_a_place_for_its_files_there_are_no_turns(monkeypatch, tmp_path):
    monkeypatch.setattr(turns.tempfile, "gettempdir", lambda: str(tmp_path / "file"))
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(turns, "_queue", turns._lock("queue"))
    with turn():
        pass
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['filelock'] = None\n" + NOTE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert len(done.stdout.split()) == 2, done.stderr


def test_a_kernel_that_measures_again_and_again_lets_others_in():
    greedy = """
import time
from utils.turns import turn
end = time.monotonic() + 8
print("begun", flush=True)
while time.monotonic() < end:
    with turn():
        time.sleep(0.3)
print(time.monotonic())
"""
    first = start(greedy)
    assert first.stdout.readline() == "begun\n"
    (turn_of_other,) = turns_taken(1)
    ended = float(first.communicate(timeout=60)[0])
    assert turn_of_other[1] < ended
