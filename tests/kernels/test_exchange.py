"""The exchange without a GPU: which way a message goes, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo_kernels import cuda
from octavo_kernels.exchange import gpus as kernels
from octavo_kernels.exchange.gpus import MOST_RANKS, Exchange, ExchangeError, Way, slot_bytes, way_to_add, way_to_gather

SIZES = st.integers(1, 1 << 14)
RANKS = st.integers(1, MOST_RANKS)


@given(RANKS, SIZES, st.integers(1, 2048), st.integers(1, 4000))
def test_what_is_pushed_fits_into_its_slot_and_is_summed_at_once(ranks, rows, vectors, blocks):
    way = way_to_add(ranks, rows, 16 * vectors, blocks)
    if way is Way.PUSH:
        assert rows * 16 * vectors <= slot_bytes(ranks)
        assert rows <= blocks
    fits = rows * 16 * vectors <= min(slot_bytes(ranks), 4096) and rows <= blocks
    assert way is Way.PUSH or not fits


@given(RANKS, SIZES, st.integers(1, 2048))
def test_more_than_two_ranks_share_out_what_is_not_pushed(ranks, rows, vectors):
    assert way_to_add(ranks, rows, 16 * vectors, 0) is (Way.SHARED_PULL if ranks > 2 else Way.PULL)


@given(RANKS, st.integers(1, 1 << 22))
def test_three_words_of_four_of_what_is_gathered_by_push_are_data(ranks, words):
    pushed = -(-words // 3) * 16 <= slot_bytes(ranks)
    assert (way_to_gather(ranks, 4 * words) is Way.PUSH) == pushed


@given(st.integers(2, MOST_RANKS))
def test_slots_hold_vectors_and_no_rank_gets_more_than_is_pushed(ranks):
    assert slot_bytes(ranks) % 16 == 0
    assert slot_bytes(ranks) * (ranks - 1) <= kernels.PUSHED


def test_a_build_without_these_kernels_says_so(monkeypatch):
    monkeypatch.setattr(cuda, "compiled", None)
    with pytest.raises(ExchangeError, match=r"no kernels that join GPUs.*give one rank"):
        Exchange(0, 2, torch.device("cuda", 0), 1 << 20)


@pytest.mark.parametrize(("rank", "ranks"), [(2, 2), (-1, 2), (0, MOST_RANKS + 1)])
def test_a_rank_beyond_the_ranks_is_refused(monkeypatch, rank, ranks):
    class Module:
        Exchange = None

    monkeypatch.setattr(cuda, "compiled", Module)
    with pytest.raises(ExchangeError, match="there is no rank"):
        Exchange(rank, ranks, torch.device("cuda", 0), 1 << 20)
