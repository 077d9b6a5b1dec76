"""How a notebook of this course is built, rule by rule. What its cells print is compared by nbval, not here.

A rule takes a notebook and yields a sentence for each place that breaks it. The last tests break every rule in
a notebook made for that, so that none of them can pass by never looking.
"""

import ast
import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from utils.checks import UNANSWERED

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

IGNORED = "nbval-ignore-output"
PARAMETERS = "parameters"  # the tag that papermill looks for
VIEW = "application/vnd.jupyter.widget-view+json"
VERDICT = re.compile(r"^.+: (yes|no)$", re.MULTILINE)


# --- reading a notebook -------------------------------------------------------------------------------


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def is_ignored(cell: NotebookNode) -> bool:
    return IGNORED in cell.metadata.get("tags", [])


def parameter_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in code_cells(notebook) if PARAMETERS in cell.metadata.get("tags", [])]


def printed(cell: NotebookNode) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def bundles(cell: NotebookNode) -> list[NotebookNode]:
    """Outputs that hold data by kind: pictures, widgets, values."""
    return [output for output in cell.outputs if "data" in output]


def images(cell: NotebookNode) -> list[NotebookNode]:
    return [output for output in bundles(cell) if any(kind.startswith("image/") for kind in output.data)]


def names(cell: NotebookNode) -> set[str]:
    """Every name in the code: imported, called or looked up."""
    nodes = list(ast.walk(ast.parse(TransformerManager().transform_cell(cell.source))))
    found = {node.id for node in nodes if isinstance(node, ast.Name)}
    found |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return found.union(*(node.name.split(".") for node in nodes if isinstance(node, ast.alias)))


def loaded(cell: NotebookNode) -> set[str]:
    """Every name whose value the code takes."""
    nodes = ast.walk(ast.parse(TransformerManager().transform_cell(cell.source)))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def calls(cell: NotebookNode, name: str) -> bool:
    """Whether the code calls a function of that name, as `name(...)` or `module.name(...)`."""
    nodes = ast.walk(ast.parse(TransformerManager().transform_cell(cell.source)))
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    return any(name == getattr(function, "id", getattr(function, "attr", None)) for function in called)


