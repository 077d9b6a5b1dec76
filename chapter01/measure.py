"""The command `measure`: every measurement of the course on this machine, headless, in one table.

It runs where there is no notebook: torch, numpy and matplotlib are enough. What is foretold is fixed before it is
measured, and a share above a measured ceiling is reported as what it is, an error of measurement.
"""

import argparse
import json
import platform
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import torch

from chapter01 import levers, loop, machine
from chapter01.speeds import Speeds, foretell, measure_speeds, modules_of, ready
from utils import ceilings, models, weights
from utils import device as devices
from utils.ceilings import Ceilings, Share, cache_label, drift_in_words, dtype_name, share_of_ceiling
from utils.chips import DATASHEET_DTYPE
from utils.counts import totals
from utils.decoder import Decoder
from utils.graphs import capture
from utils.models import Shape
from utils.plots import in_units
from utils.roofline import predict, ridge
from utils.timing import interleave, time_call

DTYPES = {short: getattr(torch, name) for name, short in DATASHEET_DTYPE.items()}
EMBEDDED = "SmolLM2-135M"  # the shape of the embedded model, with random weights where the real ones are not installed
TOKENS = 512  # of the prompt: prefill reads them, decode writes one more behind them
PROMPT, RUNS = 16, (8, 16, 32)  # tokens of the loop's prompt, and of its held-out runs
RUN_S = 10.0  # held-out runs that would take longer are left out, all but the first
BUDGET_S = 2.0  # for one phase
CROWDS, GUESSED_ROWS, BEHIND = (1, 4, 16), (1, 4, 8, 16), 128  # users of a step, rows of a checking pass, their context

Told = Callable[[str], object]  # hears what is being measured


# --- the command -----------------------------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON. Returns 0 if all is well, 1 after an error of measurement.

    Raises:
        ValueError: a name that is not known, a model that does not fit, a file that cannot be written.
    """
    if args.json is not None:
        check_writable(args.json)
    try:
        report = measure(args.device, args.model, args.dtype, _progress)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ValueError(f"out of memory: {error}; close other programs, or take a smaller --model") from None
    finally:
        _progress("")
    print(table(report))
    if args.json is not None:
        try:
            args.json.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"--json {args.json}: cannot be written ({error.strerror})") from None
    return 1 if report["errors_of_measurement"] else 0


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before minutes are spent on what it should hold.

    Raises:
        ValueError: with the system's reason.
    """
    try:
        new = not path.exists()
        with path.open("a", encoding="utf-8"):
            pass
        if new:
            path.unlink()
    except (OSError, ValueError) as error:  # a NUL in a name is a ValueError
        raise ValueError(f"--json {path}: cannot be written ({getattr(error, 'strerror', error)})") from None


def _progress(part: str) -> None:
    """The part being measured, on one line of a terminal that the next replaces; nothing where none is looking."""
    if sys.stderr.isatty():
        print(f"\r\033[K{'measuring: ' + part if part else ''}", end="", file=sys.stderr, flush=True)


# --- what fits -------------------------------------------------------------------------------------------------------


def needed_bytes(shape: Shape, dtype: torch.dtype, device: torch.device) -> int:
    """Memory that the measurements of a model take at most: its weights, and the largest inputs beside them."""
    size = dtype.itemsize
    made = 4 + size  # random inputs are drawn in float32 and then converted
    keys = shape.kv_bytes_per_token(1) * 4 * 1032 * made  # four sequences, for attention alone
    rows = 1024 * (3 * shape.ffn + shape.hidden) * made  # input and output of the largest product
    results = 0
    if device.type == "cpu":  # the hollow model keeps what it hands out in place of products of 256 rows
        wide = shape.q_width + 2 * shape.kv_width + 2 * shape.hidden + 2 * shape.ffn
        results = shape.layers * 256 * wide * size
    return int(shape.parameters * size + max(keys, results) + rows)


