"""The command line: the screen, the JSON, and one line for every bad value."""

import json
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chapter01.__main__ import digits, main, unit

CHAPTER = ["idle", "--chip", "H100 SXM", "--params", "70e9", "--weight-bytes", "2"]
MODEL = [*CHAPTER, "--model", "Llama-3.1-70B", "--context", "8192", "--price", "4:8"]


def screen(capsys, *argv: str) -> dict[str, list[str]]:
    """The printed cells by row label."""
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()]
    return {"text": [out], **{row[0]: row[1:] for row in rows if row}}


def as_json(capsys, *argv: str) -> dict:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def refused(capsys, *argv: str) -> str:
    """The one line that a bad value gets."""
    with pytest.raises(SystemExit) as stop:
        main(argv)
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err.startswith("python -m chapter01") and err.count("\n") == 1 and err.endswith("\n")
    return err


# --- the screen ------------------------------------------------------------------------------------------------------


def test_the_chapters_numbers_on_the_screen(capsys):
    rows = screen(capsys, *CHAPTER, "--price", "4:8")
    assert rows["bytes read a step"] == ["140.0 GB"]
    assert rows["time a step"] == ["41.79 ms"]
    assert rows["tokens/s, each user"] == rows["tokens/s, all users"] == ["23.93"]
    assert rows["arithmetic done"] == ["3.350 TFLOP/s"]
    assert rows["used of the peak"] == ["0.339 %"]
    assert rows["idle"] == ["99.66 %"]
    assert rows["bound by"] == ["bandwidth"]
    assert rows["fits one chip"] == ["no, 2 needed"]
    assert rows["$ per million tokens"] == ["46.43 to 92.87"]
    assert rows["matmuls cross ridge after"] == ["batch 295"]
    assert "47.86 tokens/s for each user" in rows["text"][0]
    assert "Give --model NAME" in rows["text"][0]


def test_both_readings_side_by_side_and_what_lies_between(capsys):
    rows = screen(capsys, *MODEL)
    assert rows["weights only"] == ["exact: Llama-3.1-70B"]
    assert rows["bytes read a step"] == ["140.0 GB", "141.7 GB"]
    assert rows["tokens/s, each user"] == ["23.93", "23.64"]
    assert rows["output head"] == ["2.101 GB"]
    assert rows["keys and values"] == ["2.684 GB"]
    assert rows["whole step crosses after"] == ["batch 295", "never"]
    assert rows["input embedding: one row is read"] == ["-2.101 GB", "-2.101 GFLOP"]
    assert rows["attention to keys and values"] == ["+2.684 GB", "+21.47 GFLOP"]
    assert "below 60 FLOP/B at any batch" in rows["text"][0]


@pytest.mark.parametrize(
    "argv",
    [
        MODEL,
        CHAPTER,
        [*MODEL, "--batch", "100000", "--chips", "1000"],
        ["idle", "--params", "7e9", "--chip", "T4", "--dtype", "int8", "--model", "mistral-7b-v0.1"],
        ["idle", "--params", "200e9", "--bandwidth", "1.23e12", "--peak", "275e12", "--chips", "32"],
        ["idle", "--params", "1e15", "--bandwidth", "1e6", "--peak", "1e6", "--weight-bytes", "64", "--price", "1e6"],
        ["idle", "--params", "1", "--bandwidth", "1e18", "--peak", "1e18", "--chips", "1000000", "--price", "1e-4"],
        [*MODEL, "--batch", "1000000", "--context", "10000000", "--kv-bytes", "64"],
    ],
)
def test_a_screen_fits_a_terminal(capsys, argv):
    (text,) = screen(capsys, *argv)["text"]
    lines = text.splitlines()
    assert text.isascii() and len(lines) <= 34 and max(map(len, lines)) <= 100
    assert not any(line != line.rstrip() for line in lines)
    table = lines[lines.index("") + 1 : lines.index("", lines.index("") + 1)]
    columns = 1 + ("--model" in argv)
    assert len({len(line) for line in table}) == 1, "columns that do not end in line"
    assert len(table) > 10 and len(table[0].split("  ")) >= columns


def test_what_does_not_apply_is_not_said(capsys):
    (text,) = screen(capsys, *MODEL, "--chips", "2", "--batch", "2", "--context", "1")["text"]
    assert "does not fit" not in text and "Give --" not in text and "below" not in text
    (text,) = screen(capsys, "idle", "--chip", "H100 SXM", "--params", "7e9", "--batch", "500")["text"]
    assert "memory is busy" not in text
    assert "memory unknown" in screen(capsys, "idle", "--chip", "Apple M4", "--params", "1e9")["text"][0]


def test_a_model_that_only_the_datasheet_keeps_out(capsys):
    (text,) = screen(capsys, "idle", "--chip", "H200", "--model", "Llama-3.1-70B")["text"]
    assert "The driver decides" in text  # an H200 reports 150.8 GB, its datasheet says 141
    (text,) = screen(capsys, "idle", "--chip", "H100 SXM", "--model", "Llama-3.1-70B")["text"]
    assert "The driver decides" not in text


