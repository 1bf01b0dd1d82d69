"""Parts of rows give what whole rows give; sums are in the order of the ranks; counts wake what waits for them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from octavo_kernels import _cpu, ops
from octavo_kernels.exchange.ranks import COUNT_BYTES, arrives, masses, post, posted, sample_part, sum_parts

ALL = float(np.finfo(np.float32).min)


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize(("ranks", "rows", "width"), [(2, 1, 8), (2, 5, 70), (3, 2, 33), (16, 3, 1)])
def test_sums_are_in_the_order_of_the_ranks(
    level: str, dtype: torch.dtype, with_residual: bool, ranks: int, rows: int, width: int
) -> None:
    memory = torch.randn(ranks, rows * width + 5).to(dtype)
    memory[:, : rows * width] *= torch.logspace(-3, 3, ranks)[:, None].to(dtype)
    parts = memory[:, : rows * width].unflatten(1, (rows, width))
    expected = torch.zeros(rows, width)
    for part in parts:
        expected = expected + part.float()
    out = torch.randn(rows, 2 * width).to(dtype)[:, :width]
    if with_residual:
        expected = expected + out.float()
    assert sum_parts(parts, out, out if with_residual else None) is out
    assert torch.equal(out, expected.to(dtype))


def test_parts_that_do_not_lie_densely_are_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        sum_parts(torch.zeros(2, 3, 8)[:, :, ::2], torch.zeros(3, 4))
    with pytest.raises(ValueError, match="out must have shape"):
        sum_parts(torch.zeros(2, 3, 8), torch.zeros(3, 4))


@pytest.mark.parametrize("border", [4, 64, 1000])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_the_part_that_reaches_most_has_the_token_of_the_row(level: str, border: int, temperature: float) -> None:
    logits = (torch.randn(40, 1003) * 4).round()  # with equals
    logits[3], logits[4, :border], logits[5, border:] = -torch.inf, -torch.inf, -torch.inf
    logits[6, 7], logits[7] = torch.nan, 2.0
    samples = ops.pack_samples(40, seeds=torch.arange(40), positions=torch.arange(40) * 3, temperature=temperature)
    floors = torch.full((40,), ALL)
    tokens, reached = zip(
        *(
            sample_part(logits[:, at:end].contiguous(), samples, at, floors)
            for at, end in ((0, border), (border, 1003))
        ),
        strict=True,
    )
    best = torch.where(reached[1] > reached[0], tokens[1], tokens[0])
    assert best.tolist() == ops.sample(logits, samples).tolist()
    assert best[3] == -1


def test_floors_keep_what_is_as_large(level: str) -> None:
    logits = torch.arange(50.0).repeat(200, 1)
    samples = ops.pack_samples(200, seeds=torch.arange(200), temperature=100.0)
    tokens, _ = sample_part(logits, samples, 8, torch.full((200,), 0.47))
    assert sorted(set(tokens.tolist())) == [55, 56, 57]


def test_masses_are_the_same_at_every_level() -> None:
    scaled = torch.randn(7, 131) * 10
    scaled[2, 5], scaled[3, 6] = -torch.inf, torch.nan
    tops = torch.where(scaled.isnan(), -torch.inf, scaled).amax(1)
    before, found = _cpu.level(), []
    for level in _cpu.levels():
        _cpu.set_level(level)
        found.append(masses(scaled, tops))
    _cpu.set_level(before)
    assert all(torch.equal(each, found[0]) for each in found)
    exact = (scaled - tops[:, None]).double().exp() * 2.0**40
    assert torch.allclose(found[0].double(), exact.nan_to_num(0.0), rtol=1e-5, atol=2.0)
    assert (found[0].amax(1) == 1 << 40).all()


def test_a_first_token_in_the_middle_of_four_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        sample_part(torch.zeros(1, 8), ops.pack_samples(1), 2, torch.zeros(1))


def test_a_count_is_awaited() -> None:
    memory = torch.zeros(COUNT_BYTES, dtype=torch.uint8)
    count = memory.data_ptr()
    assert arrives(count, 0, 0)
    assert not arrives(count, 1, 5)
    waiting = threading.Thread(target=lambda: come.append(arrives(count, 3, 60_000)))
    come: list[bool] = []
    waiting.start()
    post(count, 2)
    post(count, 3)
    waiting.join()
    assert come == [True]
    assert posted(count) == 3
    assert arrives(count, 2, 0)


def test_counts_go_round() -> None:
    memory = torch.zeros(COUNT_BYTES, dtype=torch.uint8)
    post(memory.data_ptr(), (1 << 32) - 1)
    assert not arrives(memory.data_ptr(), 0, 0)
    post(memory.data_ptr(), 1)
    assert arrives(memory.data_ptr(), (1 << 32) - 1, 0)
    assert arrives(memory.data_ptr(), 1, 0)