def that_fits(shape: Shape, dtype: torch.dtype, device: torch.device) -> Shape:
    """The shape itself if it fits into the device's free memory, else one layer of it, between embedding and head.

    Raises:
        ValueError: not even that fits; with what is needed, what is free, and the models that fit whole.
    """
    free, one = devices.free_bytes(device), replace(shape, layers=1)
    if needed_bytes(shape, dtype, device) <= free:
        return shape
    if needed_bytes(one, dtype, device) <= free:
        return one
    fitting = [s.name for s in models.MODELS.values() if needed_bytes(s, dtype, device) <= free]
    raise ValueError(
        f"{shape.name} in {dtype_name(dtype)} needs {needed_bytes(shape, dtype, device) / 1e9:.1f} GB, one layer of it "
        f"with its head {needed_bytes(one, dtype, device) / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free on {device}. "
        f"These fit: {', '.join(fitting) or 'none of the catalogue'}"
    )


def _load(asked: str | None, shape: Shape, device: torch.device, dtype: torch.dtype) -> tuple[Decoder, str]:
    """A model of that shape and where its weights are from: the embedded one's are real, where they can be had."""
    if asked is None and shape.layers > 1:
        try:
            return weights.load_embedded(device, dtype)[0], "real weights"
        except (ConnectionError, ImportError):  # not installed, or what reads them is not
            return weights.random_decoder(shape, device, dtype), "random weights: the embedded ones are not installed"
    return weights.random_decoder(shape, device, dtype), "random weights"


# --- measuring -------------------------------------------------------------------------------------------------------


def measure(
    device_name: str | None = None,
    model_name: str | None = None,
    dtype_short: str | None = None,
    told: Told = lambda part: None,
) -> dict:
    """Everything, as one dictionary of plain numbers with their units in the keys.

    Raises:
        ValueError: a device, model or dtype that is not here, or a model of which not even one layer fits.
    """
    device = devices.prepare(device_name)
    shape = models.find(EMBEDDED if model_name is None else model_name)
    asked_dtype = None if dtype_short is None else DTYPES[dtype_short]
    # Before anything is allocated, and again once the dtype is picked.
    that_fits(shape, asked_dtype or torch.bfloat16, device)
    found = machine.look(device)

    roofs = ceilings.measure(device, told)
    dtype = asked_dtype or getattr(torch, roofs.best_dtype)
    if dtype_name(dtype) not in roofs.flop_per_s:
        raise ValueError(f"--dtype {dtype_short} does not run on {device}; these do: {', '.join(roofs.flop_per_s)}")
    flop_per_s = roofs.flop_per_s[dtype_name(dtype)]

    timed = _time_model(model_name, shape, device, dtype, roofs, told)
    told("bytes per second, at the end")
    moved = ceilings.drift(roofs, device)
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "device": {
            "name": found.name,
            "kind": found.kind,
            "threads": found.threads,
            "free_bytes": found.free_bytes,
            "total_bytes": found.total_bytes,
            "cache_bytes": found.cache_bytes,
            "vendor_peak": machine.vendor_peak(found.chips),
        },
        "dtype": dtype_name(dtype),
        "ceilings": asdict(roofs),
        "read_bytes_per_s": roofs.read_bytes_per_s,
        "flop_per_s": flop_per_s,
        "ridge_flop_per_byte": ridge(flop_per_s, roofs.read_bytes_per_s),
        **timed,
        "drift_share": moved,
        "drift": drift_in_words(moved),
        "errors_of_measurement": errors(timed),
    }


