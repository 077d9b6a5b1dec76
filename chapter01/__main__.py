"""The course's command line: `python -m chapter01 COMMAND --help`.

One function a command, which imports what it needs itself: a command that only calculates starts at once.
"""

from __future__ import annotations  # a Python too old for the course can read this file, and `check` tells it so

import argparse
import functools
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from chapter01.idle import Difference, Reading
    from utils.chips import Chip

CHEAPEST, DEAREST = 1e-4, 1_000_000  # dollars for a chip and hour
DTYPES = ("bf16", "fp16", "fp32", "tf32", "fp8", "int8")


class Parser(argparse.ArgumentParser):
    """Answers a bad value with one line, instead of the usage and a line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a bad value ends with one line on stderr and exit code 2, Ctrl-C with 130."""
    parser = Parser(prog="python -m chapter01", description="Chapter 1, the mechanics of token generation.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    add_idle(commands)
    add_measure(commands)
    add_check(commands)
    args = parser.parse_args(_joined(sys.argv[1:] if argv is None else argv))
    if args.command is None:
        parser.error(f"give a command, {' or '.join(commands.choices)}; --help says what each does")
    try:
        return args.run(args)
    except ValueError as error:
        args.parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted: nothing is saved", file=sys.stderr)
        return 130


def _joined(argv: Sequence[str]) -> list[str]:
    """Option and negative value as one word, "--params=-7e9": apart, argparse takes the value for an option."""
    words: list[str] = []
    for word in argv:
        if words and words[-1].startswith("--") and re.match(r"-(\.?\d|inf|nan)", word):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def number(least: float, most: float, example: str) -> Callable[[str], float]:
    """What reads an option's number; beyond the bounds lies no machine, and a screen of digits without a meaning."""

    def read(text: str) -> float:
        from utils.counts import positive

        try:
            value = float(text)
            positive("the value", value)
        except ValueError:
            told = f"{_short(text)}: give a number above zero, for instance {example}"
            raise argparse.ArgumentTypeError(told) from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{_short(text)}: give a number from {least:g} to {most:g}")
        return value

    return read


def parameters(text: str) -> float:
    """A number of parameters, from "70e9" or, as models are named, "70B"."""
    named = re.fullmatch(r"(\d+(?:\.\d+)?)([bm])", text, re.IGNORECASE)
    plain = text if named is None else named[1] + {"b": "e9", "m": "e6"}[named[2].lower()]
    return number(1, 1e15, "70e9")(plain)


def count(most: int) -> Callable[[str], int]:
    """What reads an option's whole number from 1 to `most`."""

    def read(text: str) -> int:
        from utils.counts import whole

        try:
            value = int(text)
            whole("the value", value, 1)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{_short(text)}: give a whole number, 1 or more") from None
        if value > most:
            raise argparse.ArgumentTypeError(f"{_short(text)}: give a whole number from 1 to {most:,}")
        return value

    return read


def _short(text: str) -> str:
    """The text in quotes, and only its beginning if it is long."""
    return repr(text if len(text) <= 24 else text[:21] + "...")


def price(text: str) -> tuple[float, float]:
    """Lower and upper price, from "LOW:HIGH" or one price."""
    from chapter01.idle import check_price

    try:
        low, high = (float(part) for part in (text.split(":") if ":" in text else [text, text]))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{_short(text)}: give dollars an hour as LOW:HIGH, for instance 4:8"
        ) from None
    try:
        check_price((low, high))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if low < CHEAPEST or high > DEAREST:
        raise argparse.ArgumentTypeError(
            f"{_short(text)}: give dollars for a chip and hour, from {CHEAPEST:g} to {DEAREST:,}"
        )
    return low, high


# --- idle ------------------------------------------------------------------------------------------------------------


