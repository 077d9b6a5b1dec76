"""The product of a few rows: the same numbers by both routes, and the route that is faster here."""

import time
from functools import lru_cache

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from chapter01 import loop
from utils import products
from utils.decoder import KVCache
from utils.weights import load_embedded

WEIGHT = torch.randn(64, 40)
X = torch.randn(3, 40)


@pytest.fixture
def forced(monkeypatch):
    """Set the outcome of the measurement."""
    return lambda faster: monkeypatch.setattr(products, "_pieces_are_faster", lambda *_: faster)


@pytest.fixture
def measured_anew():
    products._pieces_are_faster.cache_clear()
    yield
    products._pieces_are_faster.cache_clear()


def slowed(call):
    def slow(*args):
        time.sleep(0.02)
        return call(*args)

    return slow


@settings(deadline=None)  # the first call warms torch up
@given(
    leading=st.lists(st.integers(1, 5), max_size=3),
    inner=st.integers(1, 70),
    outer=st.integers(1, 6).map(lambda n: n * products.PIECES),
    strided=st.booleans(),
)
def test_pieces_give_the_plain_product(leading, inner, outer, strided):
    x = torch.randn(*leading, inner, 2)[..., 0] if strided else torch.randn(*leading, inner)
    weight = torch.randn(inner, outer).T if strided else torch.randn(outer, inner)
    torch.testing.assert_close(products.in_pieces(x, weight), F.linear(x, weight), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("slow", ["plain", "pieces"])
def test_the_route_that_is_faster_here_is_taken(monkeypatch, measured_anew, slow):
    took = []
    linear, in_pieces = products.F.linear, products.in_pieces
    for module, name, call in ((products.F, "linear", linear), (products, "in_pieces", in_pieces)):
        call = slowed(call) if (name == "linear") == (slow == "plain") else call
        monkeypatch.setattr(module, name, lambda *args, call=call, name=name: took.append(name) or call(*args))
    y = products.multiply(X, WEIGHT)
    assert took[-1] == ("in_pieces" if slow == "plain" else "linear")
    torch.testing.assert_close(y, linear(X, WEIGHT), atol=1e-4, rtol=1e-4)


def test_it_is_measured_once_for_about_as_many_rows(monkeypatch, measured_anew):
    asked, interleave = [], products.interleave
    monkeypatch.setattr(products, "interleave", lambda *a, **k: asked.append(1) or interleave(*a, **k))
    for rows in (4, 5, 7, 4):
        products.multiply(torch.randn(rows, 40), WEIGHT)
    assert len(asked) == 1


def test_a_run_that_is_timed_measures_no_route(monkeypatch, measured_anew):
    """Without a cache the rows grow with the text, from one class of rows to the next."""
    model, _ = load_embedded()
    running, asked, write = [], [], loop.perf_counter

    def clock():
        running.append(True)
        return write()

    faster = products._pieces_are_faster.__wrapped__
    monkeypatch.setattr(loop, "perf_counter", clock)
    monkeypatch.setattr(products, "_pieces_are_faster", lru_cache(lambda *a: asked.append(bool(running)) or faster(*a)))
    loop.timed_generate(model, [1, 2, 3], 7, cached=False)
    assert len(asked) == 4 and not any(asked)  # for 1, 2 and 3, 4 to 7, 8 to 10 rows


def test_measuring_leaves_the_seed_alone(measured_anew):
    torch.manual_seed(7)
    products.multiply(X, WEIGHT)
    drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(3))


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (torch.randn(products.MOST_ROWS + 1, 40), WEIGHT),  # many rows keep every thread busy
        (X.bfloat16(), WEIGHT.bfloat16()),
        (X, torch.randn(products.PIECES + 1, 40)),  # cannot be cut evenly
        (torch.randn(0, 40), WEIGHT),
        (X.to("meta"), WEIGHT.to("meta")),
    ],
    ids=["many rows", "another dtype", "odd width", "no rows", "another device"],
)
def test_where_pieces_bring_nothing_the_product_is_plain(forced, monkeypatch, x, weight):
    forced(True)
    monkeypatch.delattr(products, "in_pieces")
    assert products.multiply(x, weight).shape == (len(x), len(weight))


def test_the_real_model_writes_the_same_by_both_routes(forced):
    model, tokenizer = load_embedded()
    prompt = torch.tensor([tokenizer.encode("The capital of France is")])

    def written(faster: bool) -> list[int]:
        forced(faster)
        cache = KVCache(model.shape, 1, 32)
        tokens = [model(prompt, cache).argmax().item()]
        for _ in range(15):
            tokens.append(model(torch.tensor([tokens[-1:]]), cache).argmax().item())
        return tokens

    assert written(True) == written(False)