def _time_model(
    asked: str | None, shape: Shape, device: torch.device, dtype: torch.dtype, roofs: Ceilings, told: Told
) -> dict:
    """The model, its loop and both phases; the model's memory is free again afterwards."""
    built = that_fits(shape, dtype, device)
    told(f"loading {shape.name}")
    model, whose = _load(asked, built, device, dtype)
    shape = model.shape if built is shape else shape  # the embedded model has its own name
    told("kernels and overhead")
    speeds = measure_speeds(model, roofs)
    speeds = replace(speeds, overhead_s=speeds.overhead_s * shape.layers / built.layers)

    read_bytes = built.read_parameters * dtype.itemsize
    report = {
        "model": {
            "name": shape.name,
            "weights": whose,
            "parameters": shape.parameters,
            "weight_bytes_read_per_step": shape.read_parameters * dtype.itemsize,
            "layers": shape.layers,
            "layers_timed": built.layers,
            "weights_lie": cache_label(read_bytes, devices.cache_bytes(device)),
        },
        "overhead_s": speeds.overhead_s,
        "loop": None,
        "levers": None,
    }
    if built.layers == shape.layers:
        told("the loop")
        report["loop"] = time_loop(model)
    report["phases"] = {}
    for name, new, context in (("prefill", TOKENS, 0), ("decode", 1, TOKENS)):
        told(name)
        predicted_s = foretell(shape, speeds, 1, new, context)  # before the pass is timed
        took_s = time_pass(model, shape.layers, new, context)
        report["phases"][name] = phase(shape, speeds, new, context, took_s, predicted_s)
    if built.layers == shape.layers:
        told("levers")
        report["levers"] = time_levers(model, speeds)
    del model
    devices.empty_cache(device)
    return report


def time_loop(model: Decoder) -> dict:
    """First token and step, and held-out runs against the line that the two foretell."""
    prompt = random.choices(range(model.shape.vocab), k=PROMPT)  # sense costs no time, nor does nonsense
    first, step, _ = loop.time_first_and_step(model, prompt)
    counts = [n for n in RUNS if n * step.median_s <= RUN_S] or RUNS[:1]
    runs = loop.foretold_runs(model, prompt, counts, first.median_s, step.median_s)
    return {
        "prompt_tokens": PROMPT,
        "first_token_s": first.median_s,
        "step_s": step.median_s,
        "step_spread_share": step.spread,
        "fixed_overhead_s": first.median_s - step.median_s,
        "held_out": [{**asdict(run), "error_share": run.error} for run in runs],
        "held_out_error_share": max((run.error for run in runs), key=abs),
    }


def time_levers(model: Decoder, speeds: Speeds) -> dict:
    """What more users bring to a step, and what a pass costs that checks guesses: the levers of notebook 04."""
    shape = model.shape
    foretold = {users: foretell(shape, speeds, users, 1, BEHIND) for users in CROWDS}
    served = levers.serve(model, foretold, BEHIND, BUDGET_S)
    by_rows = levers.time_rows(model, BEHIND, BUDGET_S)
    batching = [
        {
            "users": p.batch,
            "step_s": p.timing.median_s,
            "tokens_per_s": p.batch / p.timing.median_s,
            "idle_share": max(0.0, 1 - levers.used(shape, p.batch, BEHIND, p.timing.median_s, speeds.flop_per_s)),
            "predicted_s": p.predicted_s,
            "prediction_error_share": p.error,
        }
        for p in served.points
    ]
    one_s = by_rows[1].median_s
    checking = [
        {"rows": n, "time_s": by_rows[n].median_s, "of_one_row_share": by_rows[n].median_s / one_s}
        for n in GUESSED_ROWS
    ]
    return {"context_tokens": BEHIND, "batching": batching, "checking": checking}


def time_pass(model: Decoder, layers: int, new: int, context: int) -> float:
    """Seconds of a pass with so many layers: the model's own, or its one layer's time multiplied, plus the rest."""
    device = loop.device_of(model)
    if len(model.layers) == layers:
        return time_call(ready(model, 1, new, context), device, BUDGET_S, least=1).median_s
    cache = loop.new_cache(model, context + new)
    cache.k.normal_()
    cache.v.normal_()
    tokens = torch.randint(model.shape.vocab, (1, new), device=device)
    x = model.embed(tokens)
    cache.used = context
    rotary = cache.rotary(new)

    def layer() -> None:
        cache.used = context
        model.layers[0](x, rotary, cache, 0)

    def rest() -> None:
        model.head(model.norm(model.embed(tokens)[:, -1]))

    calls = {"layer": capture(layer, device), "rest": capture(rest, device)}
    taken = interleave(calls, device, BUDGET_S, least=1)
    return layers * taken["layer"].median_s + taken["rest"].median_s


