"""The command `measure`: the table, the JSON, what it refuses, and that it runs without notebook packages."""

import getpass
import json
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chapter01 import measure
from chapter01.__main__ import main
from chapter01.speeds import Speeds
from utils import ceilings, device, models, weights
from utils.ceilings import Ceilings
from utils.counts import forward_pass, totals
from utils.decoder import Decoder
from utils.models import Shape
from utils.timing import Timing

ROOT = Path(__file__).resolve().parent.parent
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TINY = Shape("Tiny", 2, 64, 4, 2, 16, 128, 512, True)
ROOFS = Ceilings(
    device_name="a CPU",
    read_bytes_per_s=1e12,
    read_how="one row, float32",
    working_set_bytes=2**30,
    one_row_bytes_per_s={"float32": 1e12, "bfloat16": 4e11},
    flop_per_s={"float32": 1e14, "bfloat16": 5e13},
    flop_size={"float32": 2048, "bfloat16": 2048},
    best_dtype="float32",
    notes=("float16 does not run on this device",),
)
SPEEDS = Speeds(4, 1e14, 1e12, lambda name, rows: 1e12, lambda new, batch: 1e12, 1e10, 1e-4, False)


@pytest.fixture
def faked(monkeypatch):
    """A tiny model in the catalogue, and nothing that takes long: the passes and the loop are real."""
    monkeypatch.setitem(models.MODELS, "tiny", TINY)
    monkeypatch.setattr(ceilings, "measure", lambda where, told: ROOFS)
    monkeypatch.setattr(ceilings, "drift", lambda roofs, where: 0.02)
    monkeypatch.setattr(measure, "measure_speeds", lambda model, roofs: SPEEDS)
    monkeypatch.setattr(measure, "BUDGET_S", 0.05)


def measured(capsys, tmp_path, *argv: str, code: int = 0) -> tuple[dict[str, str], dict]:
    """Rows of the table by their label, with all of it under "text", and the JSON."""
    file = tmp_path / "out.json"
    assert main(["measure", "--json", str(file), *argv]) == code
    out, err = capsys.readouterr()
    assert err == ""
    rows = {line[:17].strip(): line[17:].strip() for line in out.splitlines()}
    text = file.read_text(encoding="utf-8")
    return {"text": out, **rows}, json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def refused(capsys, *argv: str) -> str:
    """The one line that a bad value gets."""
    with pytest.raises(SystemExit) as stop:
        main(["measure", *argv])
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith("python -m chapter01 measure: error: ")
    return err


def not_reached(*args, **kwargs):
    pytest.fail("this was to be refused before anything is measured or allocated")


# --- the table and the JSON ------------------------------------------------------------------------------------------


def test_one_table_with_every_measurement_in_ascii(faked, capsys, tmp_path):
    rows, report = measured(capsys, tmp_path, "--model", "tiny")
    assert rows["text"].isascii() and max(map(len, rows["text"].splitlines())) <= 120
    assert "not in the catalogue" in rows["vendor peak"]
    assert rows["bandwidth"].startswith("1 TB/s (one row, float32")
    assert rows["arithmetic"].startswith("100 TFLOP/s (float32")
    assert "feed 100 operations" in rows["ridge"]
    assert re.match(r"[\d.e-]+ ms a step", rows["loop"])
    assert re.match(r"8 tokens [+-]\d+%, 16 tokens [+-]\d+%, 32 tokens [+-]\d+%", rows["held-out runs"])
    for row in (
        "time",
        "FLOP",
        "bytes",
        "achieved bytes/s",
        "achieved FLOP/s",
        "idle arithmetic",
        "predicted",
        "error",
    ):
        assert len(re.findall(r"[\d.]+ ?\S*", rows[row])) == 2, row
    assert rows["users in a step"].split() == ["1", "4", "16"]
    for row in ("tokens/s in all", "arithmetic idle", "off by"):
        assert len(rows[row].split()) == 3, row
    assert rows["times one row"].split()[0] == "1.00" and len(rows["times one row"].split()) == 4
    assert re.fullmatch(r"(compute|bandwidth|overhead) +(compute|bandwidth|overhead)", rows["bound by"])
    assert "The bandwidth roof held: +2%" in rows["text"]
    assert "note: float16 does not run" in rows["text"]
    assert "ERROR" not in rows["text"] and report["errors_of_measurement"] == []


