"""Passes captured as CUDA graphs: the GPU gets all kernels of a pass at once, instead of one by one from Python.

Launching a kernel from Python takes microseconds, and a decode step of a small model has hundreds of kernels that take
less than that. A captured pass runs the same kernels on the same memory again, without Python. So it is fixed: its
length cannot come from Python, and what it reads has to be copied to where it looks. Devices without graphs run the
pass as it is.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import cache as once
from typing import TypeVar

import torch
from torch import Tensor

from utils.decoder import Decoder, KVCache

WINDOW = 256  # positions: a step reads whole windows of the cache, so that one graph serves many lengths
WARM_UP_RUNS = 2  # libraries set themselves up in a first run, which a graph must not hold

Result = TypeVar("Result")


def captures(device: torch.device) -> bool:
    """Whether passes on this device are captured."""
    return device.type == "cuda"


def capture(call: Callable[[], Result], device: torch.device) -> Callable[[], Result]:
    """The call as a CUDA graph, after a few runs to warm up; elsewhere the call itself.

    For calls whose kernels do not depend on anything that Python decides later, and that read no number back from the
    device. Every replay writes its result into the same memory: use it, or copy it, before the next one. Where CUDA
    refuses to capture, the call itself too, with a warning.
    """
    if not captures(device):
        return call
    try:
        return _captured(call, device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # CUDA names its reason in the first line
        reason = str(error).split("\n")[0]
        warnings.warn(f"not captured, so each step waits for its launches from Python: {reason}", stacklevel=2)
        return call


def _captured(call: Callable[[], Result], device: torch.device) -> Callable[[], Result]:
    with torch.cuda.device(device):
        stream = _side_stream(device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_RUNS):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            result = call()
    held = call, result  # a graph knows addresses, not tensors: what lies there has to stay

    def replay() -> Result:
        graph.replay()
        return held[1]

    return replay


@once
def _side_stream(device: torch.device) -> "torch.cuda.Stream":
    """One stream for all captures: libraries keep memory for every stream that they have seen."""
    return torch.cuda.Stream(device)


# --- a decode step whose length grows --------------------------------------------------------------------------------


def decode_step(
    model: Decoder, cache: KVCache, contexts: range, rows: Sequence[int] = (1,), all_logits: bool = False
) -> Callable[[Tensor], Tensor]:
    """`model(tokens, cache, all_logits)` as a function of the tokens alone, for a loop; captured where that can be.

    Args:
        model: the decoder.
        cache: as for the decoder: a step writes behind the used positions, and `used` grows.
        contexts: values of `cache.used` at which steps will be asked for. Their graphs are captured here, before any
            step is timed; positions of the cache from contexts.start on are overwritten.
        rows: how many tokens a step may bring.
        all_logits: as for the decoder.

    Returns:
        Tokens [B, N] -> logits [B, vocab], or [B, N, vocab] with `all_logits`; the next step overwrites them.
    """
    if captures(cache.k.device):
        return step_in_windows(model, cache, contexts, rows, all_logits)
    return lambda tokens: model(tokens, cache, all_logits)


def step_in_windows(
    model: Decoder, cache: KVCache, contexts: range, rows: Sequence[int] = (1,), all_logits: bool = False
) -> Callable[[Tensor], Tensor]:
    """`decode_step` with the position on the device, and one captured pass for each window of the cache.

    The step raises ValueError where it has no captured pass, or where the cache is full.
    """
    position = torch.full((1,), contexts.start, device=cache.k.device)
    passes = {}
    for new in rows:
        ends = [context + new for context in contexts if context + new <= cache.length]
        for length in sorted({window(end, cache) for end in ends}):
            tokens = torch.zeros(cache.k.shape[1], new, dtype=torch.long, device=cache.k.device)
            call = _pass_in_window(model, Window(cache, length), tokens, position, all_logits)
            passes[new, length] = tokens, capture(call, cache.k.device)

    def step(tokens: Tensor) -> Tensor:
        new, end = tokens.shape[1], cache.used + tokens.shape[1]
        found = passes.get((new, window(end, cache))) if end <= cache.length else None
        if found is None:
            raise ValueError(
                f"{new} new tokens after {cache.used} cached ones: steps of {', '.join(map(str, rows))} tokens after "
                f"{contexts.start} to {contexts.stop - 1} were captured, and the cache holds {cache.length}: "
                "name all rows and contexts beforehand, and make the cache long enough"
            )
        read, replay = found
        read.copy_(tokens)
        position.fill_(cache.used)
        logits = replay()
        cache.used = end
        return logits

    return step


def window(end: int, cache: KVCache) -> int:
    """How many positions a pass reads that ends at `end`: the next multiple of WINDOW, or all that the cache has."""
    return min(-(-end // WINDOW) * WINDOW, cache.length)


class Window(KVCache):
    """The first `length` positions of another cache, whose memory it shares, for passes at a position on the device."""

    def __init__(self, cache: KVCache, length: int):
        self.k, self.v = cache.k[:, :, :, :length], cache.v[:, :, :, :length]
        self.cos, self.sin = cache.cos, cache.sin
        self.layers = list(zip(self.k, self.v, strict=True))
        self.length = length

    def move(self, position: Tensor, new: int) -> None:
        """Go to a position [1]: the pass writes its new tokens there, and sees nothing behind each of them."""
        self.at = position + torch.arange(new, device=position.device)  # [N]
        behind = torch.arange(self.length, device=position.device) > self.at[:, None]  # [N, length]
        self.seen = torch.zeros_like(behind, dtype=self.k.dtype).masked_fill_(behind, float("-inf"))
        self.used = self.length - new  # for Python it is the last place in the window

    def rotary(self, new: int) -> tuple[Tensor, Tensor]:
        return self.cos.index_select(0, self.at), self.sin.index_select(0, self.at)

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        all_k, all_v = self.layers[layer]
        return all_k.index_copy_(2, self.at, k), all_v.index_copy_(2, self.at, v)


def _pass_in_window(
    model: Decoder, cache: Window, tokens: Tensor, position: Tensor, all_logits: bool
) -> Callable[[], Tensor]:
    def call() -> Tensor:
        cache.move(position, tokens.shape[1])
        return model(tokens, cache, all_logits)

    return call
