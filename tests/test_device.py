"""What this process may use is told from affinity and cgroups, tried on trees of files made here."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from utils import device

CPU = torch.device("cpu")
GIB = 1 << 30


def write(root, files):
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


# --- picking ------------------------------------------------------------------------------------------


def fake_machine(monkeypatch, gpus=0, mps=False):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("gpus", "mps", "picked"), [(2, True, "cuda"), (1, False, "cuda"), (0, True, "mps"), (0, False, "cpu")]
)
def test_the_fastest_kind_of_device_is_picked(monkeypatch, gpus, mps, picked):
    fake_machine(monkeypatch, gpus, mps)
    assert device.pick() == torch.device(picked)


@pytest.mark.parametrize("asked", ["cuda", "cuda:0", "cuda:1", "mps", "cpu", "CPU", "Cuda:1"])
def test_a_device_that_is_there_can_be_asked_for(monkeypatch, asked):
    fake_machine(monkeypatch, gpus=2, mps=True)
    assert device.pick(asked) == torch.device(asked.lower())


@pytest.mark.parametrize("asked", ["cuda", "cuda:0", "mps", "cuda:7", "gpu", "", "xpu", "meta", "cpu:3", 3.5])
def test_an_absent_or_unknown_device_is_refused_with_what_is_here(monkeypatch, asked):
    fake_machine(monkeypatch)
    with pytest.raises(ValueError, match=r"Here: cpu\.") as error:
        device.pick(asked)
    assert repr(asked) in str(error.value)


def test_a_gpu_beyond_the_last_is_refused(monkeypatch):
    fake_machine(monkeypatch, gpus=2)
    with pytest.raises(ValueError, match=r"'cuda:2' is not on this machine\. Here: cuda:0, cuda:1, cpu\."):
        device.pick("cuda:2")


# --- one synchronize for all --------------------------------------------------------------------------


def test_one_synchronize_waits_for_each_kind_of_device_and_for_no_other(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda d: waited.append(str(d)))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    for name in ("cuda:1", "mps", "cpu"):
        device.synchronize(torch.device(name))
    assert waited == ["cuda:1", "mps"]
    with pytest.raises(ValueError, match="'xpu'"):
        device.synchronize(torch.device("xpu"))


def test_nothing_on_a_cpu_calls_cuda_or_mps(monkeypatch):
    def forbidden(*_):
        raise AssertionError("called without such a device")

    for module in (torch.cuda, torch.mps):
        for name in ("synchronize", "empty_cache"):
            monkeypatch.setattr(module, name, forbidden)
    for name in ("mem_get_info", "get_device_name", "get_device_properties", "current_device"):
        monkeypatch.setattr(torch.cuda, name, forbidden)
    device.synchronize(CPU)
    device.empty_cache(CPU)
    assert device.free_bytes(CPU) and device.total_bytes(CPU) and device.name(CPU)
    device.cache_bytes(CPU)


# --- threads ------------------------------------------------------------------------------------------

QUOTAS = {  # files of a cgroup tree: CPUs' worth of time they leave
    "v2, container": ({"proc/self/cgroup": "0::/", "fs/cpu.max": "150000 100000"}, 1.5),
    "v2, no limit": ({"proc/self/cgroup": "0::/", "fs/cpu.max": "max 100000"}, 1e6),
    "v2, the limit is set on a group around ours": (
        {
            "proc/self/cgroup": "0::/user.slice/job/step",
            "fs/user.slice/job/step/cpu.max": "max 100000",
            "fs/user.slice/job/cpu.max": "300000 100000",
            "fs/user.slice/cpu.max": "6400000 100000",
        },
        3,
    ),
    "v1, container that sees the host's path": (
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc",
            "fs/cpu/cpu.cfs_quota_us": "50000",
            "fs/cpu/cpu.cfs_period_us": "100000",
        },
        0.5,
    ),
    "v1, no limit": (
        {
            "proc/self/cgroup": "4:cpu:/a",
            "fs/cpu/a/cpu.cfs_quota_us": "-1",
            "fs/cpu/a/cpu.cfs_period_us": "100000",
        },
        1e6,
    ),
    "v1 and v2 at once": (
        {
            "proc/self/cgroup": "4:cpu:/a\n0::/a",
            "fs/cpu/a/cpu.cfs_quota_us": "200000",
            "fs/cpu/a/cpu.cfs_period_us": "50000",
        },
        4,
    ),
    "the quota of another group": (
        {
            "proc/self/cgroup": "4:cpuset:/a",
            "fs/cpu/a/cpu.cfs_quota_us": "100000",
            "fs/cpu/a/cpu.cfs_period_us": "100000",
        },
        1e6,
    ),
    "not Linux": ({}, 1e6),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_the_quota_of_the_control_group_is_read(tmp_path, case):
    files, expected = QUOTAS[case]
    write(tmp_path, files)
    assert device.cpu_quota(tmp_path / "proc", tmp_path / "fs") == expected


@pytest.mark.parametrize(
    ("allowed", "quota", "torchs", "expected"),
    [(64, 1e6, 32, 32), (4, 1e6, 8, 4), (64, 2.9, 64, 2), (8, 0.5, 8, 1), (8, 1e6, 1, 1)],
)
def test_threads_are_the_least_of_affinity_quota_and_cores(monkeypatch, allowed, quota, torchs, expected):
    monkeypatch.setattr(device, "_allowed_cpus", lambda: set(range(allowed)))
    monkeypatch.setattr(device, "cpu_quota", lambda: quota)
    monkeypatch.setattr(torch, "get_num_threads", lambda: torchs)
    assert device.threads() == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
@pytest.mark.parametrize("limit", ["affinity", "OMP_NUM_THREADS"])
def test_a_process_held_to_one_cpu_says_one_thread(limit):
    hold = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); " if limit == "affinity" else ""
    code = hold + "from utils.device import threads; print(threads())"
    env = os.environ | ({"OMP_NUM_THREADS": "1"} if limit == "OMP_NUM_THREADS" else {})
    root = os.path.dirname(os.path.dirname(__file__))
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=root)
    assert said.stdout.strip() == "1", said.stderr


# --- memory -------------------------------------------------------------------------------------------

MEMORY = {  # files of a cgroup tree: (limit, free under it)
    "v2, file pages are dropped when memory is needed": (
        {
            "proc/self/cgroup": "0::/",
            "fs/memory.max": str(4 * GIB),
            "fs/memory.current": str(3 * GIB),
            "fs/memory.stat": f"anon 7\ninactive_file {GIB}\nactive_file 5",
        },
        (4 * GIB, 2 * GIB),
    ),
    "v1, the limit is set on a group around ours": (
        {
            "proc/self/cgroup": "4:memory:/a/b",
            "fs/memory/a/b/memory.limit_in_bytes": str((1 << 63) - 4096),
            "fs/memory/a/b/memory.usage_in_bytes": str(GIB),
            "fs/memory/a/memory.limit_in_bytes": str(8 * GIB),
            "fs/memory/a/memory.usage_in_bytes": str(2 * GIB),
            "fs/memory/a/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 2}",
        },
        (8 * GIB, 6 * GIB + GIB // 2),
    ),
    "v2, over the limit": (
        {"proc/self/cgroup": "0::/", "fs/memory.max": "100", "fs/memory.current": "120"},
        (100, 0),
    ),
    "v2, no limit": (
        {"proc/self/cgroup": "0::/", "fs/memory.max": "max", "fs/memory.current": "120"},
        (sys.maxsize, sys.maxsize),
    ),
    "not Linux": ({}, (sys.maxsize, sys.maxsize)),
}


@pytest.mark.parametrize("case", MEMORY)
def test_the_memory_of_the_control_group_is_read(tmp_path, case):
    files, expected = MEMORY[case]
    write(tmp_path, files)
    assert device.cgroup_memory(tmp_path / "proc", tmp_path / "fs") == expected


def test_memory_is_the_smaller_of_the_machines_and_the_containers(monkeypatch):
    monkeypatch.setattr(device, "_system_memory", lambda: (64 * GIB, 50 * GIB))
    monkeypatch.setattr(device, "cgroup_memory", lambda: (8 * GIB, 3 * GIB))
    assert (device.total_bytes(CPU), device.free_bytes(CPU)) == (8 * GIB, 3 * GIB)
    monkeypatch.setattr(device, "cgroup_memory", lambda: (sys.maxsize, sys.maxsize))
    assert (device.total_bytes(CPU), device.free_bytes(CPU)) == (64 * GIB, 50 * GIB)


def test_available_memory_counts_not_only_memory_that_is_empty(tmp_path):
    write(tmp_path, {"meminfo": "MemTotal:  2048 kB\nMemFree:   10 kB\nMemAvailable:   1024 kB"})
    assert device.meminfo(tmp_path) == (2048 * 1024, 1024 * 1024)


def test_available_memory_of_a_mac():
    text = (
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
        "Pages free:                               100.\n"
        "Pages active:                             500.\n"
        "Pages inactive:                            20.\n"
        "Pages speculative:                          3.\n"
        "Pages wired down:                         900."
    )
    assert device._vm_stat_free(text) == 123 * 16384


def test_memory_that_torch_holds_unused_on_a_gpu_is_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda d: (10 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda d: 7 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda d: 4 * GIB)
    gpu = torch.device("cuda:0")
    assert (device.free_bytes(gpu), device.total_bytes(gpu)) == (13 * GIB, 80 * GIB)


def test_this_machine_has_less_memory_free_than_in_all():
    assert 0 < device.free_bytes(CPU) < device.total_bytes(CPU)


# --- cache and name -----------------------------------------------------------------------------------


def cpu_caches(cpu, l3, sharers):
    """Files of one CPU's caches: 48 KB, 2 MB for itself and, if any, an L3 shared with others."""
    caches = [("1", "48K", str(cpu)), ("2", "2048K", str(cpu))] + ([("3", l3, sharers)] if l3 else [])
    return {
        f"cpu{cpu}/cache/index{i}/{file}": text
        for i, cache in enumerate(caches)
        for file, text in zip(("level", "size", "shared_cpu_list"), cache, strict=True)
    }


