"""From counts and two ceilings to a time, and to what binds it: arithmetic, memory, or overhead.

The picture is the roofline of Williams, Waterman and Patterson (2009): a module that does I FLOP for each
byte it moves can run at the peak, or at I times the bandwidth, whichever is less. The two meet at the ridge.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from utils.counts import Module, positive

Regime = Literal["compute", "bandwidth", "overhead"]


@dataclass(frozen=True)
class ModuleTime:
    """What all instances of one module would take, in seconds."""

    name: str
    compute_s: float  # if only arithmetic took time
    bytes_s: float  # if only memory took time

    @property
    def seconds(self) -> float:
        """The larger of both: the two go on side by side within a module."""
        return max(self.compute_s, self.bytes_s)

    @property
    def regime(self) -> Regime:
        """Which of the two it is."""
        return "compute" if self.compute_s > self.bytes_s else "bandwidth"


@dataclass(frozen=True)
class Prediction:
    """A forward pass foretold. The three parts add up to `seconds`, unless overhead and execution overlap."""

    seconds: float
    compute_s: float  # time of the modules that arithmetic binds
    bytes_s: float  # time of the modules that memory binds
    overhead_s: float
    regime: Regime  # the largest part; with overlap, overhead only if it outlasts the execution
    by_module: tuple[ModuleTime, ...]  # in the pass's order


def ridge(flop_per_s: float, bytes_per_s: float) -> float:
    """FLOP per byte at which the roofs meet; below it memory binds, above it arithmetic.

    Raises:
        ValueError: a rate that is not a positive number.
    """
    positive("FLOP per second", flop_per_s)
    positive("bytes per second", bytes_per_s)
    return flop_per_s / bytes_per_s


def attainable_flop_per_s(intensity: float, flop_per_s: float, bytes_per_s: float) -> float:
    """The roof above a given intensity (FLOP per byte), in FLOP per second.

    Raises:
        ValueError: a value that is not a positive number.
    """
    positive("the intensity", intensity)
    ridge(flop_per_s, bytes_per_s)  # refuses bad rates
    return min(flop_per_s, intensity * bytes_per_s)


def predict(
    modules: Iterable[Module],
    flop_per_s: float,
    bytes_per_s: float,
    overhead_s: float = 0.0,
    overlap: bool = False,
) -> Prediction:
    """The time of a forward pass.

    Modules run one after another: each takes the larger of its FLOPs over the peak and its bytes over the
    bandwidth, and the pass takes the sum. One maximum over the sums would hide the arithmetic of one module
    behind the memory traffic of another that is not running at that time.

    Args:
        modules: from `counts.forward_pass`.
        flop_per_s: peak, of the dtype that the arithmetic runs in.
        bytes_per_s: bandwidth.
        overhead_s: launch and framework time of the pass, measured apart.
        overlap: the overhead passes while earlier kernels still run (eager CUDA), so that the larger of both
            counts; otherwise it adds (a CPU).

    Raises:
        ValueError: a rate that is not a positive number, or an overhead below zero.
    """
    ridge(flop_per_s, bytes_per_s)  # refuses bad rates
    if overhead_s != 0:
        positive("overhead in seconds", overhead_s)

    def time(m: Module) -> ModuleTime:
        return ModuleTime(m.name, m.times * m.flops / flop_per_s, m.times * m.bytes / bytes_per_s)

    by_module = tuple(time(m) for m in modules)
    parts: dict[Regime, float] = {"compute": 0.0, "bandwidth": 0.0}
    for t in by_module:
        parts[t.regime] += t.seconds
    executing_s = sum(parts.values())
    regime = max(parts, key=parts.get)
    if overhead_s > (executing_s if overlap else parts[regime]):
        regime = "overhead"
    seconds = max(executing_s, overhead_s) if overlap else executing_s + overhead_s
    return Prediction(seconds, parts["compute"], parts["bandwidth"], overhead_s, regime, by_module)
