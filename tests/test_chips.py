"""The catalogue of chips: every name that a driver reports, every figure in a datasheet's units."""

import re

import pytest

from utils.chips import CHIPS, candidates, find, from_device_name

REPORTED = {
    "NVIDIA H100 80GB HBM3": "H100 SXM",  # no "SXM" in the driver's name
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H200": "H200",
    "NVIDIA B200": "B200",
    "NVIDIA A100-SXM4-40GB": "A100 40 GB SXM",
    "NVIDIA A100-SXM4-80GB": "A100 80 GB SXM",
    "NVIDIA A100 80GB PCIe": "A100 80 GB PCIe",
    "NVIDIA L40S": "L40S",
    "NVIDIA L4": "L4",
    "NVIDIA A10G": "A10G",
    "Tesla T4": "T4",
    "Tesla V100-SXM2-16GB": "V100 16 GB SXM2",
    "Tesla V100-SXM2-32GB": "V100 32 GB SXM2",
    "NVIDIA GeForce RTX 3090": "RTX 3090",
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "NVIDIA GeForce RTX 5090": "RTX 5090",
    "AMD Instinct MI300X": "MI300X",
    "Apple M1": "Apple M1",
    "Apple M1 Pro": "Apple M1 Pro",
    "Apple M1 Max": "Apple M1 Max",
    "Apple M2": "Apple M2",
    "Apple M2 Pro": "Apple M2 Pro",
    "Apple M2 Max": "Apple M2 Max",
    "Apple M3": "Apple M3",
    "Apple M4": "Apple M4",
    "Apple M4 Pro": "Apple M4 Pro",
}

# bf16 fp16 fp32 tf32 fp8 int8 in TFLOP/s, TB/s, GB; "-" where there is none or none is verified.
FIGURES = """
H100 SXM         | 989.4 989.4 67    494.7 1979  1979  | 3.35  | 80
H100 PCIe        | 756   756   51    378   1513  1513  | 2.0   | 80
H200             | 989.4 989.4 67    494.7 1979  1979  | 4.8   | 141
B200             | 2250  2250  80    1125  4500  4500  | 8.0   | 180
A100 40 GB SXM   | 312   312   19.5  156   -     624   | 1.555 | 40
A100 80 GB SXM   | 312   312   19.5  156   -     624   | 2.039 | 80
A100 80 GB PCIe  | 312   312   19.5  156   -     624   | 1.935 | 80
L40S             | 362   362   91.6  183   733   733   | 0.864 | 48
L4               | 121   121   30.3  -     -     -     | 0.300 | 24
A10G             | 70    70    -     -     -     140   | 0.600 | 24
T4               | -     65    8.1   -     -     130   | 0.320 | 16
V100 16 GB SXM2  | -     125   15.7  -     -     62    | 0.900 | 16
V100 32 GB SXM2  | -     125   15.7  -     -     62    | 0.900 | 32
RTX 3090         | 71    71    35.6  -     -     -     | 0.936 | 24
RTX 4090         | 165.2 165.2 82.6  82.6  330.3 660.6 | 1.008 | 24
RTX 5090         | 209.5 209.5 105   -     -     -     | 1.792 | 32
MI300X           | 1307  1307  163.4 653.7 -     -     | 5.3   | 192
TPU v5e          | 197   -     -     -     -     394   | 0.819 | 16
TPU v5p          | 459   -     -     -     -     918   | 2.765 | 95
TPU v6e          | 918   -     -     -     -     1836  | 1.638 | 32
Apple M1         | -     -     2.6   -     -     -     | 0.068 | -
Apple M1 Pro     | -     -     5.2   -     -     -     | 0.200 | -
Apple M1 Max     | -     -     10.4  -     -     -     | 0.400 | -
Apple M2         | -     -     3.6   -     -     -     | 0.100 | -
Apple M2 Pro     | -     -     6.8   -     -     -     | 0.200 | -
Apple M2 Max     | -     -     13.5  -     -     -     | 0.400 | -
Apple M3         | -     -     4.1   -     -     -     | 0.100 | -
Apple M3 Max 300 GB/s | - -    -     -     -     -     | 0.300 | -
Apple M3 Max 400 GB/s | - -    14.2  -     -     -     | 0.400 | -
Apple M4         | -     -     4.6   -     -     -     | 0.120 | -
Apple M4 Pro     | -     -     9.2   -     -     -     | 0.273 | -
Apple M4 Max 410 GB/s | - -    -     -     -     -     | 0.410 | -
Apple M4 Max 546 GB/s | - -    18.4  -     -     -     | 0.546 | -
"""
ROWS = [re.split(r"\s*\|\s*", line) for line in FIGURES.strip().splitlines()]


def names(chips) -> list[str]:
    return [chip.name for chip in chips]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_figures(row):
    name, rates, tb_per_s, gb = row
    chip = find(name)
    dtypes = ("bf16", "fp16", "fp32", "tf32", "fp8", "int8")
    known = {d: float(r) * 1e12 for d, r in zip(dtypes, rates.split(), strict=True) if r != "-"}
    assert chip.flop_per_s == pytest.approx(known)
    assert chip.read_bytes_per_s == pytest.approx(float(tb_per_s) * 1e12)
    assert chip.memory_bytes == (None if gb == "-" else int(gb) * 10**9)
    assert len(chip.source) > 10


