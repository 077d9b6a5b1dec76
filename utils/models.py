"""Shapes of well-known decoders, and their parameters counted to the unit.

The shapes are those of the published `config.json` files. Only what decides sizes and times is filled in
here: the rotary base, the norms' epsilon and the frequency scaling stay at their defaults, since they change
neither, and real weights bring their own configuration. Mistral's sliding window (4,096 positions) is left out:
its counts hold up to that context.
"""

from dataclasses import dataclass

from utils.chips import nearest


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's stretching of slow rotary frequencies; names as in `config.json`, in short."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int  # positions


@dataclass(frozen=True)
class Shape:
    """A Llama-family decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases."""

    name: str
    layers: int
    hidden: int  # width of the residual stream
    heads: int  # query heads
    kv_heads: int  # key/value heads, each shared by heads / kv_heads query heads
    head_dim: int
    ffn: int  # inner width of the feed-forward block
    vocab: int
    tied: bool  # the output head is the input embedding
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    rope_scaling: RopeScaling | None = None

    @property
    def q_width(self) -> int:
        """Width of one token's queries, all heads together; hidden in most models, but not by necessity."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of one token's keys (and of its values) in one layer."""
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer, its two norms included."""
        attention = self.hidden * (2 * self.q_width + 2 * self.kv_width)  # q and out; k and v
        return attention + 3 * self.hidden * self.ffn + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, norms included; a tied embedding counts once."""
        embedding = self.vocab * self.hidden
        return self.layers * self.layer_parameters + self.hidden + embedding * (1 if self.tied else 2)

    @property
    def read_parameters(self) -> int:
        """Parameters that one decode step reads.

        Of the input embedding it needs one row a token: an untied one is left out, a tied one is read whole,
        as the output head.
        """
        return self.parameters - (0 if self.tied else self.vocab * self.hidden)

    def kv_bytes_per_token(self, kv_bytes: float = 2) -> float:
        """Bytes of keys and values that one token leaves in the cache, at `kv_bytes` bytes a number."""
        return 2 * self.layers * self.kv_width * kv_bytes


# name, layers, hidden, heads, kv_heads, head_dim, ffn, vocab, tied
_TABLE = [
    Shape("SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49152, True),
    Shape("SmolLM2-360M", 32, 960, 15, 5, 64, 2560, 49152, True),
    Shape("SmolLM2-1.7B", 24, 2048, 32, 32, 64, 8192, 49152, True),
    Shape("Llama-3.2-1B", 16, 2048, 32, 8, 64, 8192, 128256, True),
    Shape("Llama-3.2-3B", 28, 3072, 24, 8, 128, 8192, 128256, True),
    Shape("Llama-2-7B", 32, 4096, 32, 32, 128, 11008, 32000, False),
    Shape("Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256, False),
    Shape("Llama-2-13B", 40, 5120, 40, 40, 128, 13824, 32000, False),
    Shape("Llama-2-70B", 80, 8192, 64, 8, 128, 28672, 32000, False),
    Shape("Llama-3.1-70B", 80, 8192, 64, 8, 128, 28672, 128256, False),
    Shape("Llama-3.1-405B", 126, 16384, 128, 8, 128, 53248, 128256, False),
    Shape("Mistral-7B-v0.1", 32, 4096, 32, 8, 128, 14336, 32000, False),
]

MODELS = {shape.name.lower(): shape for shape in _TABLE}


def find(name: str) -> Shape:
    """The shape of that name, in any case.

    Raises:
        ValueError: no such name; the nearest ones are offered.
    """
    shape = MODELS.get(name.strip().lower())
    if shape is None:
        known = nearest(name, (shape.name for shape in _TABLE))
        raise ValueError(f"no model {name!r} in the catalogue; nearest: {known}")
    return shape
