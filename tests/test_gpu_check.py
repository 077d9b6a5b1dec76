"""The command `make gpu-check` on a machine without a GPU: what it runs, how it ends, and what it needs."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import gpu_check
import pytest
import torch
from test_graphs import captured  # noqa: F401  (a fixture)

ROOT = Path(__file__).resolve().parent.parent
MISSING = (
    "IPython", "ipykernel", "ipywidgets", "jupyter_core", "nbclient", "nbformat", "nbval", "tqdm", "filelock", "gguf",
    "tokenizers", "safetensors", "huggingface_hub", "transformers", "accelerate", "hypothesis", "playwright",
)  # fmt: skip
PY_OK, PY_FAILS, PY_WAITS = ([sys.executable, "-c", code] for code in ("", "exit(3)", "import time; time.sleep(60)"))


def test_a_part_that_fails_does_not_keep_the_others_from_running(monkeypatch, capsys, tmp_path):
    made = {"tests": PY_FAILS, "1B": PY_OK, "8B": [], "70B": PY_OK}
    monkeypatch.setattr(gpu_check, "parts", lambda *args: made.items())
    assert gpu_check.main(["--folder", str(tmp_path / "new")]) == 1
    ends = [line.split(" (")[0] for line in capsys.readouterr().out.split("---\n")[-1].splitlines()]
    assert ends[0] == "tests: FAILED, exit code 3" and ends[1] == "1B: ok" and ends[3] == "70B: ok"
    assert ends[2].startswith("8B: FAILED, pytest is not installed")
    monkeypatch.setattr(gpu_check, "parts", lambda *args: [("1B", PY_OK)])
    assert gpu_check.main(["--folder", str(tmp_path)]) == 0


def test_all_parts_together_keep_to_the_limit(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(gpu_check, "LIMIT_S", 0.5)
    monkeypatch.setattr(gpu_check, "parts", lambda *args: [("1B", PY_WAITS), ("8B", PY_OK)])
    assert gpu_check.main(["--folder", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "1B: FAILED, stopped" in said and "8B: FAILED, no time was left" in said


def test_it_measures_every_model_on_the_device_with_this_python(tmp_path):
    named = dict(gpu_check.parts("cuda", gpu_check.MODELS, tmp_path))
    assert list(named) == ["tests", "Llama-3.2-1B", "Llama-3.1-8B", "Llama-3.1-70B"]
    words = " ".join(named["Llama-3.1-70B"])
    assert words.startswith(f"{sys.executable} -m chapter01 measure --device cuda --model Llama-3.1-70B --json ")
    assert words.endswith("Llama-3.1-70B.json")
    dry = ["make", "--no-print-directory", "-n", "gpu-check", "PYTHON=py"]  # `make test` runs this test inside a make
    shown = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True)
    assert shown.stdout.split()[:2] == ["py", "tests/gpu_check.py"], shown.stderr


def test_the_gpu_tests_need_no_notebook_packages_and_say_why_they_are_skipped():
    code = f"import sys; sys.modules.update(dict.fromkeys({MISSING})); import pytest; sys.exit(pytest.main())"
    code = code.replace("main()", "main(['-m', 'gpu', '-rs', '-p', 'no:cacheprovider', 'tests/test_gpu.py'])")
    env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "torch sees no CUDA device" in done.stdout and "skipped" in done.stdout.splitlines()[-1]


ON_A_CPU = [
    ("test_captured_steps_agree_with_plain_ones_across_windows", ("GROUPED", torch.float32, 2)),
    ("test_captured_passes_of_several_rows_agree_with_plain_ones", (torch.bfloat16,)),
    ("test_the_captured_loop_writes_the_text_of_the_plain_one", ()),
    ("test_a_replay_reads_what_lies_there_now", ()),
]


@pytest.mark.parametrize(("name", "args"), ON_A_CPU, ids=[name for name, _ in ON_A_CPU])
def test_a_gpu_test_passes_with_the_stand_in(captured, monkeypatch, name, args):  # noqa: F811
    gpu = importlib.import_module("test_gpu")
    monkeypatch.setattr(gpu, "DEVICE", torch.device("cpu"))
    getattr(gpu, name)(*(getattr(gpu, a) if isinstance(a, str) else a for a in args))
    assert captured