def test_the_json_holds_numbers_that_agree_with_each_other(faked, capsys, tmp_path):
    _, report = measured(capsys, tmp_path, "--model", "tiny")
    assert report["ridge_flop_per_byte"] == 100
    assert report["versions"]["torch"] == torch.__version__ and report["date"][:2] == "20"
    for phase in report["phases"].values():
        assert phase["achieved_flop_per_s"] * phase["time_s"] == pytest.approx(phase["flop"])
        assert phase["achieved_read_bytes_per_s"] * phase["time_s"] == pytest.approx(phase["bytes"])
        assert phase["share_of_flop_ceiling"] == pytest.approx(phase["achieved_flop_per_s"] / 1e14)
        assert phase["share_of_read_ceiling"] == pytest.approx(phase["achieved_read_bytes_per_s"] / 1e12)
        assert phase["idle_share"] + phase["share_of_flop_ceiling"] == pytest.approx(1)
        assert phase["prediction_error_share"] == pytest.approx(phase["predicted_s"] / phase["time_s"] - 1)
    crowds = report["levers"]["batching"]
    assert [crowd["users"] for crowd in crowds] == [1, 4, 16]
    for crowd in crowds:
        assert crowd["tokens_per_s"] * crowd["step_s"] == pytest.approx(crowd["users"])
        assert crowd["prediction_error_share"] == pytest.approx(crowd["predicted_s"] / crowd["step_s"] - 1)
        done = totals(forward_pass(TINY, crowd["users"], 1, 128)).flops / crowd["step_s"] / 1e14
        assert crowd["idle_share"] == pytest.approx(1 - done)
    assert [check["rows"] for check in report["levers"]["checking"]] == [1, 4, 8, 16]
    assert report["phases"]["prefill"]["new_tokens"] == 512
    assert report["phases"]["decode"]["context_tokens"] == 512
    for run in report["loop"]["held_out"]:
        line = report["loop"]["first_token_s"] + (run["tokens"] - 1) * report["loop"]["step_s"]
        assert run["predicted_s"] == pytest.approx(line)


def test_flops_of_the_products_are_those_that_torch_counts(faked, capsys, tmp_path):
    from torch.utils.flop_counter import FlopCounterMode

    _, report = measured(capsys, tmp_path, "--model", "tiny")
    model = weights.random_decoder(TINY)
    for name, new in (("prefill", 512), ("decode", 1)):
        with FlopCounterMode(display=False) as counter:
            measure.ready(model, 1, new, 512 if name == "decode" else 0)()
        counts = counter.get_flop_counts()["Global"]
        products = sum(flops for op, flops in counts.items() if "attention" not in str(op))
        pairs = sum(range(1, 513)) if new > 1 else 513
        assert report["phases"][name]["flop"] == products + 4 * TINY.layers * TINY.q_width * pairs


def test_every_number_in_the_json_says_its_unit_or_is_a_count(faked, capsys, tmp_path):
    _, report = measured(capsys, tmp_path, "--model", "tiny")
    units = ("_s", "_bytes", "_share", "_tokens", "_per_byte", "_per_step", "_ceiling")
    counts = {"flop", "bytes", "parameters", "layers", "layers_timed", "threads", "tokens", "error", "users", "rows"}
    by_dtype = {"one_row_bytes_per_s", "flop_per_s", "flop_size"}

    def check(part, name=""):
        if isinstance(part, dict) and name not in by_dtype:
            for key, value in part.items():
                check(value, key)
        elif isinstance(part, list):
            for value in part:
                check(value, name)
        elif isinstance(part, float | int) and not isinstance(part, bool):
            assert name.endswith(units) or name in counts, name

    check(report)


def test_nothing_personal_is_written(faked, capsys, tmp_path):
    rows, report = measured(capsys, tmp_path, "--model", "tiny")
    text = (rows["text"] + json.dumps(report)).lower()
    for word in (socket.gethostname(), getpass.getuser(), str(ROOT), str(tmp_path), str(Path.home()) + "/"):
        assert not re.search(rf"(?<![\w.]){re.escape(word.lower())}", text), word


def test_a_pass_is_foretold_before_it_is_timed(faked, monkeypatch, capsys):
    happened = []
    monkeypatch.setattr(measure, "foretell", lambda *args: happened.append("foretold") or 1.0)
    monkeypatch.setattr(measure, "time_pass", lambda *args: happened.append("timed") or 2.0)
    assert main(["measure", "--model", "tiny"]) == 0
    assert happened == ["foretold", "timed"] * 2 + ["foretold"] * len(measure.CROWDS)  # the levers come last
    assert re.search(r"error +-50\.0% +-50\.0%", capsys.readouterr().out)


def test_without_the_embedded_weights_its_shape_is_timed(faked, monkeypatch, capsys):
    def missing(*args):
        raise ConnectionError("no network")

    monkeypatch.setattr(weights, "load_embedded", missing)
    monkeypatch.setattr(
        models, "MODELS", models.MODELS | {measure.EMBEDDED.lower(): replace(TINY, name="SmolLM2-135M")}
    )
    assert main(["measure"]) == 0
    assert "SmolLM2-135M, random weights: the embedded ones are not installed" in capsys.readouterr().out