def add_idle(commands: argparse._SubParsersAction) -> None:
    """The command `idle` and its options."""
    parser = commands.add_parser(
        "idle",
        help="how much of a chip's arithmetic one decode step uses, and what its tokens cost",
        description="One decode step on a chip: time, tokens per second, idle arithmetic, memory, cost. "
        "Weights alone from --params; with --model also counted exactly.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--chip", metavar="NAME", help='from the catalogue, for instance "H100 SXM"')
    per_s = functools.partial(number, 1e6, 1e18)
    add("--bandwidth", type=per_s("3.35e12"), metavar="BYTES_PER_S", help="in place of the catalogue's, with --peak")
    add("--peak", type=per_s("989e12"), metavar="FLOP_PER_S", help="in place of the catalogue's, with --bandwidth")
    add("--dtype", choices=DTYPES, help="what the arithmetic runs in (bf16, else fp16, else fp32)")
    add("--params", type=parameters, metavar="P", help="number of parameters, for instance 70e9 or 70B (the model's)")
    add("--model", metavar="NAME", help='from the catalogue, for instance "Llama-3.1-70B"')
    width = number(0.01, 64, "2")
    add("--weight-bytes", type=width, default=2.0, metavar="W", help="bytes a weight (2); 0.5 for four bits")
    add("--kv-bytes", type=width, default=2.0, metavar="K", help="bytes a number in the KV cache (2)")
    add("--batch", type=count(10**6), default=1, metavar="B", help="users at once (1)")
    add("--context", type=count(10**7), default=1, metavar="T", help="tokens of each user's text, the newest too (1)")
    add("--chips", type=count(10**6), default=1, metavar="N", help="chips that share the work without loss (1)")
    add("--price", type=price, metavar="LOW:HIGH", help="dollars for a chip and hour, for instance 4:8")
    add("--json", action="store_true", help="the same as JSON: bytes, seconds, FLOP/s; shares from 0 to 1")
    parser.set_defaults(run=idle, parser=parser)


def idle(args: argparse.Namespace) -> int:
    """Print both readings of a decode step, or the one there is without a model."""
    from chapter01 import idle as arithmetic
    from utils import models

    chip, dtype = _chip(args)
    shape = None if args.model is None else models.find(args.model)
    if args.params is None and shape is None:
        raise ValueError("give --params P, for instance 70e9, or --model NAME, or both")
    parameters = shape.parameters if args.params is None else args.params
    shared = {"batch": args.batch, "weight_bytes": args.weight_bytes, "chips": args.chips, "price": args.price}
    of_model = {"context": args.context, "kv_bytes": args.kv_bytes}

    readings = {"weights only": arithmetic.idealised(chip, dtype, parameters, **shared)}
    named = []
    if shape is not None:
        readings["exact"] = arithmetic.exact(chip, dtype, shape, **shared, **of_model)
        named = arithmetic.differences(parameters, shape, args.batch, weight_bytes=args.weight_bytes, **of_model)

    step = {
        "chip": chip.name,
        "dtype": dtype,
        "peak_flop_per_s": chip.flop_per_s[dtype],
        "read_bytes_per_s": chip.read_bytes_per_s,
        "memory_bytes": chip.memory_bytes,
        "ridge_flop_per_byte": chip.ridge(dtype),
        "parameters": parameters,
        "model": None if shape is None else shape.name,
        **shared,
        **of_model,
    }
    if args.json:
        both = {name: asdict(reading) for name, reading in readings.items()}
        print(json.dumps({"step": step, "readings": both, "differences": [asdict(d) for d in named]}, indent=2))
    else:
        print(_screen(step, readings, named))
    return 0


def _chip(args: argparse.Namespace) -> tuple[Chip, str]:
    """The chip and the dtype that the options mean."""
    from chapter01.idle import default_dtype, given
    from utils import chips

    chip = None if args.chip is None else chips.find(args.chip)
    if (args.bandwidth is None) != (args.peak is None):
        have, lack = ("--bandwidth", "--peak") if args.peak is None else ("--peak", "--bandwidth")
        raise ValueError(f"{have} without {lack}: give both, or neither and a --chip of the catalogue")
    if args.peak is not None:
        dtype = args.dtype or "given"
        if chip is None:
            return given(args.bandwidth, args.peak, dtype), dtype
        return given(args.bandwidth, args.peak, dtype, f"{chip.name}, given rates", chip.memory_bytes), dtype
    if chip is None:
        raise ValueError('give --chip NAME, for instance "H100 SXM", or --bandwidth and --peak')
    if args.dtype is None or not chip.flop_per_s:
        return chip, default_dtype(chip)
    return chip, args.dtype


