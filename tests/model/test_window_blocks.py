"""How many blocks layers with a window have, and which models have such a group."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from octavo_worker.assembly.window_blocks import WindowGroup
from octavo_worker.contract.cache import CacheSpec, KvLayout, group_window, in_group
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.windows import Slabs
from octavo_worker.runner.cuda import memory

FULL = CacheSpec(2, 16, 16, "float32")
WINDOWED = replace(FULL, window=24)
SIZES = 1000, 400
"""Bytes of a block of each group."""


def group(
    specs: list[CacheSpec | None],
    *,
    reads_windows: bool = True,
    longest: int = 1000,
    sizes: tuple[int, int] = SIZES,
    beside: int = 0,
    **options: Any,
) -> Any:
    model: Any = SimpleNamespace(cache=tuple(specs), reads_windows=reads_windows)
    asked = ModelOptions(model="any", **{"max_running": 10, **options})
    return WindowGroup.of(asked, model, longest, 40, sizes, beside)


@pytest.mark.parametrize(
    ("specs", "window"),
    [
        ([FULL, FULL], 0),
        ([WINDOWED, WINDOWED], 0),
        ([WINDOWED, None], 0),
        ([FULL, WINDOWED, None], 24),
        ([replace(FULL, window=7), FULL, WINDOWED], 24),
        ([FULL, replace(FULL, window=1)], 0),
        ([], 0),
    ],
)
def test_layers_with_a_window_are_a_group_beside_layers_that_see_all(
    specs: list[CacheSpec | None], window: int
) -> None:
    assert group_window(specs) == window


def test_each_layer_is_in_one_group() -> None:
    specs = [FULL, WINDOWED, None, replace(WINDOWED, shares=1)]
    assert in_group(specs, windowed=False) == (FULL, None, None, None)
    assert in_group(specs, windowed=True) == (None, WINDOWED, None, specs[3])
    layout = KvLayout.of(in_group(specs, windowed=True), 16)
    assert layout.pieces[1] is layout.pieces[3]
    assert layout.block_bytes == 16 * WINDOWED.token_bytes


def test_only_what_falls_out_of_a_window_is_worth_a_group() -> None:
    assert group([FULL, WINDOWED]) == WindowGroup(*SIZES, 1 + 3, 1 + 10 * 3 + 5, 5, is_beside=False)
    assert group([FULL, WINDOWED], beside=80).full_bytes == SIZES[0] + 80
    assert group([FULL, WINDOWED], longest=48) is None
    assert group([FULL, WINDOWED], longest=49) is not None
    assert group([FULL, WINDOWED], reads_windows=False) is None
    assert group([FULL]) is None


@pytest.mark.parametrize(
    ("budget", "asked", "blocks"), [(0, None, 4), (8_000, None, 10), (1 << 20, None, 36), (0, 20, 20), (0, 400, 36)]
)
def test_windows_take_half_of_the_memory_and_no_more_than_they_need(
    budget: int, asked: int | None, blocks: int
) -> None:
    assert group([FULL, WINDOWED]).blocks(budget, asked) == blocks


@pytest.mark.parametrize(
    ("budget", "slabs"),
    [
        (1_999, None),
        (2_000 * 7, None),
        (2_000 * 8, (8, 2, 5, 1, 3)),
        (2_000 * 50, (50, 2, 5, 1, 3)),
        (1 << 30, (50 + 8, 2, 5, 1, 3)),
    ],
)
def test_groups_share_memory_of_which_one_sequence_has_half(
    budget: int, slabs: tuple[int, int, int, int, int] | None
) -> None:
    """A slab has 5 blocks of windows or 2 others, of which 100 are enough."""
    assert group([FULL, WINDOWED]).slabs(budget, 100) == (None if slabs is None else Slabs(*slabs))


@pytest.mark.parametrize(
    ("sizes", "beside", "shares"),
    [
        ((1000, 1000), 0, True),
        ((1000, 2000), 1000, False),
        ((1700, 100), 0, False),
        ((17, 18), 0, False),
        ((100, 1700), 0, True),
    ],
)
def test_blocks_that_do_not_fill_small_slabs_share_nothing(sizes: tuple[int, int], beside: int, shares: bool) -> None:
    assert (group([FULL, WINDOWED], sizes=sizes, beside=beside).slabs(1 << 20, 100) is not None) == shares


def test_a_gpu_keeps_room_for_both_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.AttentionPlans, "scratch_bytes", lambda *_: 0)
    options = ModelOptions(model="any", max_running=10)

    def needed(specs: list[CacheSpec | None], *others: list[CacheSpec | None]) -> int:
        each: list[Any] = [
            SimpleNamespace(cache=cache, reads_windows=True, states=(), vocab_size=50, dtype=torch.float32)
            for cache in (specs, *others)
        ]
        return memory.step_bytes(options, each[0], 1000, *each[1:])

    one_table = (10 + options.most_samples) * 63 * 4
    assert needed([FULL, WINDOWED]) - needed([FULL]) == one_table
    assert needed([WINDOWED]) == needed([FULL])
    assert needed([FULL], [FULL, WINDOWED]) == needed([FULL], [FULL]), "a draft model has one group"


@pytest.mark.parametrize(("budget", "blocks"), [(0, (0, 0)), (1_000, (0, 0)), (8_000, (4, 10)), (100_000, (85, 36))])
def test_the_host_has_blocks_of_both_or_of_none(budget: int, blocks: tuple[int, int]) -> None:
    assert group([FULL, WINDOWED]).on_host(budget) == blocks