def test_two_chips_are_told(capsys):
    rows = screen(capsys, *CHAPTER, "--chips", "2")
    assert rows["fits 2 chips"] == ["yes"]
    assert rows["tokens/s, each user"] == ["47.86"]
    assert rows["text"][0].startswith("2 x H100 SXM: bf16 989.4 TFLOP/s")


@pytest.mark.parametrize(
    ("value", "text"),
    [(140e9, "140.0 GB"), (999.4, "999.4 B"), (0.04179e12, "41.79 GB"), (2, "2.000 B"), (5e-4, "500.0 uB")],
)
def test_units(value, text):
    assert unit(value, "B") == text


def test_digits_are_four_or_more():
    assert [digits(x) for x in (23.928, 1e6, 1234.5, 0.01234567, 999.96, 1.7777e19)] == [
        "23.93",
        "1,000,000",
        "1,234",
        "0.01235",
        "1,000",
        "1.778e+19",
    ]


# --- JSON ------------------------------------------------------------------------------------------------------------


def test_json_says_the_same_unrounded(capsys):
    found = as_json(capsys, *MODEL)
    rough, exact = found["readings"]["weights only"], found["readings"]["exact"]
    assert rough["bytes"] == 140e9
    assert rough["seconds"] == pytest.approx(140e9 / 3.35e12)
    assert rough["dollars_per_million"] == pytest.approx([46.43, 92.87], abs=0.005)
    assert exact["step_crosses_at_batch"] is None
    assert sum(d["bytes"] for d in found["differences"]) == pytest.approx(exact["bytes"] - rough["bytes"])
    assert found["step"]["peak_flop_per_s"] == 989.4e12
    assert (found["step"]["context"], found["step"]["price"]) == (8192, [4, 8])


def test_the_model_gives_the_parameters(capsys):
    found = as_json(capsys, "idle", "--chip", "h100 sxm", "--model", "llama-3.1-70b")
    assert found["step"]["parameters"] == 70_553_706_496
    assert found["readings"]["weights only"]["bytes"] == 2 * 70_553_706_496


def test_every_option_reaches_the_arithmetic(capsys):
    base = [*MODEL, "--weight-bytes", "2"]
    was = as_json(capsys, *base)["readings"]["exact"]
    for option, value, field, factor in [
        ("--batch", "2", "flops", 2),
        ("--kv-bytes", "1", "step_flop_per_byte_limit", 2),
        ("--context", "16384", "step_flop_per_byte_limit", 0.5),
        ("--chips", "2", "tokens_per_s", 2),
        ("--weight-bytes", "1", "matmuls_cross_at_batch", 0.5),
        ("--dtype", "fp8", "matmuls_cross_at_batch", 1979 / 989.4),
        ("--chip", "H200", "tokens_per_s", 4.8 / 3.35),
    ]:
        now = as_json(capsys, *base, option, value)["readings"]["exact"]
        assert now[field] == pytest.approx(was[field] * factor, rel=0.15 if option == "--context" else 1e-6), option
    assert as_json(capsys, *base, "--params", "35e9")["readings"]["weights only"]["bytes"] == 70e9
    single = as_json(capsys, *base, "--price", "4")["readings"]["exact"]["dollars_per_million"]
    assert single == [was["dollars_per_million"][0]] * 2


def test_own_rates_replace_the_catalogues(capsys):
    found = as_json(capsys, "idle", "--params", "200e9", "--bandwidth", "1.23e12", "--peak", "275e12", "--chips", "32")
    reading = found["readings"]["weights only"]
    assert f"{1e3 * reading['seconds']:.0f}" == "10"
    assert (reading["fits"], reading["chips_needed"]) == (None, None)
    found = as_json(capsys, *CHAPTER, "--bandwidth", "2.7e12", "--peak", "794e12")
    assert found["step"]["ridge_flop_per_byte"] == pytest.approx(794 / 2.7)
    assert found["step"]["memory_bytes"] == 80e9  # the chip is still the one named


def test_a_chip_without_bf16_runs_what_it_has(capsys):
    assert as_json(capsys, "idle", "--chip", "T4", "--params", "1e9")["step"]["dtype"] == "fp16"