def sections(notebook: NotebookNode) -> list[tuple[str, str, list[NotebookNode]]]:
    """(heading, prose, code cells) from each "## " heading to the next, without exercises and questions."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            if found:
                found[-1][2].append(cell)
            continue
        before, *parts = re.split(r"^## ", cell.source, flags=re.MULTILINE)
        if found:
            found[-1][1] += "\n\n" + before
        found += [[*part.partition("\n")[::2], []] for part in parts]
    apart = re.compile("exercise|question|answer", re.IGNORECASE)
    return [tuple(section) for section in found if not apart.search(section[0])]


def exercises(notebook: NotebookNode) -> list[tuple[str, NotebookNode, str]]:
    """(prose since the exercise before, the cell with the checker, prose up to the next exercise)."""
    found, prose = [], ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            prose += "\n\n" + cell.source
            if found:
                found[-1][2] = prose
        elif calls(cell, "check"):
            found.append([prose, cell, ""])
            prose = ""
    return [tuple(exercise) for exercise in found]


# --- the rules: outputs that can be tested ------------------------------------------------------------


def was_run_once_from_top_to_bottom(notebook: NotebookNode) -> Iterator[str]:
    # A cell without a count was never run: nbval passes it, whatever it would print.
    counts = [cell.execution_count for cell in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)) or not counts:
        yield f"execution counts {counts} are not 1, 2, 3, ..."


def what_is_not_compared_gets_a_verdict(notebook: NotebookNode) -> Iterator[str]:
    waiting = None
    for cell in [*code_cells(notebook), None]:
        if waiting and (cell is None or is_ignored(cell)):
            yield f"no compared verdict follows {waiting} before the next timing"
        if cell is not None and is_ignored(cell):
            waiting = cell.id
        elif cell is not None and VERDICT.search(printed(cell)):
            waiting = None


def verdicts_are_compared_and_all_yes(notebook: NotebookNode) -> Iterator[str]:
    for cell in code_cells(notebook):
        given = calls(cell, "verdict")
        if given and is_ignored(cell):
            yield f"the verdict in {cell.id} is not compared"
        if given and not VERDICT.search(printed(cell)):
            yield f"{cell.id} gives a verdict, and printed none"
        if "no" in VERDICT.findall(printed(cell)):
            yield f"{cell.id} says no"
    if not any(calls(cell, "verdict") for cell in code_cells(notebook)):
        yield "there is no verdict in the whole notebook"


def nothing_is_hidden_from_the_comparison(notebook: NotebookNode) -> Iterator[str]:
    for cell in code_cells(notebook):
        for tag in set(cell.metadata.get("tags", [])) - {IGNORED, PARAMETERS}:
            yield f"{cell.id} has the tag {tag}"
        if re.search(r"#\s*(NBVAL|PYTEST_VALIDATE)", cell.source):
            yield f"{cell.id} has a comment that nbval obeys: use the tag {IGNORED}, which can be seen"


def nothing_went_wrong(notebook: NotebookNode) -> Iterator[str]:
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if output.output_type == "error":
                yield f"{cell.id} saved an error: {output.ename}"
            if output.get("name") == "stderr":
                yield f"{cell.id} saved text from stderr: {output.text[:80]}"


def nothing_of_the_machine_is_left(notebook: NotebookNode) -> Iterator[str]:
    for cell in notebook.cells:
        texts = [cell.source]
        for output in cell.get("outputs", []):
            data = {kind: value for kind, value in output.get("data", {}).items() if "image/" not in kind}
            texts += [output.get("text", ""), json.dumps(data)]
        for text in texts:
            found = re.search(
                r"(?<![\w.])/(home|root|Users|tmp|var|opt|mnt|content|work)/|[A-Z]:\\+Users|file://|site-packages", text
            )
            if found:
                yield f"{cell.id} holds a path: ...{text[max(0, found.start() - 30) : found.end() + 30]}..."
            if re.search(r"\bat 0x[0-9a-f]{6,}", text):
                yield f"{cell.id} holds an address in memory"
        if set(cell.metadata) - {"tags"}:
            yield f"{cell.id} holds metadata {set(cell.metadata)}"
    for key in set(notebook.metadata) - {"kernelspec", "language_info"}:
        yield f"the notebook's metadata hold {key!r}"


def the_kernel_is_called_python3(notebook: NotebookNode) -> Iterator[str]:
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield f"the kernel is {notebook.metadata.get('kernelspec')}"


def only_explorers_are_live(notebook: NotebookNode) -> Iterator[str]:
    flickering = {"interact", "interactive", "interact_manual", "interactive_output", "Output", "clear_output"}
    for cell in code_cells(notebook):
        for name in flickering & names(cell):
            yield f"{cell.id} uses {name}: it fails under nbval; use an explorer"
        for output in bundles(cell):
            if VIEW in output.data and "image/png" not in output.data:
                yield f"{cell.id} saved a widget without a picture: a progress bar that was not cleared?"


# --- the rules: how it is built -----------------------------------------------------------------------


def ids_tell_what_a_cell_is_for(notebook: NotebookNode) -> Iterator[str]:
    ids = [cell.get("id", "") for cell in notebook.cells]
    for name in ids:
        words = name.split("-")
        random = [w for w in words if re.fullmatch(r"[0-9a-f]{4,}", w) and re.search("[0-9]", w) and not w.isdigit()]
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name) or len(name) > 40 or random or words[0].isdigit():
            yield f"the id {name!r} is not like idle-derive-bytes"
    if len(set(ids)) < len(ids):
        yield "two cells have the same id"
    if len({name.split("-")[0] for name in ids}) != 1:
        yield "the ids do not begin with one word, the notebook's"


def opens_with_what_it_is_about(notebook: NotebookNode) -> Iterator[str]:
    first = notebook.cells[0]
    wanted = {
        "a title": r"^# ",
        "the question": r"question.*\?",
        "what you will be able to do": r"you will be able to",
        "minutes": r"\d+ minutes",
        "the modules": r"\]\(\.\./chapter01/\w+\.py\)",
    }
    for name, pattern in wanted.items():
        if first.cell_type != "markdown" or not re.search(pattern, first.source, re.IGNORECASE | re.DOTALL):
            yield f"the first cell lacks {name}"
    for path in re.findall(r"\]\(\.\./(\w+/\w+\.py)\)", first.source):
        if not (ROOT / path).exists():
            yield f"the first cell names {path}, which is not there"


def parameters_stand_in_one_cell_and_are_used(notebook: NotebookNode) -> Iterator[str]:
    # papermill puts a cell with the values that it was given behind this one.
    cells = parameter_cells(notebook)
    if cells != code_cells(notebook)[:1]:
        yield f"the cells tagged {PARAMETERS} are {[cell.id for cell in cells]}, not the first code cell alone"
    for cell in cells:
        for node in ast.parse(cell.source).body:
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)):
                yield f"{cell.id} holds more than names with plain values: {ast.unparse(node)}"
                continue
            if not any(node.targets[0].id in loaded(other) for other in code_cells(notebook)):
                yield f"no cell uses the parameter {node.targets[0].id}"


def imports_the_chapter_first(notebook: NotebookNode) -> Iterator[str]:
    # chapter01 sees to it that `utils` is the course's own.
    imports = re.findall(r"^(?:from|import) +(\w+)", "\n".join(c.source for c in code_cells(notebook)), re.MULTILINE)
    others = [module for module in imports if module not in sys.stdlib_module_names]
    if others[:1] != ["chapter01"]:
        yield f"the code imports {others}, not chapter01 first"


def code_cells_are_a_few_lines(notebook: NotebookNode) -> Iterator[str]:
    lines = [len(cell.source.splitlines()) for cell in code_cells(notebook)]
    if statistics.median(lines) >= 8:
        yield f"the median code cell has {statistics.median(lines)} lines"
    for cell in code_cells(notebook):
        if re.search(r";\s*$", cell.source):
            yield f"{cell.id} ends with a semicolon, which silences nothing when the notebook is tested"


def sections_end_in_a_bold_sentence(notebook: NotebookNode) -> Iterator[str]:
    if len(sections(notebook)) < 2:
        yield "there are no sections"
    for heading, prose, _ in sections(notebook):
        last = [paragraph for paragraph in prose.split("\n\n") if paragraph.strip()][-1]
        if not re.search(r"\*\*[^*]+[.!?]\*\*", last):
            yield f"the section {heading!r} does not end in a bold sentence"


def readers_commit_before_a_measurement(notebook: NotebookNode) -> Iterator[str]:
    for heading, prose, cells in sections(notebook):
        if any(map(is_ignored, cells)) and not re.search("guess|predict|estimate", prose, re.IGNORECASE):
            yield f"the section {heading!r} measures, and asks for no guess"


def figures_have_words_and_stand_alone(notebook: NotebookNode) -> Iterator[str]:
    for cell in code_cells(notebook):
        if len(images(cell)) > 1:
            yield f"{cell.id} shows {len(images(cell))} pictures"
        for output in images(cell):
            alt = output.metadata.get("image/png", {}).get("alt", "")
            if len(alt.split()) < 4 or output.data.get("text/plain") != alt:
                yield f"the picture of {cell.id} has no alternative text: {alt!r}"


def sliders_stand_below_a_still_figure(notebook: NotebookNode) -> Iterator[str]:
    for heading, _, cells in sections(notebook):
        still = False
        for cell in cells:
            live = calls(cell, "explorer") and bool(bundles(cell))
            if live and not still:
                yield f"in the section {heading!r}, no still figure stands above the sliders of {cell.id}"
            if live and not images(cell):
                yield f"the sliders of {cell.id} saved no picture"
            still = still or (bool(images(cell)) and not live)


def dollars_are_money(notebook: NotebookNode) -> Iterator[str]:
    """Two bare dollar signs make a formula of the words between them: JupyterLab shows them in italics, unspaced."""
    for cell in notebook.cells:
        formulas_and_code = r"\$\$.*?\$\$|`[^`]*`|\\\$"
        if cell.cell_type == "markdown" and "$" in re.sub(formulas_and_code, "", cell.source, flags=re.DOTALL):
            yield f"{cell.id} has a bare dollar sign: write \\$"


def ends_with_exercises(notebook: NotebookNode) -> Iterator[str]:
    found = exercises(notebook)
    if not 3 <= len(found) <= 5:
        yield f"there are {len(found)} exercises, not three to five"
    for asked, cell, answer in found:
        if not re.search(r"\((easy|medium|hard), \d+ minutes?\)", asked):
            yield f"the exercise of {cell.id} does not say how hard it is and how long it takes"
        which = cell.id.rpartition("-")[2]
        topic = cell.id.partition("-")[0]
        if cell.source != f'answer_{which} = ...\nexercises.check("{topic}-{which}", answer_{which})':
            yield f"{cell.id} holds more than a place for the answer and its check: the reader would see it"
        if printed(cell).strip() != UNANSWERED:
            yield f"{cell.id} is not saved unanswered"
        if not re.search(r"<details>\s*<summary>.+?</summary>\n\n.+?</details>", answer, re.DOTALL):
            yield f"no hidden worked answer follows {cell.id}"


RULES = [
    was_run_once_from_top_to_bottom,
    what_is_not_compared_gets_a_verdict,
    verdicts_are_compared_and_all_yes,
    nothing_is_hidden_from_the_comparison,
    nothing_went_wrong,
    nothing_of_the_machine_is_left,
    the_kernel_is_called_python3,
    only_explorers_are_live,
    ids_tell_what_a_cell_is_for,
    opens_with_what_it_is_about,
    parameters_stand_in_one_cell_and_are_used,
    imports_the_chapter_first,
    code_cells_are_a_few_lines,
    sections_end_in_a_bold_sentence,
    readers_commit_before_a_measurement,
    figures_have_words_and_stand_alone,
    sliders_stand_below_a_still_figure,
    dollars_are_money,
    ends_with_exercises,
]


# --- the notebooks keep them --------------------------------------------------------------------------


def test_the_notebooks_are_there():
    names = ["00_your_machine", "01_the_loop", "02_prefill_and_decode", "03_the_idle_chip"]
    assert [file.stem for file in NOTEBOOKS][:4] == names


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_keeps_the_rules(file, rule):
    assert list(rule(nbformat.read(file, as_version=4))) == []


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_valid_as_it_stands_on_disk(file):
    notebook = json.loads(file.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"] >= 5) == (4, True), "cell ids came with 4.5"
    nbformat.validate(notebook)


# --- and each rule sees it when they do not -----------------------------------------------------------


def prose(name: str, *paragraphs: str) -> NotebookNode:
    return nbformat.v4.new_markdown_cell("\n\n".join(paragraphs), id=name)


def code(
    name: str, source: str, text: str = "", *outputs: NotebookNode, timed: bool = False, parameters: bool = False
) -> NotebookNode:
    stream = [nbformat.v4.new_output("stream", name="stdout", text=text)] if text else []
    cell = nbformat.v4.new_code_cell(source, id=name, outputs=[*stream, *outputs])
    if timed:
        cell.metadata["tags"] = [IGNORED]
    if parameters:
        cell.metadata["tags"] = [PARAMETERS]
    return cell


def figure(alt: str, **more: str) -> NotebookNode:
    data = {"image/png": "/tmp/AAAA", "text/plain": alt, **more}
    return nbformat.v4.new_output("display_data", data=data, metadata={"image/png": {"alt": alt}})


def exercise(n: int) -> list[NotebookNode]:
    return [
        prose(f"model-exercise-{n}-text", f"**{n}. A question** (easy, 2 minutes). How many?"),
        code(f"model-exercise-{n}", f'answer_{n} = ...\nexercises.check("model-{n}", answer_{n})', UNANSWERED + "\n"),
        prose(f"model-exercise-{n}-answer", "<details><summary>Worked answer</summary>\n\nSo many.\n\n</details>"),
    ]


def model_notebook() -> NotebookNode:
    cells = [
        prose(
            "model-title",
            "# 9 · A model",
            "**The question.** Does it hold?",
            "**You will be able to** tell.",
            "**Time:** 5 minutes. **Modules:** [`chapter01/loop.py`](../chapter01/loop.py).",
        ),
        code("model-parameters", 'model_name = "SmolLM2"  # or another\ntime_factor = 1.0', parameters=True),
        code("model-imports", "from chapter01 import loop\nfrom utils import checks, plots"),
        prose("model-first-text", "## 1. One", "**Guess first:** how long?"),
        code("model-time", "timed = loop.time(model_name, time_factor)", "a step takes 24.3 ms\n", timed=True),
        code("model-figure", "plots.show(ax, alt)", "", figure("A line through four dots.")),
        code("model-verdict", 'checks.verdict("the line holds", timed.holds)', "the line holds: yes\n"),
        prose("model-slider-text", "Move the slider."),
        code("model-slider", "explorer(f, draw, alt)", "", figure("A line and a dot.", **{VIEW: "{}"})),
        prose("model-first-end", "**The line holds.**"),
        prose("model-second-text", "## 2. Two"),
        code("model-again", "again = loop.time()", "24.1 ms\n", timed=True),
        code("model-again-verdict", 'checks.verdict("it holds again", again.holds)', "it holds again: yes\n"),
        prose("model-second-end", "I predict that it holds.", "**It held again.**", "## Exercises"),
        *(cell for n in (1, 2, 3) for cell in exercise(n)),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    for count, cell in enumerate(code_cells(notebook), 1):
        cell.execution_count = count
    return notebook


def edit(name: str, old: str, new: str):
    """A sabotage of the source of one cell."""

    def sabotage(notebook):
        cell = find(notebook, name)
        assert old in cell.source
        cell.source = cell.source.replace(old, new)

    return sabotage


def find(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell.id == name)


def drop(*names: str):
    def sabotage(notebook):
        notebook.cells = [cell for cell in notebook.cells if cell.id not in names]

    return sabotage


def on(name: str, change):
    """A sabotage that does something to one cell."""
    return lambda notebook: change(find(notebook, name))


def prints(name: str, text: str, stream: str = "stdout"):
    output = nbformat.v4.new_output("stream", name=stream, text=text)
    return on(name, lambda cell: cell.update(outputs=[output]))


ERROR = nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])

SABOTAGE = [
    (was_run_once_from_top_to_bottom, on("model-figure", lambda cell: cell.update(execution_count=None))),
    (was_run_once_from_top_to_bottom, on("model-figure", lambda cell: cell.update(execution_count=7))),
    (what_is_not_compared_gets_a_verdict, drop("model-verdict")),
    (what_is_not_compared_gets_a_verdict, drop("model-again-verdict")),
    (what_is_not_compared_gets_a_verdict, on("model-verdict", lambda cell: cell.metadata.update(tags=[IGNORED]))),
    (what_is_not_compared_gets_a_verdict, prints("model-verdict", "the line holds\n")),
    (verdicts_are_compared_and_all_yes, prints("model-verdict", "one: yes\nthe line holds: no\n")),
    (verdicts_are_compared_and_all_yes, prints("model-verdict", "the line holds\n")),
    (verdicts_are_compared_and_all_yes, on("model-verdict", lambda cell: cell.metadata.update(tags=[IGNORED]))),
    (verdicts_are_compared_and_all_yes, drop("model-verdict", "model-again-verdict")),
    (nothing_is_hidden_from_the_comparison, on("model-time", lambda c: c.metadata.tags.append("nbval-skip"))),
    (nothing_is_hidden_from_the_comparison, on("model-time", lambda c: c.metadata.tags.append("raises-exception"))),
    (nothing_is_hidden_from_the_comparison, edit("model-figure", "plots", "# NBVAL_IGNORE_OUTPUT\nplots")),
    (nothing_went_wrong, on("model-figure", lambda cell: cell.outputs.append(ERROR))),
    (nothing_went_wrong, prints("model-figure", "Warning: a warning\n", "stderr")),
    (nothing_of_the_machine_is_left, prints("model-time", "read /home/reader/model.gguf\n")),
    (nothing_of_the_machine_is_left, prints("model-time", "read C:\\Users\\reader\\model.gguf\n")),
    (nothing_of_the_machine_is_left, edit("model-figure", "plots", "sys.path.append('/content/course')\nplots")),
    (nothing_of_the_machine_is_left, prints("model-figure", "<Line object at 0x7f3a66d0>\n")),
    (nothing_of_the_machine_is_left, lambda notebook: notebook.metadata.update(widgets={"state": {}})),
    (nothing_of_the_machine_is_left, on("model-time", lambda cell: cell.metadata.update(execution={"at": "noon"}))),
    (the_kernel_is_called_python3, lambda notebook: notebook.metadata.kernelspec.update(name="conda-env-llm-py")),
    (the_kernel_is_called_python3, lambda notebook: notebook.metadata.pop("kernelspec")),
    (only_explorers_are_live, edit("model-slider", "explorer", "ipywidgets.interact")),
    (only_explorers_are_live, edit("model-imports", "from utils", "from ipywidgets import Output\nfrom utils")),
    (only_explorers_are_live, on("model-slider", lambda cell: cell.outputs[0].data.pop("image/png"))),
    (ids_tell_what_a_cell_is_for, on("model-time", lambda cell: cell.update(id="model-4f9a3c21"))),
    (ids_tell_what_a_cell_is_for, on("model-time", lambda cell: cell.update(id="9d1e02ab"))),
    (ids_tell_what_a_cell_is_for, on("model-time", lambda cell: cell.update(id="model-figure"))),
    (ids_tell_what_a_cell_is_for, on("model-time", lambda cell: cell.update(id="loop-time"))),
    (ids_tell_what_a_cell_is_for, on("model-time", lambda cell: cell.update(id="model" + 12 * "-time"))),
    (opens_with_what_it_is_about, edit("model-title", "hold?", "hold.")),
    (opens_with_what_it_is_about, edit("model-title", "You will be able to", "You")),
    (opens_with_what_it_is_about, edit("model-title", "5 minutes", "some time")),
    (opens_with_what_it_is_about, edit("model-title", "(../chapter01/loop.py)", "")),
    (opens_with_what_it_is_about, edit("model-title", "(../chapter01/loop.py)", "(../chapter01/lop.py)")),
    (opens_with_what_it_is_about, drop("model-title")),
    (parameters_stand_in_one_cell_and_are_used, drop("model-parameters")),
    (parameters_stand_in_one_cell_and_are_used, on("model-parameters", lambda cell: cell.metadata.clear())),
    (parameters_stand_in_one_cell_and_are_used, on("model-again", lambda c: c.metadata.tags.append(PARAMETERS))),
    (parameters_stand_in_one_cell_and_are_used, edit("model-parameters", '"SmolLM2"', "load()")),
    (parameters_stand_in_one_cell_and_are_used, edit("model-parameters", "time_factor = 1.0", "print(1)")),
    (parameters_stand_in_one_cell_and_are_used, edit("model-time", "model_name, ", "")),
    (
        parameters_stand_in_one_cell_and_are_used,
        edit("model-time", "(model_name, time_factor)", "(time_factor, model_name=3)"),
    ),
    (imports_the_chapter_first, edit("model-imports", "from chapter01 import loop\n", "")),
    (imports_the_chapter_first, edit("model-imports", "from chapter01", "import torch\nfrom chapter01")),
    (code_cells_are_a_few_lines, lambda nb: [c.update(source="x = 1\n" * 8) for c in code_cells(nb)[:8]]),
    (code_cells_are_a_few_lines, edit("model-figure", "alt)", "alt);")),
    (sections_end_in_a_bold_sentence, drop("model-first-end")),
    (sections_end_in_a_bold_sentence, edit("model-second-end", "**It held again.**", "It held again.")),
    (sections_end_in_a_bold_sentence, edit("model-second-end", "## Exercises", "And so on.\n\n## Exercises")),
    (sections_end_in_a_bold_sentence, edit("model-first-text", "## 1. One", "")),
    (readers_commit_before_a_measurement, edit("model-first-text", "**Guess first:** how long?", "")),
    (readers_commit_before_a_measurement, edit("model-second-end", "I predict that it holds.", "")),
    (figures_have_words_and_stand_alone, on("model-figure", lambda cell: cell.outputs[0].update(metadata={}))),
    (figures_have_words_and_stand_alone, on("model-figure", lambda c: c.outputs.append(figure("A line of four.")))),
    (figures_have_words_and_stand_alone, on("model-figure", lambda c: c.update(outputs=[figure("A figure")]))),
    (figures_have_words_and_stand_alone, on("model-slider", lambda c: c.outputs[0].data.update({"text/plain": "x"}))),
    (sliders_stand_below_a_still_figure, drop("model-figure")),
    (sliders_stand_below_a_still_figure, on("model-slider", lambda cell: cell.outputs[0].data.pop("image/png"))),
    (dollars_are_money, edit("model-second-end", "**It held again.**", "It costs $4 to $8.\n\n**It held again.**")),
    (ends_with_exercises, drop("model-exercise-2")),
    (ends_with_exercises, lambda notebook: notebook.cells.extend([*exercise(4), *exercise(5), *exercise(6)])),
    (ends_with_exercises, edit("model-exercise-2-text", "(easy, 2 minutes)", "")),
    (ends_with_exercises, edit("model-exercise-2-answer", "<details>", "")),
    (ends_with_exercises, edit("model-exercise-2-answer", "</summary>\n\n", "</summary>")),
    (ends_with_exercises, drop("model-exercise-3-answer")),
    (ends_with_exercises, prints("model-exercise-1", "Right: 1.\n")),
    (ends_with_exercises, edit("model-exercise-1", '"model-1"', '"model-2"')),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_notebook_made_by_the_rules_breaks_none(rule):
    assert list(rule(model_notebook())) == []


@pytest.mark.parametrize(("rule", "sabotage"), SABOTAGE, ids=lambda value: getattr(value, "__name__", ""))
def test_a_rule_sees_it_when_it_is_broken(rule, sabotage):
    notebook = model_notebook()
    sabotage(notebook)
    assert list(rule(notebook))


def test_every_rule_is_broken_once():
    assert {rule for rule, _ in SABOTAGE} == set(RULES)
