"""The learner's twin: `python -m chapter01.clean_copy` (or `make clean-copy`) writes the notebooks for a class.

Without outputs and answers: an exercise is answered in its code cell, and a questionnaire gets an empty place. Nothing
else is changed. The folder lies beside `notebooks`, so that the links in the notebooks lead to the same files.
"""

import json
import re
from pathlib import Path

from chapter01 import ROOT

FOLDER = ROOT / "class_copy"
ANSWERS = re.compile(r"<details>\s*<summary>([^<]*\b[Aa]nswers?\b[^<]*)</summary>.*?</details>", re.DOTALL)
PLACE = "**Your answer:**"


def cleaned(notebook: dict) -> dict:
    """A notebook, as its JSON, without outputs and worked answers."""
    cells = map(_cleaned, notebook["cells"])
    return notebook | {"cells": [cell for cell in cells if cell["source"]]}


def _cleaned(cell: dict) -> dict:
    if cell["cell_type"] == "code":
        return cell | {"outputs": [], "execution_count": None}
    text = ANSWERS.sub(lambda answer: "" if "Worked" in answer[1] else PLACE, "".join(cell["source"]))
    return cell | {"source": text.lstrip("\n").splitlines(keepends=True)}


def write(notebooks: Path = ROOT / "notebooks", folder: Path = FOLDER) -> tuple[list[Path], list[Path]]:
    """Write a clean copy of every notebook; the files that now hold one, and those left as they were.

    A copy that holds anything else was worked in, or is of an older course: it is never written over.
    """
    folder.mkdir(exist_ok=True)
    clean, kept = [], []
    for file in sorted(notebooks.glob("*.ipynb")):
        notebook = cleaned(json.loads(file.read_text(encoding="utf-8")))
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        copy = folder / file.name
        if not copy.exists():
            copy.write_text(text, encoding="utf-8")
        (clean if copy.read_text(encoding="utf-8") == text else kept).append(copy)
    return clean, kept


if __name__ == "__main__":
    clean, kept = write()
    for copy in clean:
        print(f"{FOLDER.name}/{copy.name}")
    for copy in kept:
        print(f"{FOLDER.name}/{copy.name} is left as it is: it holds other text. Delete it for a new copy.")
