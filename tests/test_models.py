"""The catalogue of shapes against transformers' own classes, built without memory on the meta device."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from utils.models import MODELS, Shape, find

# Parameters and KV bytes a token at 16 bits.
PUBLISHED = {
    "SmolLM2-135M": (134_515_008, 23_040),
    "SmolLM2-360M": (361_821_120, 40_960),
    "SmolLM2-1.7B": (1_711_376_384, 196_608),
    "Llama-3.2-1B": (1_235_814_400, 32_768),
    "Llama-3.2-3B": (3_212_749_824, 114_688),
    "Llama-2-7B": (6_738_415_616, 524_288),
    "Llama-3.1-8B": (8_030_261_248, 131_072),
    "Llama-2-13B": (13_015_864_320, 819_200),
    "Llama-2-70B": (68_976_648_192, 327_680),
    "Llama-3.1-70B": (70_553_706_496, 327_680),
    "Llama-3.1-405B": (405_853_388_800, 516_096),
    "Mistral-7B-v0.1": (7_241_732_096, 131_072),
}


def transformers_model(shape: Shape) -> torch.nn.Module:
    """The same architecture by its published class, without memory."""
    mistral = shape.name.startswith("Mistral")
    config = (MistralConfig if mistral else LlamaConfig)(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.ffn,
        vocab_size=shape.vocab,
        tie_word_embeddings=shape.tied,
    )
    with torch.device("meta"):
        return (MistralForCausalLM if mistral else LlamaForCausalLM)(config)


def count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())  # a tied weight once


def test_the_catalogue_holds_these_models():
    assert {shape.name for shape in MODELS.values()} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_to_the_unit(name):
    shape, oracle = find(name), transformers_model(find(name))
    assert (shape.parameters, shape.kv_bytes_per_token()) == PUBLISHED[name]
    assert shape.parameters == count(oracle)
    assert shape.layer_parameters == count(oracle.model.layers[0])
    unread = 0 if shape.tied else oracle.get_input_embeddings().weight.numel()
    assert shape.read_parameters == count(oracle) - unread


def test_widths_that_are_not_the_hidden_width():
    shape = Shape("odd", layers=3, hidden=48, heads=6, kv_heads=2, head_dim=16, ffn=56, vocab=77, tied=False)
    oracle = transformers_model(shape)
    assert shape.parameters == count(oracle)
    attention = oracle.model.layers[0].self_attn
    assert shape.q_width == attention.q_proj.out_features
    assert shape.kv_width == attention.k_proj.out_features


def test_kv_grows_with_its_bytes_and_not_with_the_query_heads():
    shape = find("Llama-3.1-70B")  # 8 of 64 heads hold keys and values
    assert shape.kv_bytes_per_token(1) == shape.kv_bytes_per_token(2) / 2
    assert shape.kv_bytes_per_token(0.5) == 80 * 2 * 8 * 128 / 2


def test_find_ignores_case():
    assert find(" llama-3.1-70b ") is find("LLAMA-3.1-70B") is MODELS["llama-3.1-70b"]


@pytest.mark.parametrize(
    ("asked", "offered"),
    [("llama-3.1-8", "Llama-3.1-8B"), ("smollm2", "SmolLM2-135M"), ("70b", "Llama-2-70B")],
)
def test_an_unknown_model_gets_the_nearest_names(asked, offered):
    with pytest.raises(ValueError, match=f"no model '{asked}'") as error:
        find(asked)
    assert offered in str(error.value)


def test_a_name_like_no_other_gets_the_whole_list():
    with pytest.raises(ValueError) as error:
        find("xyzzy")
    assert all(shape.name in str(error.value) for shape in MODELS.values())