def _screen(step: dict, readings: dict[str, Reading], named: list[Difference]) -> str:
    """Everything on one screen of text, in ASCII: some terminals know nothing else."""
    op = "OP" if step["dtype"] == "int8" else "FLOP"
    chips, peak = step["chips"], step["dtype"] + (" peak" if step["dtype"] == "given" else "")
    memory = "memory unknown" if step["memory_bytes"] is None else unit(step["memory_bytes"], "B")
    lines = [
        f"{f'{chips} x ' if chips > 1 else ''}{step['chip']}: {peak} {unit(step['peak_flop_per_s'], f'{op}/s')}, "
        f"{unit(step['read_bytes_per_s'], 'B/s')}, ridge {step['ridge_flop_per_byte']:,.3g} {op}/B, {memory}",
        f"{step['parameters']:,.0f} parameters of {step['weight_bytes']:g} B, batch {step['batch']:,}",
        "",
    ]
    columns = ["weights only"]
    if step["model"]:
        columns.append(f"exact: {step['model']}")
        tokens = f"{step['context']:,} token{'s' if step['context'] > 1 else ''}"
        lines[1] += f", {tokens} of context, KV of {step['kv_bytes']:g} B a number"
    rows = [_cells(reading, step, op) for reading in readings.values()]
    wide = max(22, *(len(c) + 3 for c in [*columns, *(cell for cells in rows for cell in cells.values())]))
    lines.append(" " * 26 + "".join(f"{c:>{wide}}" for c in columns))
    for label in rows[-1]:
        lines.append(f"{label:<26}" + "".join(f"{cells.get(label, ''):>{wide}}" for cells in rows).rstrip())
    if named:
        lines += ["", "What the exact reading counts otherwise, a step:"]
        lines += [f"  {d.name:<34}{signed(d.bytes, 'B'):>14}{signed(d.flops, op):>16}" for d in named]
    return "\n".join([*lines, "", *_notes(step, readings, op)])


def _cells(reading: Reading, step: dict, op: str) -> dict[str, str]:
    """One column of the screen, by row label."""
    parts = {} if len(reading.parts) == 1 else {f"  {name}": unit(b, "B") for name, b in reading.parts.items()}
    cells = {
        "bytes read a step": unit(reading.bytes, "B"),
        **parts,
        "time a step": unit(reading.seconds, "s"),
        "tokens/s, each user": digits(reading.tokens_per_s_per_user),
        "tokens/s, all users": digits(reading.tokens_per_s),
        "arithmetic done": unit(reading.flop_per_s, f"{op}/s"),
        "used of the peak": f"{100 * reading.used:{'.3g' if reading.used < 0.1 else '.2f'}} %",
        "idle": f"{100 * reading.idle:.2f} %",
        "bound by": reading.bound_by,
        "memory needed": unit(reading.needed_bytes, "B"),
    }
    if reading.fits is not None:
        fits = "yes" if reading.fits else f"no, {reading.chips_needed:,} needed"
        cells["fits " + ("one chip" if step["chips"] == 1 else f"{step['chips']:,} chips")] = fits
    if reading.dollars_per_million is not None:
        low, high = (f"{d:,.2f}" if 0.1 <= d < 1e9 else digits(d) for d in reading.dollars_per_million)
        cells["$ per million tokens"] = low if low == high else f"{low} to {high}"
    # The last whole batch below the ridge.
    cells["matmuls cross ridge after"] = f"batch {math.floor(reading.matmuls_cross_at_batch):,}"
    never = reading.step_crosses_at_batch is None
    cells["whole step crosses after"] = "never" if never else f"batch {math.floor(reading.step_crosses_at_batch):,}"
    return cells


