"""The layout of weights of codes on CUDA, read as csrc/cuda/coded/codes.cuh says that lanes read it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo_kernels import ops
from octavo_kernels.chips import Chip
from octavo_kernels.products.choice import Ending
from octavo_kernels.products.coded import Bricks, CodedWeight, bricks_of, lay_out
from octavo_kernels.products.coded_choice import (
    WIDE_TILES,
    CodedKernel,
    CodedLaunch,
    choose_coded,
    prefers_copy,
)
from octavo_kernels.products.weights import PER_BYTE, Activations, Codes, QuantisedWeight, Scheme, values

from .coded_weights import FORM_NAMES, FORMS, random_weight

SIZES = [(16, 512), (7, 300), (33, 102)]


def codes_of(weight: QuantisedWeight) -> np.ndarray:
    """`[columns, depth]`, integers as they are stored in bricks."""
    raw = weight.codes.view(torch.uint8).numpy()
    if PER_BYTE[weight.scheme.codes] == 2:
        return np.stack((raw & 15, raw >> 4), axis=-1).reshape(len(raw), -1)
    return raw ^ 128 if weight.scheme.codes is Codes.INT8 else raw


def read_brick(brick: np.ndarray, kind: Codes) -> np.ndarray:
    """`[16, depth]` of 1,024 bytes, by the operand of m16n8k16 (PTX ISA, matrix fragments of mma.m16n8k16): register i
    of a lane has row lane / 4, plus 8 if i is odd, and the depths lane % 4 * 2 + {0, 1}, plus 8 from the third on."""
    nibbles = PER_BYTE[kind] == 2
    steps, words = (8, 1) if nibbles else (4, 2)
    got = np.full((16, 16 * steps), -1)
    for load in range(2):
        for lane in range(32):
            at = (load * 32 + lane) * 16
            lanes_words = brick[at : at + 16].view("<u4")
            for in_load in range(steps // 2):
                for register in range(4):
                    for element in range(2):
                        if nibbles:
                            code = int(lanes_words[in_load]) >> 4 * (register + 4 * element) & 15
                        else:
                            word = int(lanes_words[in_load * words + register // 2])
                            code = word >> 8 * (register % 2 * 2 + element) & 255
                        row = lane // 4 + register % 2 * 8
                        depth = (load * steps // 2 + in_load) * 16 + register // 2 * 8 + lane % 4 * 2 + element
                        assert got[row, depth] == -1
                        got[row, depth] = code
    return got


@pytest.mark.parametrize(("kind", "group"), FORMS, ids=FORM_NAMES)
@pytest.mark.parametrize(("columns", "depth"), SIZES)
def test_lanes_find_every_code_and_its_scale(kind, group, columns, depth):
    weight = random_weight(kind, group, columns, depth, zeros=kind in (Codes.INT4, Codes.INT8))
    laid = lay_out(weight)
    brick = laid.bricks.depth
    strips, bricks = -(-columns // 16), -(-depth // brick)
    assert laid.codes.shape == (strips, bricks, 1024)
    got = np.block([[read_brick(laid.codes[s, b].numpy(), kind) for b in range(bricks)] for s in range(strips)])
    assert (got[:columns, :depth] == codes_of(weight)).all()
    # A kernel finds the scales of a brick by its number.
    for row in range(columns):
        for k in range(0, depth, 16):
            number, scales = k // brick, laid.bricks.scales
            at = k // (brick // scales) if scales > 1 else number * brick // weight.scheme.group
            own = k // weight.scheme.group
            assert laid.scales[row // 16, at, row % 16] == weight.scales[own, row]
            if weight.zeros is not None:
                middle = 128 if kind is Codes.INT8 else 0
                assert laid.zeros[row // 16, at, row % 16] == int(weight.zeros[own, row]) + middle


@pytest.mark.parametrize(("kind", "group"), FORMS, ids=FORM_NAMES)
def test_what_fills_up_a_strip_and_a_brick_stands_for_zero(kind, group):
    laid = lay_out(random_weight(kind, group, 20, 72))
    codes = np.block([[read_brick(b.numpy(), kind) for b in strip] for strip in laid.codes])
    raw = torch.from_numpy(codes.astype(np.uint8))
    if PER_BYTE[kind] == 2:
        raw = raw[:, ::2] | raw[:, 1::2] << 4
    elif kind is Codes.INT8:
        raw = (raw ^ 128).view(torch.int8)
    else:
        raw = raw.view(torch.float8_e4m3fn)
    stands_for = values(raw, kind)
    assert (stands_for[20:] == 0).all()
    assert (stands_for[:, 72:] == 0).all()


@pytest.mark.parametrize(
    ("scheme", "depth", "expected"),
    [
        (Scheme(Codes.INT4, 128), 4096, Bricks(128, 1)),
        (Scheme(Codes.INT4, 512), 4096, Bricks(128, 1)),
        (Scheme(Codes.INT4, 384), 4096, None),
        (Scheme(Codes.INT4, 4096), 4096, Bricks(128, 1)),
        (Scheme(Codes.INT4, 48), 4096, None),
        (Scheme(Codes.INT4, 16), 4096, None),
        (Scheme(Codes.INT4, 32), 4096, Bricks(128, 4)),
        (Scheme(Codes.INT8, 128), 4096, Bricks(64, 1)),
        (Scheme(Codes.INT8, 32), 4096, Bricks(64, 2)),
        (Scheme(Codes.FP4, 16), 4096, Bricks(128, 8)),
        (Scheme(Codes.FP4, 32), 4096, Bricks(128, 4)),
        (Scheme(Codes.FP4, 4096), 4096, None),
        (Scheme(Codes.FP8, 128), 4096, Bricks(64, 1)),
        (Scheme(Codes.FP8, 4096, Activations.FP8), 4096, None),
        (Scheme(Codes.INT8, 4096, Activations.INT8), 4096, None),
    ],
)
def test_the_schemes_that_there_are_kernels_for(scheme, depth, expected):
    assert bricks_of(scheme, depth) == expected


def test_a_scheme_without_kernels_is_refused():
    with pytest.raises(ValueError, match="no CUDA kernels"):
        lay_out(random_weight(Codes.INT4, 48, 16, 96))


def test_weights_on_the_cpu_stay_as_they_are():
    assert not isinstance(ops.pack(random_weight(Codes.INT4, 128, 16, 128)), CodedWeight)


HOPPER, AMPERE = Chip(9, 132, 232448, True), Chip(8, 108, 166912, False)
G128 = Bricks(128, 1)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "chip", "options", "expected"),
    [
        (1, 4096, 4096, HOPPER, {}, CodedLaunch(CodedKernel.FEW)),
        (1, 4096, 4096, HOPPER, {"normed": True}, CodedLaunch(CodedKernel.FEW)),
        (1, 4096, 14336, HOPPER, {"normed": True}, None),
        (1, 4096, 4096, HOPPER, {"uniform": True}, CodedLaunch(CodedKernel.TILES, 8, 3)),
        (4, 4096, 14336, HOPPER, {}, CodedLaunch(CodedKernel.FEW)),
        (8, 4096, 14336, HOPPER, {}, CodedLaunch(CodedKernel.FEW)),
        (9, 4096, 14336, HOPPER, {}, CodedLaunch(CodedKernel.TILES, 16, 7)),
        (17, 4096, 14336, HOPPER, {}, CodedLaunch(CodedKernel.TILES, 32, 7)),
        (17, 8192, 8192, HOPPER, {}, CodedLaunch(CodedKernel.TILES, 32, 3)),
        (2, 4096, 4096, HOPPER, {"normed": True}, None),
        (32, 6144, 4096, HOPPER, {}, CodedLaunch(CodedKernel.TILES, 32, 4)),
        (33, 6144, 4096, HOPPER, {"uniform": True}, CodedLaunch(CodedKernel.TILES, 64, 2)),
        (256, 28672, 4096, HOPPER, {}, CodedLaunch(CodedKernel.WIDE, 256, 1, 2)),
        (64, 4096, 14336, HOPPER, {}, CodedLaunch(CodedKernel.TILES, 64, 3)),
        (65, 4096, 14336, HOPPER, {}, CodedLaunch(CodedKernel.WIDE, 128, 1, 2, 64)),
        (300, 28672, 4096, HOPPER, {"in_eights": False}, CodedLaunch(CodedKernel.TILES, 128, 1)),
        (300, 28676, 4096, HOPPER, {}, CodedLaunch(CodedKernel.TILES, 128, 1)),
        (4097, 28672, 4096, HOPPER, {}, CodedLaunch(CodedKernel.MATRIX)),
        (513, 28676, 4096, HOPPER, {}, CodedLaunch(CodedKernel.MATRIX)),
        (513, 28672, 4096, HOPPER, {"uniform": True}, CodedLaunch(CodedKernel.TILES, 128, 1)),
        (8, 4096, 4096, AMPERE, {}, CodedLaunch(CodedKernel.FEW)),
        (9, 4096, 4096, AMPERE, {}, CodedLaunch(CodedKernel.MATRIX)),
        (8, 4096, 14336, AMPERE, {}, CodedLaunch(CodedKernel.MATRIX)),  # x has no room
        (1, 4096, 4096, AMPERE, {"uniform": True}, None),
        (1, 100, 4100, HOPPER, {}, CodedLaunch(CodedKernel.TILES, 8, 5)),
    ],
)
def test_choice(rows, columns, depth, chip, options, expected):
    assert choose_coded(rows, columns, depth, G128, Ending.PLAIN, chip, **options) == expected


def test_many_rows_meet_a_copy_of_the_weight():
    fewest = {chip: next(n for n in range(1, 99) if prefers_copy(n, chip)) for chip in (HOPPER, AMPERE)}
    assert fewest == {HOPPER: 65, AMPERE: 9}


def test_a_gate_needs_whole_strips_on_both_sides():
    assert choose_coded(1, 64, 4096, G128, Ending.GATE, HOPPER) == CodedLaunch(CodedKernel.FEW)
    assert choose_coded(1, 48, 4096, G128, Ending.GATE, HOPPER) is None
    assert choose_coded(9, 64, 4096, G128, Ending.GATE, AMPERE) is None


@pytest.mark.parametrize(("columns", "depth"), [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (40, 128)])
@pytest.mark.parametrize("ending", [Ending.PLAIN, Ending.GATE])
def test_how_a_depth_is_shared_does_not_depend_on_the_rows(columns, depth, ending):
    launches = [choose_coded(n, columns, depth, G128, ending, HOPPER, uniform=True) for n in (1, 8, 9, 64, 300, 9000)]
    if columns % 32:
        assert launches == [launches[0]] * 6 or ending is Ending.PLAIN
    assert len({launch and launch.cluster for launch in launches}) == 1


@pytest.mark.parametrize(("columns", "depth"), [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (32, 64)])
@pytest.mark.parametrize("bricks", [G128, Bricks(64, 1), Bricks(128, 8)])
@pytest.mark.parametrize("ending", [Ending.PLAIN, Ending.GATE])
def test_wide_tiles_are_such_as_the_kernel_has(columns, depth, bricks, ending):
    for rows in (65, 100, 129, 200, 256, 300, 512, 1000, 4096):
        launch = choose_coded(rows, columns, depth, bricks, ending, HOPPER)
        assert launch is not None
        assert launch.kernel is CodedKernel.WIDE
        assert (launch.consumers, launch.tokens) in WIDE_TILES
        assert launch.shares <= HOPPER.multiprocessors // 2
        assert launch.shares <= -(-depth // 64) * -(-rows // launch.tokens) * -(-columns // 64)
        alone = choose_coded(rows, columns, depth, bricks, ending, HOPPER, shares=False)
        assert alone is not None
        assert not alone.shares


def test_a_gate_has_the_tiles_of_the_product_in_front_of_it():
    """So that its results are the activation of that product's, bit for bit."""
    for rows in (20, 33, 100, 256, 700):
        for columns in (32, 96, 1024, 28672):
            plain, gated = (choose_coded(rows, columns, 4096, G128, e, HOPPER) for e in (Ending.PLAIN, Ending.GATE))
            assert plain == gated


@pytest.mark.parametrize(("columns", "depth"), [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336)])
def test_a_decoders_products_find_work_for_half_of_the_chip(columns, depth):
    for rows in (9, 17, 32, 64):
        launch = choose_coded(rows, columns, depth, G128, Ending.PLAIN, HOPPER)
        assert launch is not None
        assert launch.kernel is CodedKernel.TILES
        assert -(-columns // 128) * launch.cluster >= 66
    for rows in (128, 256, 512):
        launch = choose_coded(rows, columns, depth, G128, Ending.PLAIN, HOPPER)
        assert launch is not None
        pairs = launch.shares or -(-rows // launch.tokens) * -(-columns // (128 * launch.consumers))
        assert pairs >= 32