# --- rule 7 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roof", "flagged"),
    [
        ({"flop_per_s": {"float32": 1e3}}, "decode reached .* of the measured arithmetic"),
        ({"read_bytes_per_s": 1e3}, "decode reached .* of the measured bandwidth"),
    ],
    ids=["arithmetic", "bandwidth"],
)
def test_a_share_above_a_ceiling_is_an_error_and_no_triumph(faked, monkeypatch, capsys, tmp_path, roof, flagged):
    wrong = replace(ROOFS, **roof)
    monkeypatch.setattr(ceilings, "measure", lambda where, told: wrong)
    speeds = replace(SPEEDS, flop_per_s=wrong.flop_per_s["float32"], read_bytes_per_s=wrong.read_bytes_per_s)
    monkeypatch.setattr(measure, "measure_speeds", lambda model, roofs: speeds)
    rows, report = measured(capsys, tmp_path, "--model", "tiny", code=1)
    assert re.search(f"ERROR OF MEASUREMENT: {flagged}", rows["text"])
    assert "not true" in rows["of the ceiling"] or "not true" in rows["text"]
    assert any(re.search(flagged, line) for line in report["errors_of_measurement"])
    if "flop_per_s" in roof:
        assert rows["idle arithmetic"].split() == ["unknown", "unknown"]


def test_units_are_plain_ascii_whatever_the_sign():
    assert measure.units(-0.00078, "s") == "-780 us"


def test_noise_over_a_ceiling_is_no_error():
    numbers = {"share_of_read_ceiling": 1.04, "share_of_flop_ceiling": 0.01}
    timed = {"phases": {"decode": numbers}, "model": {"weights_lie": "in memory"}}
    assert measure.errors(timed) == []
    numbers["share_of_read_ceiling"] = 1.06
    assert len(measure.errors(timed)) == 1
    timed["model"]["weights_lie"] = "partly in cache"
    assert "take a larger --model" in measure.errors(timed)[1]


# --- what fits -------------------------------------------------------------------------------------------------------


def test_a_70b_model_fits_an_h200_as_its_driver_counts_and_an_h100_gets_one_layer(monkeypatch):
    shape = models.find("Llama-3.1-70B")
    monkeypatch.setattr(device, "free_bytes", lambda d: 143_771 * 2**20 - 600_000_000)  # less CUDA's own
    assert measure.that_fits(shape, torch.bfloat16, CUDA) is shape
    monkeypatch.setattr(device, "free_bytes", lambda d: 80 * 10**9)
    assert measure.that_fits(shape, torch.bfloat16, CUDA) == replace(shape, layers=1)


@pytest.mark.parametrize("name", ["SmolLM2-135M", "Llama-3.2-1B", "Llama-3.1-405B"])
def test_what_a_model_needs_is_at_least_its_weights(name):
    shape = models.find(name)
    assert measure.needed_bytes(shape, torch.float16, CPU) > 2 * shape.parameters


def between_one_layer_and_all(shape: Shape) -> int:
    return measure.needed_bytes(replace(shape, layers=1), torch.float32, CPU) + 1


