"""Tokens per second of the embedded model in fp32, beside transformers' `generate` on the same weights.

A timing that is read, not passed or failed: `python tests/benchmarks/bench_decode.py`.
"""

import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chapter01 import loop
from utils import device, timing, weights

COUNT = 48


def peer_of(model) -> LlamaForCausalLM:
    """transformers' model of the same shape, with the same weights."""
    shape = model.shape
    config = LlamaConfig(
        num_hidden_layers=shape.layers, hidden_size=shape.hidden, num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads, intermediate_size=shape.ffn, vocab_size=shape.vocab,
        tie_word_embeddings=shape.tied, rope_parameters={"rope_type": "default", "rope_theta": shape.rope_base},
        rms_norm_eps=shape.norm_eps,
    )  # fmt: skip
    peer = LlamaForCausalLM(config).eval()
    names = {"self_attn.": "attention.", "mlp.": "ffn.", "o_proj": "out", "model.": "", "gate_proj": "gate",
             "up_proj": "up", "down_proj": "down",
             "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "embed_tokens": "embed",
             "lm_head": "head"}  # fmt: skip
    ours = model.state_dict()
    parts = {"q_proj": (0, shape.q_width), "k_proj": (shape.q_width, shape.kv_width)}
    parts |= {"v_proj": (shape.q_width + shape.kv_width, shape.kv_width)}
    for name, weight in peer.state_dict().items():
        mine = name
        for theirs, our in names.items():
            mine = mine.replace(theirs, our)
        part = next((p for p in parts if p in mine), None)
        if part:
            start, rows = parts[part]
            weight.copy_(ours[mine.replace(part, "qkv")][start : start + rows])
        else:
            weight.copy_(ours[mine])
    return peer


def bench():
    where = device.prepare()
    model, tokenizer = weights.load_embedded(where)
    peer = peer_of(model).to(where)
    prompt = tokenizer.encode("The capital of France is")
    theirs_prompt = torch.tensor([prompt], device=where)

    def ours():
        return loop.generate(model, prompt, COUNT)

    def theirs():
        out = peer.generate(
            theirs_prompt,
            max_new_tokens=COUNT,
            min_new_tokens=COUNT,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        return out[0, len(prompt) :].tolist()

    assert ours()[:8] == theirs()[:8]  # the same work: the same text
    timings = timing.interleave({"ours": ours, "theirs": theirs}, where, budget_s=20, least=4)
    print(f"\n{device.describe(where)}, torch {torch.__version__}, {COUNT} tokens, fp32")
    for name, timed in timings.items():
        print(f"{name:7} {COUNT / timed.median_s:6.1f} tokens a second   {timed}")
    print(f"ours / theirs: {timing.ratio(timings['theirs'], timings['ours']):.2f} times as many tokens a second")


if __name__ == "__main__":
    bench()
