"""What the tests of all notebooks ask of verdicts: the notebook's own cells, on numbers that hold and on others."""

import ast
import contextlib
import inspect
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path


def cells(notebook: Path) -> dict[str, dict]:
    return {cell["id"]: cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]}


def say(notebook: Path, *ids: str, **given: object) -> str:
    """What cells of a notebook print, run one after the other with its imports and with these names given."""
    found, namespace = cells(notebook), dict(given)
    (imports,) = (cell["source"] for cell_id, cell in found.items() if cell_id.endswith("-imports"))
    lines = [line for line in ast.parse("".join(imports)).body if isinstance(line, ast.Import | ast.ImportFrom)]
    exec("\n".join(map(ast.unparse, lines)), namespace)
    namespace |= given
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for cell_id in ids:
            exec("".join(found[cell_id]["source"]), namespace)
    return printed.getvalue()


def turned(text: str) -> list[str]:
    """The verdicts that say no."""
    lines = [line for line in text.splitlines() if line.endswith((": yes", ": no"))]
    assert lines
    return [line.removesuffix(": no") for line in lines if line.endswith(": no")]


def assert_shown(
    notebook: Path, claim_map: Mapping[str, Iterable[str]], claim: str, tests: Mapping[str, object]
) -> None:
    """Each cell of the claim prints verdicts that all say yes, and a test named after a claim runs that very cell."""
    turning = {name: inspect.getsource(test) for name, test in tests.items() if name.startswith("test_c")}
    assert any(name.startswith(f"test_{claim.lower()}_") for name in turning)
    shown = cells(notebook)
    for cell_id in claim_map[claim]:
        assert "checks.verdict(" in "".join(shown[cell_id]["source"])
        printed = "".join("".join(output.get("text", "")) for output in shown[cell_id]["outputs"])
        assert ": yes" in printed and ": no" not in printed
        assert any(f'"{cell_id}"' in source for source in turning.values()), f"no test turns {cell_id}"
