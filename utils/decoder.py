"""A Llama-family decoder in plain torch: one `forward` for both workloads.

Prefill is `forward(tokens [batch, sequence], cache)`, decode is `forward(tokens [batch, 1], cache)`. The code path and
the weights are the same; only the number of new positions differs. Letters in the shape comments:

    B batch   N new positions   T all positions, cached ones included   D hidden width
    H query heads   G key/value heads   R = H / G query heads that share one key/value head   E width of one head

The architecture is that of "LLaMA: Open and Efficient Foundation Language Models" (Touvron et al., 2023):
RMSNorm before each block, rotary positions, SwiGLU, no biases; grouped-query attention as in Llama 2.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.models import RopeScaling, Shape
from utils.products import Linear


class KVCache:
    """Keys and values of every position seen so far, in memory that is allocated once.

    `k` and `v` are [layers, B, G, length, E]; `used` says how many positions are filled. Setting `used` back to a
    smaller number forgets the positions after it: nothing needs to be erased.
    """

    seen: Tensor | None = None  # added to the scores of attention where `extend` returns more than the positions so far

    def __init__(
        self,
        shape: Shape,
        batch: int,
        length: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        size = (shape.layers, batch, shape.kv_heads, length, shape.head_dim)
        self.k = torch.zeros(size, device=device, dtype=dtype)
        self.v = torch.zeros(size, device=device, dtype=dtype)
        self.cos, self.sin = (table.to(device, dtype) for table in rotary_tables(shape, length))
        self.layers = list(zip(self.k, self.v, strict=True))  # views, made once
        self.length = length
        self.used = 0

    def rotary(self, new: int) -> tuple[Tensor, Tensor]:
        """Rows [N, E] of the rotary tables for N new positions after the used ones."""
        at = slice(self.used, self.used + new)
        return self.cos[at], self.sin[at]

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys and values [B, G, N, E] of one layer after the used ones; return views of all T so far."""
        all_k, all_v = self.layers[layer]
        end = self.used + k.shape[2]
        all_k[:, :, self.used : end] = k
        all_v[:, :, self.used : end] = v
        return all_k[:, :, :end], all_v[:, :, :end]


def rotary_tables(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine [length, E] of the angle by which each position turns each pair of a head's numbers.

    The pair is (i, i + E/2) and turns by position / base^(2i/E) (RoFormer, Su et al., 2021). The sines of the first
    half are negated, so that `rotate` needs one roll. Llama 3.1 and later stretch the slow pairs for long contexts.
    """
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    turn = shape.rope_base**-half  # radians per position
    if shape.rope_scaling is not None:
        turn = stretched(turn, shape.rope_scaling)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), turn)
    cos, sin = angle.cos().float(), angle.sin().float()
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def stretched(turn: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's frequency scaling: pairs slower than the original context are divided by a factor, fast ones kept."""
    turns = scaling.original_context * turn / (2 * math.pi)  # full turns over the original context
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clamp(0, 1)
    return keep * turn + (1 - keep) * turn / scaling.factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn queries or keys [B, heads, N, E] to their positions; cos and sin [N, E] from `rotary_tables`."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


class Attention(nn.Module):
    """Causal grouped-query attention over the cache."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.qkv = Linear(shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
        self.out = Linear(shape.heads * shape.head_dim, shape.hidden)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], cache: KVCache, layer: int) -> Tensor:
        B, N, _ = x.shape
        qkv = self.qkv(x).view(B, N, self.heads + 2 * self.kv_heads, self.head_dim).transpose(1, 2)
        qk, v = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
        q, k = rotate(qk, *rotary).split([self.heads, self.kv_heads], dim=1)  # [B, H, N, E], [B, G, N, E]
        k, v = cache.extend(layer, k, v)  # [B, G, T, E]
        y = attend(q, k, v, cache.seen)  # [B, H, N, E]
        return self.out(y.transpose(1, 2).reshape(B, N, -1))


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    """What the last N of T positions attend to: q [B, H, N, E], k and v [B, G, T, E] -> [B, H, N, E].

    With `seen` [N, T], zeros and minus infinities, the N positions may lie anywhere among the T.
    """
    B, H, N, E = q.shape
    G, T = k.shape[1:3]
    if N == 1:
        # The R queries that share a key/value head become rows of one product: each K and V byte is read once.
        return F.scaled_dot_product_attention(q.reshape(B, G, H // G, E), k, v, seen).reshape(B, H, 1, E)
    if N == T and seen is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    # Some positions were cached before: new position i sees all T - N of them and the new ones up to itself.
    if seen is None:
        seen = torch.ones(N, T, dtype=torch.bool, device=q.device).tril(T - N)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.gate = Linear(shape.hidden, shape.ffn)
        self.up = Linear(shape.hidden, shape.ffn)
        self.down = Linear(shape.ffn, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)).mul_(self.up(x)))  # in place: one block of memory less to fetch


class Layer(nn.Module):
    """One of the stacked blocks: x + attention, then x + feed-forward, each behind an RMSNorm."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.ffn = FeedForward(shape)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], cache: KVCache, layer: int) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, cache, layer)
        return x + self.ffn(self.ffn_norm(x))


class Decoder(nn.Module):
    """Token ids in, one row of logits out; see the module's text for the shapes."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        # Its default, a normal distribution, would import torch's compiler on the meta device: that takes seconds.
        self.embed = nn.Embedding.from_pretrained(torch.empty(shape.vocab, shape.hidden).uniform_(-1, 1))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.head = Linear(shape.hidden, shape.vocab)
        if shape.tied:
            self.head.weight = self.embed.weight
        self.requires_grad_(False)

    def forward(self, tokens: Tensor, cache: KVCache, all_logits: bool = False) -> Tensor:
        """Read N new tokens, with the cached ones before them, and score what comes next.

        Args:
            tokens: [B, N] integer token ids.
            cache: holds the positions before; the new ones are written behind them, and `cache.used` grows by N.
            all_logits: score after every new position, not only after the last.

        Returns:
            Logits [B, vocab], or [B, N, vocab] with `all_logits`.

        Raises:
            ValueError: the new tokens do not fit into the cache, or there are none.
        """
        start, end = cache.used, cache.used + tokens.shape[1]
        if end == start or end > cache.length:
            raise ValueError(
                f"{end - start} new tokens after {start} cached ones, and the cache holds {cache.length}: "
                "give at least one token, and make the cache as long as prompt and answer together"
            )
        rotary = cache.rotary(end - start)  # [N, E] each
        with torch.inference_mode():  # nothing is kept for gradients: a step's hundreds of small calls take less
            x = self.embed(tokens)  # [B, N, D]
            for i, layer in enumerate(self.layers):
                x = layer(x, rotary, cache, i)
        cache.used = end
        return self.head(self.norm(x if all_logits else x[:, -1]))
