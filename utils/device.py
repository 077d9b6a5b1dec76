"""Which device this is, what this process may use of it, and how to wait for it.

A container or a job scheduler often gives a process less than the machine has. What counts here is the
smaller figure: CPUs from the process's affinity and its cgroup's quota, memory from the cgroup's limit.
"""

import ctypes
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
CPUS = Path("/sys/devices/system/cpu")


# --- the device ---------------------------------------------------------------------------------------


def pick(asked: str | None = None) -> torch.device:
    """The device to measure: the one asked for ("cuda", "cuda:1", "mps", "cpu"), else the fastest kind here.

    Raises ValueError if the name is none of these or the device is not there; the message lists what is.
    """
    here = available()
    if asked is None:
        return torch.device(here[0].split(":")[0])
    try:
        device = torch.device(asked.lower())
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"{asked!r} is not the name of a device. Here: {', '.join(here)}.") from error
    if device.type not in {name.split(":")[0] for name in here} or (device.index and str(device) not in here):
        raise ValueError(f"The device {asked!r} is not on this machine. Here: {', '.join(here)}.")
    return device


def prepare(asked: str | None = None) -> torch.device:
    """`pick` a device, and keep torch to the threads that this process may use."""
    torch.set_num_threads(threads())
    return pick(asked)


def describe(device: torch.device) -> str:
    """The device in one line, with what this process may use of it."""
    share = f"{free_bytes(device) / 1e9:.1f} of {total_bytes(device) / 1e9:.1f} GB free"
    return f"{name(device)} ({device.type}, {threads()} CPU threads, {share})"


def available() -> list[str]:
    """Names of the devices on this machine that the course can use, the fastest kind first."""
    names = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return names + (["mps"] if torch.backends.mps.is_available() else []) + ["cpu"]


def name(device: torch.device) -> str:
    """The full name that the driver or the operating system reports, e.g. "NVIDIA H100 80GB HBM3"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    reported = _sysctl("machdep.cpu.brand_string") or _model_name(PROC / "cpuinfo")
    return reported or platform.processor() or platform.machine() or "unknown CPU"


def synchronize(device: torch.device) -> None:
    """Wait until all work given to the device is done. A CPU has always finished when a call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    elif device.type != "cpu":
        raise ValueError(f"How to wait for a {device.type!r} device is not known: use cuda, mps or cpu.")


def empty_cache(device: torch.device) -> None:
    """Give memory that torch keeps but no tensor uses back to the driver (a CPU keeps none)."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


# --- threads ------------------------------------------------------------------------------------------


def threads() -> int:
    """CPU threads that torch should use: the least of three figures, and at least 1.

    The CPUs that this process may run on; its cgroup's quota, rounded down, because a thread more than the
    quota pays for is stopped in every period and the others wait for it; and torch's own figure, which
    counts cores rather than hyperthreads and keeps to OMP_NUM_THREADS.
    """
    return max(1, min(len(_allowed_cpus()), int(cpu_quota()), torch.get_num_threads()))


def cpu_quota(proc: Path = PROC, cgroups: Path = CGROUPS) -> float:
    """CPUs' worth of time that the cgroup of this process may use; a large number if there is no limit."""
    quotas = [1e6]
    for folder in _cgroup_folders("cpu", proc, cgroups):
        # cgroup v2 writes "quota period" or "max period" into one file, v1 uses two and -1.
        words = (_read(folder / "cpu.max") or _read(folder / "cpu.cfs_quota_us")).split()
        period = words[1:] or _read(folder / "cpu.cfs_period_us").split()
        if words and period and words[0].isdigit():
            quotas.append(int(words[0]) / int(period[0]))
    return min(quotas)


def _allowed_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    count = getattr(os, "process_cpu_count", os.cpu_count)  # process_cpu_count: Python 3.13 and newer
    return set(range(count() or 1))


# --- memory -------------------------------------------------------------------------------------------