def _notes(step: dict, readings: dict[str, Reading], op: str) -> list[str]:
    """What has to be said beside the numbers."""
    last = list(readings.values())[-1]
    notes = []
    if last.bound_by == "bandwidth":
        notes.append("Idle is arithmetic that waits: the memory is busy all the time.")
    if last.fits is False:
        over = last.needed_bytes / (step["memory_bytes"] * step["chips"])
        share = last.tokens_per_s_per_user * last.chips_needed / step["chips"]
        notes.append(
            f"It does not fit, so this is the bound of {'one chip' if step['chips'] == 1 else 'these chips'}. "
            f"Shared without loss by {last.chips_needed:,} chips:\n"
            f"{digits(share)} tokens/s for each user, as idle, and a token costs the same."
        )
        if over < 2**30 / 1e9:
            notes.append("It is close: a real card may report more memory than its datasheet. The driver decides.")
    if step["model"] is None:
        notes.append("Give --model NAME for the exact reading; context and KV bytes count only there.")
    elif last.step_crosses_at_batch is None:
        limit = last.step_flop_per_byte_limit
        notes.append(
            f"With {step['context']:,} tokens of context the whole step stays below "
            f"{limit:,.{0 if limit > 10 else 2}f} {op}/B at any batch:\nits keys and values grow with the batch."
        )
    if last.dollars_per_million is None:
        notes.append("Give --price LOW:HIGH, dollars for a chip and hour, for the cost of a token.")
    return notes


def digits(value: float) -> str:
    """Four significant digits, thousands separated; a power of ten where these would be too many to read."""
    if abs(value) >= 1e9:
        return f"{value:.3e}"
    return f"{value:,.0f}" if abs(value) >= 999.95 else f"{value:#.4g}".rstrip(".")


def unit(value: float, name: str) -> str:
    """Four significant digits with the prefix that suits, for instance "41.79 ms"."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1), ("m", 1e-3)):
        if abs(value) >= factor:
            return f"{digits(value / factor)} {prefix}{name}"
    return f"{digits(value / 1e-6)} u{name}" if value else f"0 {name}"


def signed(value: float, name: str) -> str:
    """The same with its sign; nothing for zero."""
    return f"{'+' if value > 0 else '-'}{unit(abs(value), name)}" if value else ""


# --- measure ---------------------------------------------------------------------------------------------------------


def add_measure(commands: argparse._SubParsersAction) -> None:
    """The command `measure` and its options; chapter01/measure.py does the work."""
    parser = commands.add_parser(
        "measure",
        help="measure this machine, and prefill and decode on it, headless (about a minute)",
        description="Every measurement of the course on this machine in one table: ceilings, ridge, the loop, prefill "
        "and decode, predicted against measured. Exit code 1: a share above a ceiling, an error of measurement.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--device", metavar="D", help='"cuda", "cuda:1", "mps" or "cpu" (the fastest kind here)')
    add("--model", metavar="NAME", help='from the catalogue, with random weights, for instance "Llama-3.1-8B"')
    add("--dtype", choices=("fp32", "bf16", "fp16"), help="of weights and arithmetic (the one that notebook 00 picks)")
    add("--json", type=Path, metavar="FILE", help="write the same numbers there, units in the keys")
    parser.set_defaults(run=measure, parser=parser)


def measure(args: argparse.Namespace) -> int:
    """Run the measurements."""
    try:
        from chapter01 import measure as command
    except ModuleNotFoundError as error:
        from chapter01.check import set_up

        raise ValueError(f"{error.name} is not installed: {set_up('measure')}") from None
    return command.run(args)


# --- check -----------------------------------------------------------------------------------------------------------


def add_check(commands: argparse._SubParsersAction) -> None:
    """The command `check`; chapter01/check.py does the work."""
    parser = commands.add_parser(
        "check",
        help="whether this machine is ready for the course (a few seconds)",
        description='What the course needs, on one screen: each line says "ok" or what to do. '
        "Exit code 1: a line says what to do.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=check, parser=parser)


def check(args: argparse.Namespace) -> int:
    """Look at this machine."""
    from chapter01 import check as command

    return command.run(args)


if __name__ == "__main__":
    sys.exit(main())
