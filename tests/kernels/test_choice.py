"""Which kernel computes a product, over a grid of shapes: a change of the table of choices must be a decision."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo_kernels.choice import Alignment, Chip, Ending, Form, Kernel, Launch, choose, choose_uniform, library

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
