"""Sizes of recurrent layers that a model is refused for are those that the kernels refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from recurrent_layers import Layer, Part, conv_layer, delta_layer, moves_of, ssm_layer

from octavo_kernels.recurrent import sizes

from . import recurrent_blocks as blocks
from .recurrent_blocks import with_step

HEADS = "128 and 128 or 96 and 192"
DELTA = [
    (2, 4, 128, 128, 4), (2, 4, 64, 128, 4), (2, 4, 128, 64, 4), (2, 4, 128, 128, 3), (1, 4, 128, 128, 4),
    (1, 6, 128, 128, 4), (3, 3, 128, 128, 4), (16, 48, 128, 128, 4), (4, 4, 96, 192, 4), (2, 8, 96, 192, 4),
    (2, 4, 96, 128, 4), (2, 4, 128, 192, 4), (1, 6, 96, 192, 4),
]  # fmt: skip
SSM = [
    (4, 128, 64, 4),
    (4, 128, 128, 4),
    (4, 256, 64, 4),
    (4, 256, 128, 4),
    (4, 192, 64, 4),
    (4, 64, 64, 4),
    (4, 128, 32, 4),
    (4, 128, 64, 3),
    (6, 128, 64, 4),
]
CONV = [(64, 3), (64, 2), (64, 4), (64, 5), (66, 3)]


def takes(check: Callable[..., None], *of: int) -> bool:
    try:
        check(*of)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("check", "of", "found"),
    [
        (sizes.check_delta, (2, 4, 96, 128, 4), f"keys and values of 96 and 128 elements, and not {HEADS}"),
        (sizes.check_delta, (2, 4, 128, 192, 4), f"keys and values of 128 and 192 elements, and not {HEADS}"),
        (sizes.check_delta, (1, 5, 128, 128, 4), "5 heads to 1 key heads, more than 4 each"),
        (sizes.check_ssm, (8, 192, 64, 4), "states of 192 rows, and not 128 or 256"),
        (sizes.check_conv, (64, 5), "convolutions of 5 taps, and not 2 to 4"),
    ],
)
def test_a_refusal_says_what_was_found(check: Callable[..., None], of: tuple[int, ...], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        check(*of)


def runs(layer: Layer) -> bool:
    """True if its kernel takes it."""
    layer = with_step(layer, layer.step.func, "cuda")  # type: ignore[attr-defined]
    try:
        layer.step(layer.rows(1).cuda(), blocks.states_of(layer, "cuda"), moves_of([Part(1)], "cuda"))
    except ValueError:
        return False
    return True


@pytest.mark.gpu
@pytest.mark.beyond_plain
def test_kernels_take_what_is_not_refused() -> None:
    bf16 = torch.bfloat16
    for of in DELTA:
        layer = delta_layer(*of[:4], taps=of[4], dtype=bf16)
        assert runs(layer) == takes(sizes.check_delta, *of), of
    for heads, size, head_dim, taps in SSM:
        layer = ssm_layer(2, heads, size, head_dim, taps=taps, dtype=bf16)
        assert runs(layer) == takes(sizes.check_ssm, heads, size, head_dim, taps), (heads, size, head_dim, taps)
    for channels, taps in CONV:
        layer = conv_layer(channels, taps=taps, dtype=bf16)
        assert runs(layer) == takes(sizes.check_conv, channels, taps), (channels, taps)
