"""The doors: imports from anywhere, another `utils` in the way, the conda file, what a bare machine imports."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(code: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    """Run Python code in a process of its own."""
    env = os.environ | environment
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def other_utils(tmp_path: Path) -> Path:
    """A folder with a package called `utils` that is not ours, as PyPI has one."""
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "__init__.py").write_text("whose = 'not ours'\n")
    return tmp_path


def test_notebook_imports_work_from_any_folder(tmp_path):
    done = run("from chapter01 import loop; from utils import checks; print(checks.__file__)", cwd=tmp_path)
    assert done.stdout.strip() == str(ROOT / "utils" / "checks.py"), done.stderr


def test_our_utils_wins_over_an_installed_one(other_utils):
    code = "import chapter01, utils; print(utils.__file__)"
    done = run(code, cwd=other_utils, PYTHONPATH=str(other_utils))
    assert done.stdout.strip() == str(ROOT / "utils" / "__init__.py"), done.stderr


def test_a_clash_that_came_first_is_named(other_utils):
    done = run("import utils, chapter01", cwd=other_utils, PYTHONPATH=str(other_utils))
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: another package called 'utils' is loaded, from")
    assert str(other_utils) in last and "restart the kernel" in last


def test_instruments_import_without_the_notebook_packages(tmp_path):
    """A bare GPU machine has torch, numpy and matplotlib."""
    missing = ["ipywidgets", "IPython", "tqdm", "gguf", "tokenizers", "safetensors", "huggingface_hub", "transformers"]
    modules = [
        *(f"utils.{p.stem}" for p in (ROOT / "utils").glob("*.py") if p.stem not in ("__init__", "explorer")),
        *(f"chapter01.{p.stem}" for p in (ROOT / "chapter01").glob("*.py") if not p.stem.startswith("__")),
    ]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing}))\nimport chapter01, {', '.join(modules)}; print('ok')"
    )
    done = run(code, cwd=tmp_path)
    assert done.stdout.strip() == "ok", done.stderr


def pip_section() -> list[str]:
    """The lines of environment.yml that conda hands to pip."""
    text = (ROOT / "environment.yml").read_text()
    return re.findall(r"^ {6}- (.+)$", text.split("- pip:")[1], re.M)


def test_the_conda_file_installs_this_project_and_pins_nothing_itself():
    assert pip_section() == ["-c constraints.txt", "-e ."]
    assert not re.search(r"[=<>]=?\s*\d", (ROOT / "environment.yml").read_text().replace("python=3.12", ""))


def test_the_pip_section_of_the_conda_file_resolves_in_a_fresh_environment(tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python = next(p for p in (tmp_path / "env").glob("*/python*") if p.is_file())
    probe = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", tmp_path, "nbval"]
    if subprocess.run(probe, capture_output=True, check=False).returncode and os.environ.get("CI") != "true":
        pytest.skip("no package index can be reached from here")
    # as conda does: the lines become a requirements file beside environment.yml, and pip runs in its folder
    requirements = ROOT / "condaenv.requirements.txt"
    requirements.write_text("\n".join(pip_section()))
    try:
        command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--report", tmp_path / "report.json"]
        done = subprocess.run([*command, "-r", requirements], cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        requirements.unlink()
    assert done.returncode == 0, done.stderr[-2000:]
    report = (tmp_path / "report.json").read_text().lower()
    for name in ("torch", "jupyterlab", "ipywidgets", "matplotlib", "nbval", "gguf", "tokenizers"):
        assert f'"name": "{name}"' in report
