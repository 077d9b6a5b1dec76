"""What the tests of all notebooks ask of a claim map: claim to the ids of the cells whose verdicts show it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path


def assert_shown(notebook: Path, claim_map: Mapping[str, Iterable[str]], claim: str, tests: Iterable[str]) -> None:
    """Each cell prints verdicts and all say yes, and one of the tests, named after the claim, turns them to no."""
    cells = {cell["id"]: cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]}
    for cell_id in claim_map[claim]:
        assert "checks.verdict(" in "".join(cells[cell_id]["source"])
        printed = "".join("".join(output.get("text", "")) for output in cells[cell_id]["outputs"])
        assert ": yes" in printed and ": no" not in printed
    assert any(f"test_{claim.lower()}_" in name for name in tests)
