"""The product of a few rows with a weight, by whichever of torch's routes this machine runs faster.

On some CPUs torch's plain product of one row keeps a single thread busy and reads weights at half the machine's
bandwidth or less. Its batched product shares the same work among all threads. Which one is faster is measured here,
once in a process for each number of rows, on a weight that is no part of any model.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.timing import interleave, ratio

PIECES = 16  # of a weight: a power of two divides the widths of most models, and shares the work among most threads
MOST_ROWS = 64  # with more, the plain product keeps every thread busy
GAIN = 1.10  # a gain below this could be chance


class Linear(nn.Linear):
    """A matrix product without bias, weight [outer, inner]."""

    def __init__(self, inner: int, outer: int):
        super().__init__(inner, outer, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return multiply(x, self.weight)


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., inner] times weight [outer, inner], to [..., outer]: F.linear but for the order of additions."""
    rows = x.numel() // x.shape[-1]
    few = _has_two_routes(weight) and 0 < rows <= MOST_ROWS
    if few and len(weight) % PIECES == 0 and _pieces_are_faster(rows.bit_length() - 1, torch.get_num_threads()):
        return in_pieces(x, weight)
    return F.linear(x, weight)


def settle(weight: Tensor, rows: int) -> None:
    """Choose the routes for up to so many rows with such weights now: within a timed run, that would be timed too."""
    if _has_two_routes(weight):
        for log_rows in range(min(rows, MOST_ROWS).bit_length()):
            _pieces_are_faster(log_rows, torch.get_num_threads())


def in_pieces(x: Tensor, weight: Tensor) -> Tensor:
    """The same product as a batched one: each piece of the weight gives its own share of the outputs."""
    pieces = weight.unflatten(0, (PIECES, -1)).transpose(1, 2)  # [PIECES, inner, outer / PIECES], a view
    y = torch.bmm(x.reshape(1, -1, x.shape[-1]).expand(PIECES, -1, -1), pieces)  # [PIECES, rows, outer / PIECES]
    return y.transpose(0, 1).reshape(*x.shape[:-1], len(weight))


def _has_two_routes(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32


@lru_cache
def _pieces_are_faster(log_rows: int, threads: int) -> bool:
    """Time both routes, in turns, with 2^log_rows rows and a weight of 32 MiB."""
    chance = torch.Generator().manual_seed(0)  # of its own: the reader's seeds are left alone
    x, weight = (torch.empty(n, 2048).normal_(generator=chance) for n in (2**log_rows, 4096))
    calls = {"plain": lambda: F.linear(x, weight), "pieces": lambda: in_pieces(x, weight)}
    timed = interleave(calls, weight.device, budget_s=0.05)
    return ratio(timed["plain"], timed["pieces"]) > GAIN