# --- bad values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--chip", "H100"], "H100 SXM, H100 PCIe"),
        (["--chip", "M3 Max"], "300 GB/s"),
        (["--chip", "H100 SMX"], "nearest: H100 SXM"),
        (["--chip", ""], "no chip ''"),
        (["--chip", "two\nlines"], "no chip"),
        (["--chip", "Apple M3 Max 300 GB/s"], "give --bandwidth and --peak"),
        (["--chip", "Apple M3 Max 300 GB/s", "--dtype", "fp32"], "give --bandwidth and --peak"),
        (["--chip", "T4", "--dtype", "bf16"], "no verified bf16 rate for T4"),
        (["--dtype", "fp7"], "fp8"),
        (["--model", "Llama-3.1-7B"], "nearest: Llama-3.1-"),
        (["--params", "70GB"], "'70GB': give a number above zero, for instance 70e9"),
        (["--params", "7.0.1B"], "'7.0.1B': give a number above zero"),
        (["--params", "2000000B"], "give a number from 1 to 1e+15"),
        (["--weight-bytes", "two"], "'two': give a number above zero, for instance 2"),
        (["--params", "0.5"], "'0.5': give a number from 1 to 1e+15"),
        (["--params", "1e308", "--batch", "10"], "'1e308': give a number from 1 to 1e+15"),
        (["--weight-bytes", "65"], "from 0.01 to 64"),
        (["--kv-bytes", "1e-3"], "from 0.01 to 64"),
        (["--context", "10000001"], "from 1 to 10,000,000"),
        (["--chips", "1000001"], "from 1 to 1,000,000"),
        (["--batch", "9" * 200], f"'{'9' * 21}...': give a whole number from 1 to 1,000,000"),
        (["--batch", "9" * 5000], "give a whole number"),
        (["--batch", "2.5"], "give a whole number, 1 or more"),
        (["--price", "8:4"], "wrong way round: give 4:8"),
        (["--price", "4-8"], "LOW:HIGH"),
        (["--price", "4:6:8"], "LOW:HIGH"),
        (["--price", "0:8"], "lower price"),
        (["--price", "4:nan"], "upper price"),
        (["--price", "-4:8"], "lower price"),
        (["--price", "1e308"], "'1e308': give dollars for a chip and hour, from 0.0001 to 1,000,000"),
        (["--price", "1e-5:1"], "from 0.0001 to"),
        (["--bandwidth", "3e12"], "--bandwidth without --peak"),
        (["--peak", "3e12"], "--peak without --bandwidth"),
        (["--bandwidth", "1e-300", "--peak", "1e-300"], "'1e-300': give a number from 1e+06 to 1e+18"),
        (["--bandwidth", "1e12", "--peak", "1e19"], "from 1e+06 to 1e+18"),
        (["--batch"], "expected one argument"),
        (["--what", "two\nlines"], "unrecognized"),
    ],
)
def test_bad_values_get_one_line(capsys, change, says):
    assert says in refused(capsys, *CHAPTER, *change)


@pytest.mark.parametrize("words", ["70B", "70b", "70000M", "70e9"])
def test_parameters_may_be_written_as_models_are_named(capsys, words):
    assert main([*CHAPTER, "--params", words]) == 0
    assert "70,000,000,000 parameters" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["0", "-1", "-7e9", "nan", "-inf", "inf", "x", "", "1,5"])
@pytest.mark.parametrize(
    "option", ["params", "weight-bytes", "kv-bytes", "batch", "context", "chips", "bandwidth", "peak", "price"]
)
def test_values_that_are_no_positive_number(capsys, option, value):
    message = refused(capsys, *MODEL, f"--{option}", value)
    assert f"--{option}" in message and "give" in message


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "give a command, idle or measure or check"),
        (["idel"], "idle"),
        (["idle"], "give --chip NAME"),
        (["idle", "--params", "7e9"], "give --chip NAME"),
        (["idle", "--chip", "L4"], "give --params"),
    ],
)
def test_what_is_missing_is_asked_for(capsys, argv, says):
    assert says in refused(capsys, *argv)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["chip", "params", "model", "batch", "context", "kv-bytes", "price", "bandwidth", "peak"]),
        st.text(max_size=8) | st.floats().map(str) | st.integers().map(str) | st.sampled_from(["4:8", "T4", "1e9"]),
    )
)
def test_nothing_ends_in_a_traceback(capsys, options):
    argv = [*MODEL, *(word for option, value in options.items() for word in (f"--{option}", value))]
    try:
        assert main(argv) == 0
        capsys.readouterr()
    except SystemExit as stop:
        assert stop.code == 2
        assert capsys.readouterr().err.count("\n") == 1


# --- as a process ----------------------------------------------------------------------------------------------------


def run(*argv: str, cwd) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, cwd=cwd, timeout=120)


def test_from_any_folder(tmp_path):
    done = run("-m", "chapter01", *CHAPTER, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "99.66 %" in done.stdout


def test_a_bad_value_ends_the_process_with_2(tmp_path):
    done = run("-m", "chapter01", *CHAPTER, "--chip", "H100", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "H100 PCIe" in done.stderr


def test_a_command_that_only_calculates_loads_nothing_heavy(tmp_path):
    code = (
        "import sys; from chapter01.__main__ import main; main(sys.argv[1:]); "
        "print(sorted({'torch', 'numpy', 'matplotlib', 'ipywidgets', 'IPython'} & set(sys.modules)))"
    )
    done = run("-c", code, *MODEL, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