@dataclass(frozen=True)
class Phase:
    """One pass, timed, beside the ceilings and what was foretold. Masked pairs of attention count no FLOP."""

    new_tokens: int
    context_tokens: int
    time_s: float
    flop: int
    bytes: float
    achieved_read_bytes_per_s: float
    achieved_flop_per_s: float
    share_of_read_ceiling: float
    share_of_flop_ceiling: float
    idle_share: float  # of the arithmetic
    regime: str
    predicted_s: float
    prediction_error_share: float  # +0.1 was foretold 10 % too long


def phase(shape: Shape, speeds: Speeds, new: int, context: int, took_s: float, predicted_s: float) -> dict:
    """All that follows from the time of one pass."""
    modules = modules_of(shape, speeds, 1, new, context)
    counted = totals(modules)
    reads, calculates = counted.bytes / took_s, counted.useful_flops / took_s
    busy = share_of_ceiling(calculates, speeds.flop_per_s)
    bound = predict(
        modules, speeds.flop_per_s, speeds.read_bytes_per_s, speeds.overhead_s, overlap=speeds.overlap
    ).regime
    return asdict(
        Phase(
            new,
            context,
            took_s,
            counted.useful_flops,
            counted.bytes,
            reads,
            calculates,
            float(share_of_ceiling(reads, speeds.read_bytes_per_s)),
            float(busy),
            max(0.0, 1 - busy),
            bound,
            predicted_s,
            predicted_s / took_s - 1,
        )
    )


def errors(timed: dict) -> list[str]:
    """A sentence for each share that lies so far above its ceiling that it cannot be true."""
    found = []
    for name, numbers in timed["phases"].items():
        for what, key in (("bandwidth", "share_of_read_ceiling"), ("arithmetic", "share_of_flop_ceiling")):
            if Share(numbers[key]).error:
                found.append(f"{name} reached {numbers[key]:.0%} of the measured {what}, which nothing can")
    lie = timed["model"]["weights_lie"]
    if found and lie in ("in cache", "partly in cache"):
        found.append(f"the weights lie {lie}, which is faster than memory: take a larger --model")
    return found


# --- the table -------------------------------------------------------------------------------------------------------


def units(value: float, unit: str) -> str:
    """Three digits and a prefix, in ASCII: some terminals know nothing else."""
    plain = {"\N{MICRO SIGN}": "u", "\N{GREEK SMALL LETTER MU}": "u", "\N{MINUS SIGN}": "-"}
    return in_units(value, unit).translate(str.maketrans(plain))


def table(report: dict) -> str:
    """The report on one screen."""
    here, roofs, model = report["device"], report["ceilings"], report["model"]
    size = roofs["flop_size"][report["dtype"]]
    others = ", ".join(f"{dtype} {units(rate, 'FLOP/s')}" for dtype, rate in roofs["flop_per_s"].items())
    lines = {
        "device": f"{here['name']} ({here['kind']}), {here['threads']} CPU threads, "
        f"{here['free_bytes'] / 1e9:.1f} of {here['total_bytes'] / 1e9:.1f} GB free",
        "versions": f"python {report['versions']['python']}, torch {report['versions']['torch']}, {report['date']}",
        "vendor peak": here["vendor_peak"],
        "bandwidth": f"{units(report['read_bytes_per_s'], 'B/s')} ({roofs['read_how']}; "
        f"{units(roofs['working_set_bytes'], 'B')} each time)",
        "arithmetic": f"{units(report['flop_per_s'], 'FLOP/s')} ({report['dtype']}, {size} x {size} matrices)",
        "  all dtypes": others,
        "ridge": machine.ridge_in_words(report["ridge_flop_per_byte"]),
        "model": f"{model['name']}, {model['weights']}, {model['parameters']:,} parameters",
        "weights": f"{units(model['weight_bytes_read_per_step'], 'B')} read a step, {model['weights_lie']}",
    }
    if model["layers_timed"] < model["layers"]:
        lines["timed"] = (
            f"ONE LAYER, times {model['layers']}, plus the output head: the whole model does not fit into free memory"
        )
    lines |= _loop_lines(report["loop"]) | {"overhead a pass": f"{units(report['overhead_s'], 's')} (launches, Python)"}
    text = [f"{name:<17}{line}" for name, line in lines.items()]
    text += ["", *_phase_lines(report["phases"]), *_lever_lines(report["levers"]), "", report["drift"]]
    text += [f"note: {note}" for note in roofs["notes"]]
    text += [f"ERROR OF MEASUREMENT: {line}" for line in report["errors_of_measurement"]]
    return "\n".join(text).encode("ascii", "replace").decode()