def test_where_the_model_does_not_fit_one_layer_is_timed_and_said(faked, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(device, "free_bytes", lambda d: between_one_layer_and_all(TINY))
    built = []
    real = weights.random_decoder
    monkeypatch.setattr(weights, "random_decoder", lambda shape, *args: built.append(shape) or real(shape, *args))
    rows, report = measured(capsys, tmp_path, "--model", "tiny", "--dtype", "fp32")
    assert [shape.layers for shape in built] == [1]
    assert rows["timed"].startswith("ONE LAYER, times 2, plus the output head")
    assert rows["loop"].startswith("not run") and report["loop"] is report["levers"] is None
    assert (report["model"]["layers"], report["model"]["layers_timed"]) == (2, 1)
    assert report["model"]["parameters"] == TINY.parameters
    assert report["overhead_s"] == pytest.approx(2 * SPEEDS.overhead_s)
    decode = report["phases"]["decode"]
    assert decode["flop"] > 2 * TINY.layers * (TINY.layer_parameters - 2 * TINY.hidden)  # both layers, and the head


def test_one_layer_is_multiplied_and_the_head_added_once(monkeypatch):
    model = Decoder(replace(TINY, layers=1))
    ran = []
    model.layers[0].register_forward_hook(lambda *args: ran.append("layer"))
    model.head.register_forward_hook(lambda *args: ran.append("head"))

    def interleaved(calls, where, budget_s, least):
        for call in calls.values():
            call()
        return {"layer": Timing((0.010,)), "rest": Timing((0.003,))}

    monkeypatch.setattr(measure, "interleave", interleaved)
    assert measure.time_pass(model, 80, 1, 512) == pytest.approx(80 * 0.010 + 0.003)
    assert ran == ["layer", "head"]


def test_where_not_even_one_layer_fits_nothing_is_allocated(faked, monkeypatch, capsys):
    monkeypatch.setattr(ceilings, "measure", not_reached)
    monkeypatch.setattr(weights, "random_decoder", not_reached)
    monkeypatch.setattr(device, "free_bytes", lambda d: 2 * 10**9)
    line = refused(capsys, "--model", "Llama-3.1-405B", "--dtype", "bf16")
    assert re.search(r"needs \d{3}\.\d GB, one layer of it with its head \d+\.\d GB, and 2\.0 GB are free on cpu", line)
    assert "These fit: " in line and "SmolLM2-135M" in line and "Llama-2-7B" not in line


# --- what is refused, and how it ends --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--model", "Llama-3.1-9B"], "no model 'Llama-3.1-9B' in the catalogue; nearest: Llama-3.1-8B"),
        (["--device", "tpu"], "'tpu'.* Here: .*cpu"),
        (["--device", "cuda:97"], "not on this machine. Here: .*cpu"),
        (["--dtype", "fp12"], "argument --dtype: invalid choice: 'fp12'"),
        (["--dtype", "fp16", "--model", "tiny", "--device", "cpu"], "fp16 does not run on cpu; these do: float32, bf"),
        (["--json", "no/such/folder/x.json"], "--json no.such.folder.x.json: cannot be written .No such file"),
        (["--json", "."], "--json .: cannot be written"),
        (["--json", "x" * 300], "cannot be written"),
        (["--model", ""], "no model ''"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_values_get_one_line(faked, monkeypatch, capsys, argv, said):
    monkeypatch.setattr(weights, "random_decoder", not_reached)
    monkeypatch.setattr(weights, "load_embedded", not_reached)
    if "fp16" not in argv:
        monkeypatch.setattr(ceilings, "measure", not_reached)
    assert re.search(said, refused(capsys, *argv))


@pytest.mark.parametrize("before", [None, "an older result"])
def test_an_interrupted_measurement_says_so_and_touches_no_file(faked, monkeypatch, capsys, tmp_path, before):
    def interrupted(*args):
        raise KeyboardInterrupt

    file = tmp_path / "out.json"
    if before:
        file.write_text(before)
    monkeypatch.setattr(measure, "measure_speeds", interrupted)
    assert main(["measure", "--model", "tiny", "--json", str(file)]) == 130
    out, err = capsys.readouterr()
    assert (out, err) == ("", "interrupted: nothing is saved\n")
    assert (file.read_text() if file.exists() else None) == before


def test_running_out_of_memory_gets_one_line(faked, monkeypatch, capsys):
    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")

    monkeypatch.setattr(measure, "measure_speeds", full)
    assert "smaller --model" in refused(capsys, "--model", "tiny")


# --- on a bare machine -----------------------------------------------------------------------------------------------

BARE = """
import sys
for name in ("IPython", "ipywidgets", "nbformat", "ipykernel", "jupyter_core", "tqdm", "gguf", "tokenizers",
             "safetensors", "huggingface_hub", "transformers"):
    sys.modules[name] = None  # an import of it fails
from chapter01.__main__ import main
from utils import ceilings, device, models
models.MODELS["tiny"] = models.Shape("Tiny", 2, 64, 4, 2, 16, 128, 512, True)
device.cache_bytes = lambda where: None  # a small block is enough to see that all of it runs
ceilings.LEAST_BYTES, ceilings.READ_S = 1 << 26, 0.05
ceilings.SIZE_S, ceilings.BEST_S, ceilings.NEXT_SIZE_S = 0.02, 0.1, 0.05
sys.exit(main(["measure", "--device", "cpu", "--model", "tiny"]))
"""


def test_it_runs_whole_with_torch_numpy_and_matplotlib_only():
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.stderr == ""
    # So small a block lies in the cache, and so may a share above the ceiling come about: then it is flagged.
    assert done.returncode == ("ERROR OF MEASUREMENT" in done.stdout)
    for row in ("bandwidth", "arithmetic", "ridge", "loop", "held-out runs", "predicted", "The bandwidth roof"):
        assert re.search(rf"^{row}", done.stdout, re.MULTILINE), row


def test_the_command_line_knows_it():
    done = subprocess.run(
        [sys.executable, "-m", "chapter01", "measure", "--model", "llama-9b"], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("python -m chapter01 measure: error: no model 'llama-9b'")
