"""A catalogue of accelerators: peak arithmetic rates, memory bandwidth, memory.

All rates are dense. Vendors like to print the rate "with sparsity", which is twice the dense one and of no
use to an ordinary model. A figure that could not be verified is left out: a peak is never guessed. Bandwidth
and memory are the datasheet's; what a real device offers is what its driver reports and what `ceilings.py`
measures. An Apple chip's arithmetic rate is that of its GPU.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

# The catalogue's names of dtypes go by what datasheets write: torch's names to them, and the bytes of a number.
DATASHEET_DTYPE = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}

_SOURCES = {
    "A": "cli99/llm-analysis",
    "G": "Lightning throughput tables",
    "GC": "Google Cloud TPU documentation",
    "HF": "huggingface.js hardware list",
    "N": "karpathy/nanochat common.py",
    "S": "stas00/ml-engineering accelerator tables",
    "V": "hahnyuan/LLM-Viewer",
}


@dataclass(frozen=True)
class Chip:
    """One accelerator as its vendor specifies it."""

    name: str
    flop_per_s: Mapping[str, float] = field(hash=False)  # dense, by dtype: bf16 fp16 fp32 tf32 fp8 int8
    read_bytes_per_s: float
    memory_bytes: int | None  # None: shared with the CPU, as large as the machine was bought with
    source: str
    aliases: tuple[str, ...] = ()  # names that drivers report, and short ones

    def ridge(self, dtype: str) -> float:
        """FLOP per byte read at which arithmetic and memory would both be busy.

        Raises:
            ValueError: the catalogue has no rate for that dtype: the chip has none, or it is not verified.
        """
        if dtype not in self.flop_per_s:
            raise ValueError(f"no verified {dtype} rate for {self.name}; take one of {', '.join(self.flop_per_s)}")
        return self.flop_per_s[dtype] / self.read_bytes_per_s


def _chip(name: str, tb_per_s: float, gb: int | None, sources: str, *aliases: str, **tflops: float) -> Chip:
    """One row of the catalogue, in the units of a datasheet: TB/s, GB of 1e9 bytes, TFLOP/s by dtype."""
    return Chip(
        name,
        {dtype: float(round(rate * 1e12)) for dtype, rate in tflops.items()},
        float(round(tb_per_s * 1e12)),
        None if gb is None else gb * 10**9,
        "; ".join(_SOURCES[key] for key in sources.split()),
        aliases,
    )


def _apple(name: str, tb_per_s: float, fp32: float | None, bin_: str = "") -> Chip:
    """An Apple chip. The system reports its name without the bin."""
    rates = {} if fp32 is None else {"fp32": fp32}
    return _chip(f"{name} {bin_}".strip(), tb_per_s, None, "HF", name, name.removeprefix("Apple "), **rates)


_H100 = {"bf16": 989.4, "fp16": 989.4, "fp32": 67, "tf32": 494.7, "fp8": 1979, "int8": 1979}
_A100 = {"bf16": 312, "fp16": 312, "fp32": 19.5, "tf32": 156, "int8": 624}
_V100 = {"fp16": 125, "fp32": 15.7, "int8": 62}

CHIPS = (
    _chip("H100 SXM", 3.35, 80, "S", "NVIDIA H100 80GB HBM3", **_H100),
    _chip("H100 PCIe", 2.0, 80, "S", "NVIDIA H100 PCIe",
          bf16=756, fp16=756, fp32=51, tf32=378, fp8=1513, int8=1513),
    _chip("H200", 4.8, 141, "S", "NVIDIA H200", **_H100),
    _chip("B200", 8.0, 180, "S", "NVIDIA B200",
          bf16=2250, fp16=2250, fp32=80, tf32=1125, fp8=4500, int8=4500),
    _chip("A100 40 GB SXM", 1.555, 40, "A V", "NVIDIA A100-SXM4-40GB", **_A100),
    _chip("A100 80 GB SXM", 2.039, 80, "A V", "NVIDIA A100-SXM4-80GB", **_A100),
    _chip("A100 80 GB PCIe", 1.935, 80, "A", "NVIDIA A100 80GB PCIe", **_A100),
    _chip("L40S", 0.864, 48, "S N", "NVIDIA L40S",
          bf16=362, fp16=362, fp32=91.6, tf32=183, fp8=733, int8=733),
    _chip("L4", 0.300, 24, "N", "NVIDIA L4", bf16=121, fp16=121, fp32=30.3),
    _chip("A10G", 0.600, 24, "A", "NVIDIA A10G", bf16=70, fp16=70, int8=140),
    # A T4 runs bf16, by slow emulation: there is no peak to name.
    _chip("T4", 0.320, 16, "G", "Tesla T4", fp16=65, fp32=8.1, int8=130),
    # Two entries, because "does it fit" has two answers, and the driver's name tells which one it is.
    _chip("V100 16 GB SXM2", 0.900, 16, "G V", "Tesla V100-SXM2-16GB", **_V100),
    _chip("V100 32 GB SXM2", 0.900, 32, "G V", "Tesla V100-SXM2-32GB", **_V100),
    _chip("RTX 3090", 0.936, 24, "N", "NVIDIA GeForce RTX 3090", bf16=71, fp16=71, fp32=35.6),
    _chip("RTX 4090", 1.008, 24, "N", "NVIDIA GeForce RTX 4090",
          bf16=165.2, fp16=165.2, fp32=82.6, tf32=82.6, fp8=330.3, int8=660.6),
    _chip("RTX 5090", 1.792, 32, "N", "NVIDIA GeForce RTX 5090", bf16=209.5, fp16=209.5, fp32=105),
    _chip("MI300X", 5.3, 192, "S", "AMD Instinct MI300X", bf16=1307, fp16=1307, fp32=163.4, tf32=653.7),
    _chip("TPU v5e", 0.819, 16, "S GC", bf16=197, int8=394),
    _chip("TPU v5p", 2.765, 95, "S", bf16=459, int8=918),
    _chip("TPU v6e", 1.638, 32, "GC S", bf16=918, int8=1836),
    _apple("Apple M1", 0.068, 2.6),
    _apple("Apple M1 Pro", 0.200, 5.2),
    _apple("Apple M1 Max", 0.400, 10.4),
    _apple("Apple M2", 0.100, 3.6),
    _apple("Apple M2 Pro", 0.200, 6.8),
    _apple("Apple M2 Max", 0.400, 13.5),
    _apple("Apple M3", 0.100, 4.1),
    # The smaller bins have fewer GPU cores too, and no verified rate.
    _apple("Apple M3 Max", 0.300, None, "300 GB/s"),
    _apple("Apple M3 Max", 0.400, 14.2, "400 GB/s"),
    _apple("Apple M4", 0.120, 4.6),
    _apple("Apple M4 Pro", 0.273, 9.2),
    _apple("Apple M4 Max", 0.410, None, "410 GB/s"),
    _apple("Apple M4 Max", 0.546, 18.4, "546 GB/s"),
)  # fmt: skip


def from_device_name(reported: str) -> list[Chip]:
    """The chips that a driver's or system's full name can mean.

    Only whole names count: "L4" is inside "L40S", and the name of a laptop's card contains the full card's.
    Empty: not in the catalogue. More than one: bins that share a name.
    """
    wanted = _plain(reported)
    return [chip for chip in CHIPS if wanted in map(_plain, (chip.name, *chip.aliases))]


def candidates(name: str) -> list[Chip]:
    """The chips of exactly that name or alias; failing that, those whose name has all its words ("H100")."""
    words = set(_plain(name).split())
    return from_device_name(name) or [c for c in CHIPS if words and words <= set(_plain(c.name).split())]


def find(name: str) -> Chip:
    """The one chip of that name, in any case.

    Raises:
        ValueError: several chips can be meant, and they are named; or none, and the nearest are offered.
    """
    found = candidates(name)
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{name!r} can be any of {', '.join(chip.name for chip in found)}: say which one")
    raise ValueError(f"no chip {name!r} in the catalogue; nearest: {nearest(name, (chip.name for chip in CHIPS))}")


def nearest(name: str, names: Iterable[str]) -> str:
    """Up to three names that resemble `name`, or all of them if none does, as one text for a message."""
    by_key = {_plain(known): known for known in names}
    key = _plain(name)
    near = get_close_matches(key, by_key, n=3, cutoff=0.5) or [k for k in by_key if key and key in k] or by_key
    return ", ".join(by_key[k] for k in near)


def _plain(name: str) -> str:
    """Lower case, single spaces, "80GB" as "80 gb"."""
    return " ".join(name.lower().replace("gb", " gb").split())
