"""Two levers on this machine: `python tests/benchmarks/bench_levers.py [MODEL]`.

Speculation by prompt look-up on the embedded model in fp32, on text that repeats itself and on ordinary prose: guesses
that were right, and the gain over single steps, foretold and measured. Then batch 16 beside batch 1 on a model of a
billion parameters or more (Llama-3.2-1B's shape with random weights, if none is named): in fp32 with torch's stock
kernels, with weights that oneDNN packs through torch's public `to_mkldnn`, with one byte a weight, and with two that
FBGEMM packs. Run it on a machine that does nothing else.
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chapter01 import levers, speeds
from utils import device, models, timing, weights
from utils.decoder import Decoder

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PASSAGE = (
    "A chip has two parts. One reads numbers from memory, the other multiplies them. When a model writes, the first "
    "part works all the time, and the second one waits. A prompt is different: its tokens come all at once."
)
TESTS = "".join(f"def test_add_{n}():\n    assert add({n}, {n}) == {2 * n}\n\n" for n in range(1, 6))
TEXTS = {
    "repetitive: copy a passage": CHAT.format(f"Copy this text without a change:\n\n{PASSAGE}"),
    "repetitive: unit tests": TESTS,
    "prose: a story": CHAT.format("Tell me a short story about a lighthouse keeper."),
    "prose: an explanation": CHAT.format("Why is the sky blue? Explain in one paragraph."),
    "prose: a novel": "The old harbour had seen better days, and the fishermen who still",
}


def bench_speculation(where: torch.device, count: int = 64) -> None:
    """Acceptance and gain on each text, for few guesses a pass and for many."""
    model, tokenizer = weights.load_embedded(where)
    by_rows = levers.time_rows(model)
    print("rows of a pass: " + ", ".join(f"{rows}: {1e3 * t.median_s:.1f} ms" for rows, t in by_rows.items()))
    for name, text in TEXTS.items():
        for k in (2, 15):
            race = levers.race(model, by_rows, tokenizer.encode(text), count, k)
            passes = race.written.passes
            share, guessed = levers.acceptance(passes), sum(p.guessed for p in passes)
            rates = [count / took.median_s for took in (race.steps, race.speculation)]
            print(f"{name}, {k} guesses a pass: {share:.0%} of {guessed} right", end=", ")
            print(f"{levers.tokens_per_pass(passes):.2f} tokens a pass, foretold {race.foretold:.2f} x", end=", ")
            print(f"measured {race.gain:.2f} x, {rates[0]:.1f} to {rates[1]:.1f} tokens/s", flush=True)


class Packed(nn.Module):
    """A product with weights in oneDNN's own layout; inputs and results are plain tensors."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        from torch.utils import mkldnn

        self.product = mkldnn.to_mkldnn(linear)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


def pack(model: Decoder, product: Callable[[nn.Linear], nn.Module]) -> None:
    """Put `product` in the place of every matrix product, freeing the originals on the way."""
    for part in list(model.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, nn.Linear):
                setattr(part, name, product(child))
                if part is not model:  # the head shares its weight with the embedding
                    child.weight = None


def bench_batch(where: torch.device, name: str, context: int = 64) -> None:
    """Tokens a second at batch 1 and 16: fp32 as it comes, packed by oneDNN, in one byte and in two."""
    shape = models.find(name)
    kinds: dict[str, Callable[[nn.Linear], nn.Module] | None] = {"fp32, stock kernels": None}
    if where.type == "cpu":
        kinds |= {"fp32, packed by oneDNN": Packed, "one byte a weight": levers.with_byte_kernel}
        if levers.has_half_kernel(where):
            kinds |= {"fp16, packed by FBGEMM": levers.with_half_kernel}
    for kind, product in kinds.items():
        model = weights.random_decoder(shape, where)
        if product:
            pack(model, product)
        calls = {f"batch {n}": speeds.ready(model, n, 1, context) for n in (1, 16)}
        took = timing.interleave(calls, where, budget_s=6.0)
        gain = 16 / timing.ratio(took["batch 16"], took["batch 1"])
        print(
            f"{shape.name}, {shape.parameters / 1e9:.2f}e9 parameters, {kind}: {gain:.1f} x the tokens a second", end=""
        )
        print("".join(f"; {key} {t}, {int(key[6:]) / t.median_s:.1f} tokens/s" for key, t in took.items()), flush=True)
        del model, calls


if __name__ == "__main__":
    here = device.prepare()
    warnings.filterwarnings("ignore", message=".*mkldnn.*")
    print(device.describe(here), f"torch {torch.__version__}")
    bench_speculation(here)
    bench_batch(here, sys.argv[1] if len(sys.argv) > 1 else "Llama-3.2-1B")
