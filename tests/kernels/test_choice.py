"""Which kernel computes a product, over a grid of shapes: a change of the table of choices must be a decision."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo_kernels.chips import Chip
from octavo_kernels.products import choice
from octavo_kernels.products.choice import (
    Alignment,
    Ending,
    Form,
    Kernel,
    Launch,
    W8A8Kernel,
    W8A8Launch,
    choose,
    choose_uniform,
    choose_w8a8,
    library,
)

RECORDED = Path(__file__).parent / "data/product_choices.txt"
CHIPS = {
    "h200": Chip(9, 132, 232448, True),
    "h100-pcie": Chip(9, 114, 232448, True),
    "h200-ptx": Chip(9, 132, 232448, False),  # without code for 90a
    "b200": Chip(10, 148, 232448, False),
    "rtx": Chip(12, 188, 101376, False),
    "a100": Chip(8, 108, 166912, False),
}
H200 = CHIPS["h200"]


def recorded(chip: str) -> Iterator[tuple[str, str, str, list[tuple[int, str]]]]:
    for line in RECORDED.read_text().splitlines():
        if line.startswith(f"{chip} "):
            title, _, answers = line.partition(" | ")
            words = answers.split()
            _, ending, shape, alignment = title.split()
            yield ending, shape, alignment, list(zip(map(int, words[::2]), words[1::2], strict=True))


def described(launch: Launch | None) -> str:
    if launch is None:
        return "none"
    words = [launch.kernel.name.lower()]
    if launch.kernel in (Kernel.WIDE, Kernel.UNIFORM):
        words.append(f"{launch.tile.consumers}x{launch.tile.columns}{'t' if launch.tile.tall else ''}")
    if launch.kernel is Kernel.RING:
        words.append(str(launch.cluster))
    return ":".join(words)


@pytest.mark.parametrize("chip", CHIPS)
def test_choices_are_those_that_were_recorded(chip: str) -> None:
    lines = 0
    for ending, shape, alignment, ranges in recorded(chip):
        columns, depth = map(int, shape.split("x"))
        first = 1
        for last, expected in ranges:
            for rows in range(first, last + 1):
                if ending == "uniform":
                    got = choose_uniform(rows, columns, CHIPS[chip])
                else:
                    got = choose(
                        rows, columns, depth, Form.DENSE_16, Ending[ending.removeprefix("normed_").upper()],
                        CHIPS[chip], ending.startswith("normed_"), Alignment[alignment.upper()],
                    )  # fmt: skip
                assert described(got) == expected, f"{rows} rows of {ending} {shape}"
            first = last + 1
        lines += 1
    assert lines > 10


def test_weights_in_32_bits_are_the_librarys() -> None:
    for rows in (1, 8, 40, 200):
        assert choose(rows, 6144, 4096, Form.DENSE_32, Ending.PLAIN, H200) == Launch(Kernel.CUBLAS)
        assert choose(rows, 6144, 4096, Form.DENSE_32, Ending.GATE, H200) is None


def test_nothing_is_launched_for_no_rows() -> None:
    assert choose(0, 6144, 4096, Form.DENSE_16, Ending.GATE, H200) is None
    assert choose(0, 6144, 4096, Form.DENSE_16, Ending.PLAIN, H200) == library(0, 6144, 4096, Form.DENSE_16)


CODES = (Form.INT8, Form.FP8, Form.FP8_BLOCKS)


@pytest.mark.parametrize("form", CODES)
@pytest.mark.parametrize(("columns", "depth"), [(8, 16), (4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336)])
def test_tiles_of_codes_are_such_as_the_kernel_has(form: Form, columns: int, depth: int) -> None:
    for rows in (*range(2, 400), 1000, 8192):
        launch = choose_w8a8(rows, columns, depth, form, H200)
        assert launch is not None
        assert launch.kernel is W8A8Kernel.WIDE
        assert (launch.consumers, launch.tokens) in choice.W8A8_TILES
        assert launch.tokens != 208, "nothing has measured them"
        assert launch.height % 16 == 0
        assert 64 * (launch.consumers - 1) < launch.height <= 64 * launch.consumers
        assert launch.tokens >= 128 or rows <= launch.tokens < 4 * max(rows, 8)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "tile"),
    [
        (16, 28672, 4096, (1, 16, 48)),
        (32, 28672, 4096, (1, 64, 64)),
        (32, 4096, 14336, (1, 64, 64)),
        (64, 6144, 4096, (1, 64, 64)),
        (128, 4096, 14336, (1, 128, 64)),
        (128, 28672, 4096, (2, 128, 128)),
        (256, 6144, 4096, (2, 128, 128)),
        (512, 4096, 14336, (2, 128, 128)),
        (2048, 28672, 4096, (2, 256, 128)),
    ],
)
def test_a_decoders_products_take_the_tile_that_was_fastest(
    rows: int, columns: int, depth: int, tile: tuple[int, ...]
) -> None:
    """Or one within a few hundredths of it, on an H200."""
    assert choose_w8a8(rows, columns, depth, Form.FP8, H200) == W8A8Launch(W8A8Kernel.WIDE, *tile)


def test_a_row_alone_becomes_codes_in_its_product() -> None:
    for form in CODES:
        assert choose_w8a8(1, 4096, 4096, form, H200, normed=True) == W8A8Launch(W8A8Kernel.ROW)
    deep = choose_w8a8(1, 4096, 16384, Form.INT8, H200, normed=True)
    assert deep is not None
    assert deep.kernel is W8A8Kernel.WIDE
    assert choose_w8a8(1, 4096, 16384, Form.INT8, H200) == W8A8Launch(W8A8Kernel.ROW)


@pytest.mark.parametrize("form", [Form.FP8, Form.FP8_BLOCKS])
def test_uniform_products_of_floats_have_one_kernel(form: Form) -> None:
    for rows in (1, 7, 300):
        launch = choose_w8a8(rows, 4096, 4096, form, H200, uniform=True)
        assert launch is not None
        assert launch.kernel is W8A8Kernel.WIDE
    assert choose_w8a8(1, 4096, 4096, Form.INT8, H200, uniform=True) == W8A8Launch(W8A8Kernel.ROW)


def test_older_chips_multiply_codes_plainly() -> None:
    for form in CODES:
        assert choose_w8a8(3, 4096, 4096, form, CHIPS["a100"]) == W8A8Launch(W8A8Kernel.PLAIN)