def test_each_last_level_cache_of_the_allowed_cpus_counts_once(tmp_path):
    for cpu, sharers in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        write(tmp_path, cpu_caches(cpu, "32768K", sharers))
    assert device.last_level_cache({0, 1}, tmp_path) == 32 << 20
    assert device.last_level_cache({0, 1, 2, 3}, tmp_path) == 64 << 20
    assert device.last_level_cache({1, 2}, tmp_path) == 64 << 20


def test_without_a_third_level_the_second_is_the_last(tmp_path):
    write(tmp_path, cpu_caches(0, None, "") | cpu_caches(1, None, ""))
    assert device.last_level_cache({0, 1}, tmp_path) == 4 << 20


def test_an_unknown_cache_stays_unknown(tmp_path, monkeypatch):
    assert device.last_level_cache({0}, tmp_path) is None
    write(tmp_path, {"cpu0/cache/index0/level": "3", "cpu0/cache/index0/size": "?"})
    assert device.last_level_cache({0}, tmp_path) is None
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: SimpleNamespace(name="old"))
    assert device.cache_bytes(torch.device("cuda:0")) is None
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: SimpleNamespace(L2_cache_size=50 << 20))
    assert device.cache_bytes(torch.device("cuda:0")) == 50 << 20


def test_the_name_is_the_full_one_that_the_system_reports(tmp_path, monkeypatch):
    write(tmp_path, {"cpuinfo": "processor\t: 0\nmodel\t\t: 106\nmodel name\t: Example(R) CPU @ 2.80GHz"})
    assert device._model_name(tmp_path / "cpuinfo") == "Example(R) CPU @ 2.80GHz"
    assert device._model_name(tmp_path / "absent") == ""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda d: "NVIDIA H100 80GB HBM3")
    assert device.name(torch.device("cuda:0")) == "NVIDIA H100 80GB HBM3"
    assert len(device.name(CPU)) > 2


def test_a_mac_is_asked_for_the_name_of_its_chip(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    answers = {"machdep.cpu.brand_string": "Apple M2 Pro", "hw.perflevel0.l2cachesize": "16777216"}
    monkeypatch.setattr(device, "_run", lambda *command: answers.get(command[-1], ""))
    assert device.name(torch.device("mps")) == device.name(CPU) == "Apple M2 Pro"
    assert device.cache_bytes(torch.device("mps")) == 16 << 20


def test_asking_costs_little():
    start = time.perf_counter()
    for _ in range(20):
        device.free_bytes(CPU)
        device.threads()
    assert time.perf_counter() - start < 2  # a twentieth of a second each would be felt by a slider