def _loop_lines(timed: dict | None) -> dict[str, str]:
    if timed is None:
        return {"loop": "not run: it takes the whole model"}
    runs = ", ".join(f"{run['tokens']} tokens {run['error_share']:+.0%}" for run in timed["held_out"])
    return {
        "loop": f"{1e3 * timed['step_s']:.4g} ms a step, first token of {timed['prompt_tokens']} after "
        f"{1e3 * timed['first_token_s']:.4g} ms, so {units(timed['fixed_overhead_s'], 's')} on top of N steps",
        "held-out runs": f"{runs} (measured against first token + (N - 1) steps)",
    }


def _lever_lines(levers: dict | None) -> list[str]:
    if levers is None:
        return []
    batching, checking = levers["batching"], levers["checking"]
    rows = {
        "users in a step": [str(p["users"]) for p in batching],
        "time of a step": [units(p["step_s"], "s") for p in batching],
        "tokens/s in all": [f"{p['tokens_per_s']:.3g}" for p in batching],
        "arithmetic idle": [f"{p['idle_share']:.2%}" if p["idle_share"] else "unknown" for p in batching],
        "foretold": [units(p["predicted_s"], "s") for p in batching],
        "  off by": [f"{p['prediction_error_share']:+.1%}" for p in batching],
        "": [],
        "rows in a pass": [str(p["rows"]) for p in checking],
        "times one row": [f"{p['of_one_row_share']:.2f}" for p in checking],
    }
    lines = (f"{row:<17}" + "".join(f"{cell:>12}" for cell in cells) for row, cells in rows.items())
    return ["", *map(str.rstrip, lines)]


def _phase_lines(phases: dict[str, dict]) -> list[str]:
    rows: dict[str, list[str]] = {"": []}
    for name, p in phases.items():
        behind = f" behind {p['context_tokens']}" if p["context_tokens"] else ""
        rows[""].append(f"{name}, {p['new_tokens']}{behind}")
        shares = Share(p["share_of_read_ceiling"]), Share(p["share_of_flop_ceiling"])
        cells = {
            "time": units(p["time_s"], "s"),
            "FLOP": units(p["flop"], "FLOP"),
            "bytes": units(p["bytes"], "B"),
            "achieved bytes/s": units(p["achieved_read_bytes_per_s"], "B/s"),
            "  of the ceiling": "not true" if shares[0].error else f"{shares[0]:.1%}",
            "achieved FLOP/s": units(p["achieved_flop_per_s"], "FLOP/s"),
            "  of the ceiling ": "not true" if shares[1].error else f"{shares[1]:.2%}",
            "idle arithmetic": "unknown" if shares[1].error else f"{p['idle_share']:.2%}",
            "bound by": p["regime"],
            "predicted": units(p["predicted_s"], "s"),
            "  error": f"{p['prediction_error_share']:+.1%}",
        }
        for row, cell in cells.items():
            rows.setdefault(row, []).append(cell)
    return [f"{row:<17}" + "".join(f"{cell:>22}" for cell in cells) for row, cells in rows.items()]