def free_bytes(device: torch.device) -> int:
    """Bytes that this process can still allocate on the device."""
    if device.type == "cuda":
        # Memory that torch holds without using it is free to us, though the driver counts it as taken.
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    free = min(_system_memory()[1], cgroup_memory()[1])
    if device.type == "mps":  # memory shared with the CPU, of which Metal gives out a part
        free = min(free, torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    return max(0, free)


def total_bytes(device: torch.device) -> int:
    """Bytes of memory that this process could have on the device if nothing else ran."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    return min(_system_memory()[0], cgroup_memory()[0])


def cgroup_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> tuple[int, int]:
    """(limit, free under the limit) in bytes for the cgroup of this process; very large if there is none."""
    limits, free = [sys.maxsize], [sys.maxsize]
    for folder in _cgroup_folders("memory", proc, cgroups):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        if limit.isdigit() and used.isdigit():
            # Pages of files read once count as used, but are dropped as soon as memory is needed.
            stat = _read(folder / "memory.stat")
            files = re.search(r"^total_inactive_file (\d+)", stat, re.M)  # v1: with the groups below
            files = files or re.search(r"^inactive_file (\d+)", stat, re.M)
            limits.append(int(limit))
            free.append(int(limit) - int(used) + int(files[1] if files else 0))
    return min(limits), max(0, min(free))


def meminfo(proc: Path = PROC) -> tuple[int, int]:
    """(total, available) bytes of the machine, as Linux tells."""
    kilobytes = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read(proc / "meminfo"), re.M))
    return int(kilobytes["MemTotal"]) * 1024, int(kilobytes["MemAvailable"]) * 1024


def _system_memory() -> tuple[int, int]:
    if sys.platform == "darwin":
        return int(_sysctl("hw.memsize")), _vm_stat_free(_run("vm_stat"))
    return _windows_memory() if sys.platform == "win32" else meminfo()


def _vm_stat_free(text: str) -> int:
    """Bytes that macOS would give to a process that asks: pages free, or kept only as a cache."""
    page = int(re.search(r"page size of (\d+) bytes", text)[1])
    counts = dict(re.findall(r"^Pages (\w+):\s+(\d+)", text, re.M))
    return page * sum(int(counts.get(kind, 0)) for kind in ("free", "inactive", "speculative"))


def _windows_memory() -> tuple[int, int]:
    class Status(ctypes.Structure):  # MEMORYSTATUSEX of the Windows API: two 32-bit fields, seven of 64
        _fields_ = [("length", ctypes.c_uint32), ("load", ctypes.c_uint32), ("bytes", ctypes.c_uint64 * 7)]

    status = Status(length=ctypes.sizeof(Status))
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return status.bytes[0], status.bytes[1]


# --- cache --------------------------------------------------------------------------------------------


def cache_bytes(device: torch.device) -> int | None:
    """Bytes of the last cache before memory (L2 of a GPU, usually L3 of a CPU); None where nothing tells."""
    if device.type == "cuda":
        return getattr(torch.cuda.get_device_properties(device), "L2_cache_size", None) or None
    if sys.platform == "darwin":
        # The cache that a Mac's GPU and CPU share behind this one is reported nowhere.
        return int(_sysctl("hw.perflevel0.l2cachesize") or _sysctl("hw.l2cachesize") or 0) or None
    return last_level_cache(_allowed_cpus())


def last_level_cache(cpus: set[int], folder: Path = CPUS) -> int | None:
    """Bytes of the highest level of cache of these CPUs: each cache once, however many CPUs share it."""
    found = {}
    for cpu in cpus:
        for index in folder.glob(f"cpu{cpu}/cache/index*"):
            level, size, sharers = (_read(index / file) for file in ("level", "size", "shared_cpu_list"))
            if level.isdigit() and re.fullmatch(r"\d+K", size):
                found[int(level), sharers or cpu] = int(size[:-1]) * 1024
    last = max((level for level, _ in found), default=0)
    return sum(size for (level, _), size in found.items() if level == last) or None


# --- reading what the system says ---------------------------------------------------------------------


def _cgroup_folders(controller: str, proc: Path, cgroups: Path) -> Iterator[Path]:
    """Folders of the cgroup of this process and of all groups around it: each may set a limit.

    Lines of /proc/self/cgroup read "4:memory:/path" (v1, one tree a controller) or "0::/path" (v2). Inside
    a container the path may be the host's: it does not exist then, and the tree's root is the container.
    """
    for line in _read(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = cgroups / controller if controllers else cgroups
            inner = root / path.lstrip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(root))


def _model_name(cpuinfo: Path) -> str:
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", _read(cpuinfo), re.M)
    return found[1].strip() if found else ""


def _read(file: Path) -> str:
    """The text of a small file without the ends, or nothing where there is no such file to read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _sysctl(key: str) -> str:
    return _run("sysctl", "-n", key) if sys.platform == "darwin" else ""


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
