"""The sliders in a real browser: each notebook that has some is run in JupyterLab, and every slider is moved by
keyboard. The picture follows, there is always exactly one, and nothing goes wrong on the page.

Times are printed, not judged: `pytest -s tests/test_browser.py` shows the median from key press to new picture.
Without a browser the test is skipped, but on a build server (CI=true) it fails: there it must not go unnoticed.
"""

import contextlib
import itertools
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
PATIENCE_S = 600  # for a whole notebook on a busy machine


def has_sliders(file: Path) -> bool:
    cells = nbformat.read(file, as_version=4).cells
    return any(cell.cell_type == "code" and "explorer(" in cell.source for cell in cells)


NOTEBOOKS = [file for file in sorted((ROOT / "notebooks").glob("*.ipynb")) if has_sliders(file)]

# All notebooks run in the kernel of the first: it has measured the machine's ceilings already. (That each of them runs
# in a kernel of its own is what nbval shows.)
RUN_ALL = """kernel => {
  const app = window.jupyterapp, panel = app.shell.currentWidget;
  const run = async () => {
    await panel.context.ready; await panel.sessionContext.ready;
    if (kernel) await panel.sessionContext.changeKernel({id: kernel});
    await app.commands.execute('notebook:run-all-cells');
  };
  run().then(() => window.outcome = 'done', error => window.outcome = String(error));
}"""
KERNEL = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.id"
SLIDERS = ".widget-slider .noUi-handle"

# One record a frame of the output around a slider: how many pictures, which, how high. Picture sources are long,
# so they are numbered in the order in which they appear.
WATCH = """slider => {
  const output = slider.closest('.jp-OutputArea-output'), sources = [];
  const readout = slider.closest('.widget-slider').querySelector('.widget-readout'), letters = document.createRange();
  const record = window.record = {frames: [], keys: [], on: true, changed: 0};
  output.addEventListener('keydown', event => record.keys.push(event.timeStamp), true);
  record.look = () => {
    const pictures = [...output.querySelectorAll('img')].filter(image => image.offsetWidth > 200);
    const source = pictures.map(image => image.src).join();
    if (!sources.includes(source)) sources.push(source);
    const words = pictures.map(image => image.title).join();
    letters.selectNodeContents(readout);
    letters.setEnd(readout.firstChild, readout.textContent.trimEnd().length);
    const cut = letters.getBoundingClientRect().right > readout.getBoundingClientRect().right + 1;
    const frame = {at: performance.now(), count: pictures.length, height: output.offsetHeight, words,
      cut: cut ? readout.textContent.trim() : '',
      loaded: pictures.every(image => image.complete && image.naturalWidth > 200), source: sources.indexOf(source)};
    if (frame.source !== record.frames.at(-1)?.source) record.changed = frame.at;
    record.frames.push(frame);
    if (record.on) requestAnimationFrame(record.look);
    return frame;
  };
  requestAnimationFrame(record.look);
}"""
STOP = "() => { window.record.on = false; const {frames, keys} = window.record; return {frames, keys}; }"
SOURCE = "() => window.record.frames.at(-1).source"
CHANGED = "before => window.record.frames.at(-1).source !== before"
# At rest: the kernel has nothing left to draw, however slow a busy machine makes it, and nothing new came for a while.
STILL = """() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'
  && performance.now() - window.record.changed > 800 && performance.now() - window.record.keys.at(-1) > 800"""
AT_END = "slider => Number(slider.ariaValueNow) >= Number(slider.ariaValueMax)"
NAME = "slider => slider.closest('.widget-slider').querySelector('label').textContent"


