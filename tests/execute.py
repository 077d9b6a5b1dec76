"""Run notebooks top to bottom in a fresh kernel and save their outputs in place: `python tests/execute.py FILES`."""

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode


def is_progress_bar(output: NotebookNode) -> bool:
    """A live widget without a picture: gone from the page when done, but its first frame would stay in the file."""
    data = output.get("data", {})
    return "application/vnd.jupyter.widget-view+json" in data and "image/png" not in data


def execute(file: Path) -> None:
    """Execute one notebook and write it back, without anything of this machine in its metadata."""
    notebook = nbformat.read(file, as_version=4)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    started = time.perf_counter()
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(file.parent)}},
        record_timing=False,
        store_widget_state=False,
    ).execute()
    notebook.metadata.language_info = {"name": "python"}  # the kernel wrote its version there
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_progress_bar(output)]
    nbformat.write(notebook, file)
    print(f"{file.name}: {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        execute(Path(name))