def test_the_catalogue_holds_these_chips_and_each_name_once():
    assert names(CHIPS) == [row[0] for row in ROWS]
    called = [alias for chip in CHIPS for alias in {chip.name, *chip.aliases}]
    shared = {alias for alias in called if called.count(alias) > 1}
    assert shared == {"Apple M3 Max", "M3 Max", "Apple M4 Max", "M4 Max"}


@pytest.mark.parametrize(("reported", "name"), REPORTED.items())
def test_a_drivers_full_name_finds_its_chip(reported, name):
    for spelling in (reported, reported.upper(), f" {reported} "):
        assert names(from_device_name(spelling)) == [name]
        assert find(spelling).name == name


@pytest.mark.parametrize(
    ("reported", "bins"),
    [
        ("Apple M3 Max", ["Apple M3 Max 300 GB/s", "Apple M3 Max 400 GB/s"]),
        ("Apple M4 Max", ["Apple M4 Max 410 GB/s", "Apple M4 Max 546 GB/s"]),
    ],
)
def test_bins_that_the_name_does_not_tell_are_all_returned(reported, bins):
    assert names(from_device_name(reported)) == bins
    with pytest.raises(ValueError, match=f"{bins[0]}, {bins[1]}: say which one"):
        find(reported)


@pytest.mark.parametrize(
    "reported",
    [
        "NVIDIA L40",  # "L4" is inside it, and it is inside "L40S"
        "L40",
        "NVIDIA A10",
        "NVIDIA A100",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA H100 NVL",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",  # a slice of the card
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA H20",
        "Tesla V100-PCIE-16GB",
        "Apple M1 Ultra",
        "AMD EPYC 7B13",
        "",
    ],
)
def test_another_chip_stays_unknown(reported):
    assert from_device_name(reported) == []
    if reported != "NVIDIA A100":
        with pytest.raises(ValueError, match="in the catalogue; nearest: "):
            find(reported)


def test_the_nearest_names_come_without_numbers_of_theirs():
    with pytest.raises(ValueError) as error:
        find("L40")
    assert str(error.value) == "no chip 'L40' in the catalogue; nearest: L40S, L4"


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("H100", ["H100 SXM", "H100 PCIe"]),
        ("a100", ["A100 40 GB SXM", "A100 80 GB SXM", "A100 80 GB PCIe"]),
        ("A100 80GB", ["A100 80 GB SXM", "A100 80 GB PCIe"]),
        ("V100", ["V100 16 GB SXM2", "V100 32 GB SXM2"]),
        ("TPU", ["TPU v5e", "TPU v5p", "TPU v6e"]),
        ("m3 max", ["Apple M3 Max 300 GB/s", "Apple M3 Max 400 GB/s"]),
    ],
)
def test_an_ambiguous_name_is_answered_with_its_candidates(asked, meant):
    assert names(candidates(asked)) == meant
    with pytest.raises(ValueError, match="say which one") as error:
        find(asked)
    assert all(name in str(error.value) for name in meant)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("h100 sxm", "H100 SXM"),
        ("A100 40GB", "A100 40 GB SXM"),
        ("4090", "RTX 4090"),
        ("v5e", "TPU v5e"),
        ("M3", "Apple M3"),  # exact, although "Apple M3 Max" has the word too
        ("M3 Max 400 GB/s", "Apple M3 Max 400 GB/s"),
    ],
)
def test_short_names(asked, name):
    assert find(asked).name == name


def test_ridge_belongs_to_a_dtype():
    h100 = find("H100 SXM")
    assert h100.ridge("bf16") == pytest.approx(295.34, abs=0.01)
    assert h100.ridge("fp8") == pytest.approx(590.7, abs=0.1)
    assert h100.ridge("fp32") == pytest.approx(20)


@pytest.mark.parametrize(("name", "dtype"), [("T4", "bf16"), ("A100 80 GB SXM", "fp8"), ("L4", "fp8")])
def test_a_rate_that_is_not_there_is_not_invented(name, dtype):
    with pytest.raises(ValueError, match=f"no verified {dtype} rate for {name}; take one of .*fp16"):
        find(name).ridge(dtype)


def test_the_h100s_peak_from_its_clock():
    """1830 MHz, 528 tensor cores, 512 multiply-adds of two FLOP each in a cycle."""
    assert find("H100 SXM").flop_per_s["bf16"] == pytest.approx(1830e6 * 528 * 512 * 2, rel=1e-4)


def test_the_two_a100_memories_have_two_bandwidths():
    small, large = (from_device_name(f"NVIDIA A100-SXM4-{gb}GB")[0] for gb in (40, 80))
    assert (small.read_bytes_per_s, large.read_bytes_per_s) == (1.555e12, 2.039e12)