def missing() -> str | None:
    """Why no browser can be driven here, or None."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: pip install -e '.[test]'"
    return None if BROWSER else "there is no chromium or chrome here (Debian: apt-get install chromium)"


@pytest.fixture(scope="module")
def browser():
    if missing() and os.environ.get("CI") == "true":
        pytest.fail(f"the sliders are not tested: {missing()}")
    if missing():
        pytest.skip(missing())
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        driven = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield driven
        driven.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab on copies of the notebooks, with nobody's settings: its address, and the kernel that runs there."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
    for file in NOTEBOOKS:  # a quick look: what the cells measure, with its full budgets, is tested by nbval
        text = file.read_text(encoding="utf-8")
        assert "time_factor = 1.0" in text
        (folder / "notebooks" / file.name).write_text(text.replace("time_factor = 1.0", "time_factor = 0.2"), "utf-8")
    settings = {
        "notebook-extension/tracker": {"windowingMode": "none"},  # every cell is on the page, seen or not
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    }
    for name, values in settings.items():
        file = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(values))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {f"JUPYTER_{kind}_DIR": str(folder / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    places |= {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "IPYTHONDIR": str(folder / "ipython")}
    places |= {"JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"]
    command += [f"--ServerApp.root_dir={folder / 'notebooks'}", "--IdentityProvider.token=", "--expose-app-in-browser"]
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(command, env=os.environ | places, stdout=log, stderr=log)
        address = f"http://127.0.0.1:{port}"
        try:
            wait_for(lambda: urllib.request.urlopen(f"{address}/api/status", timeout=1), 120)
            yield {"address": address, "kernel": None}
        finally:
            server.terminate()
            server.wait(30)


def wait_for(ready, seconds: float):
    """Call `ready` until it returns something true; an OSError counts as not yet."""
    end = time.monotonic() + seconds
    while True:
        try:
            if answer := ready():
                return answer
        except OSError:
            pass
        assert time.monotonic() < end, f"not ready within {seconds} s"
        time.sleep(0.1)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_every_slider_moves_its_picture_and_nothing_flickers(file, browser, lab, capsys):
    page = browser.new_page(viewport={"width": 1300, "height": 1000})
    page.set_default_timeout(PATIENCE_S * 1000)
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{lab['address']}/lab/tree/{file.name}?reset")
    page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.context")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    page.evaluate(RUN_ALL, lab["kernel"])
    page.wait_for_function("() => window.outcome")
    assert page.evaluate("() => window.outcome") == "done"
    assert lab["kernel"] in (None, page.evaluate(KERNEL))
    lab["kernel"] = page.evaluate(KERNEL)
    expected = sum("explorer(" in c.source for c in nbformat.read(file, as_version=4).cells if c.cell_type == "code")
    page.wait_for_function(f"() => document.querySelectorAll('img.widget-image').length == {expected}")
    assert not page.locator(".jp-OutputArea-output[data-mime-type*=error], .jp-mod-error").count()
    assert not page.get_by_text("Error displaying widget").count()

    sliders = page.locator(SLIDERS).element_handles()
    assert len(sliders) >= expected, "an explorer without a slider"
    latencies, settled = [], []
    for slider in sliders:
        moved, held = move(page, slider)
        latencies += moved
        settled.append(held)
    page.close()
    assert errors == []
    with capsys.disabled():
        print(
            f"\n{file.stem}: {len(sliders)} sliders, {len(latencies)} moves, new picture after "
            f"{statistics.median(latencies):.0f} ms (median; {max(latencies):.0f} at most), "
            f"a held key settles after {max(settled):.0f} ms at most"
        )


def move(page, slider, singly: int = 6, held: int = 12) -> tuple[list[float], float]:
    """Move one slider by keyboard, key by key and then with the key held, and look at every frame.

    Returns milliseconds: from each single press to its picture, and from the last held press to the last picture.
    """
    from playwright.sync_api import TimeoutError as NothingNew

    name = slider.evaluate(NAME)
    onward, back = "ArrowRight", "ArrowLeft"
    slider.scroll_into_view_if_needed()
    slider.focus()
    slider.evaluate(WATCH)
    page.wait_for_function("() => window.record.frames.length > 2")

    for _ in range(singly):
        before = page.evaluate(SOURCE)
        page.keyboard.press(back if slider.evaluate(AT_END) else onward)
        with contextlib.suppress(NothingNew):  # some moves may change nothing that is drawn
            page.wait_for_function(CHANGED, arg=before, timeout=1500)
        page.wait_for_timeout(50)
    presses = page.evaluate("() => window.record.keys.length")
    key = back if slider.evaluate(AT_END) else onward
    for _ in range(held):
        page.keyboard.down(key)
        page.wait_for_timeout(30)
    page.keyboard.up(key)
    page.wait_for_function(STILL)
    settled = page.evaluate("() => window.record.changed - window.record.keys.at(-1)")

    # What is shown at rest belongs to where the slider stands: one step away and back, it is the same picture.
    at_rest = page.evaluate(SOURCE)
    for key in (back, onward) if slider.evaluate(AT_END) else (onward, back):
        page.keyboard.press(key)
        page.wait_for_function(STILL)
    assert page.evaluate(SOURCE) == at_rest, f"{name}: another picture after one step and back"

    record = page.evaluate(STOP)
    frames = record["frames"]
    assert len({frame["source"] for frame in frames}) > 1, f"{name}: the picture never changed"
    assert {frame["count"] for frame in frames} == {1}, f"{name}: not one picture at all times"
    assert frames[0]["words"] and {frame["words"] for frame in frames} == {frames[0]["words"]}, f"{name}: a complaint"
    assert all(frame["loaded"] for frame in frames), f"{name}: a frame without its picture"
    assert {frame["cut"] for frame in frames} == {""}, f"{name}: a name that is cut"
    assert len({frame["height"] for frame in frames}) == 1, f"{name}: the page moves up and down"
    return delays(frames, record["keys"][:presses]), max(0.0, settled)


def delays(frames: list[dict], keys: list[float]) -> list[float]:
    """Milliseconds from each key press to the first frame with another picture, where one came before the next."""
    found = []
    for key, following in itertools.pairwise([*keys, keys[-1] + 4000]):
        shown = [frame for frame in frames if frame["at"] <= key][-1]["source"]
        new = [frame["at"] for frame in frames if key < frame["at"] < following and frame["source"] != shown]
        found += [new[0] - key] if new else []
    return found
