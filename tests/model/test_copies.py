"""Copies of quantised weights in 16 bits: as many as there is room for, and never more than codes have saved."""

from __future__ import annotations

import pytest

from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.parts import Parts
from octavo_worker.runner.cuda.copies import SHARE, keep_copies


class Copied(Linear):
    def __init__(self, copy_bytes: int, code_bytes: int = 0) -> None:
        self.bytes, self.codes, self.kept = copy_bytes, code_bytes, False

    @property
    def nbytes(self) -> int:
        return self.codes

    @property
    def copy_bytes(self) -> int:
        return self.bytes

    def keep_copy(self) -> None:
        self.kept = True

    def apply(self, x, out=None, residual=None):
        raise AssertionError


@pytest.mark.parametrize(
    ("room", "asked", "kept"),
    [
        (300 / SHARE, None, (True, True)),
        (300 / SHARE - 4, None, (True, False)),
        (100 / SHARE - 4, None, (False, False)),
        (1000, 700, (True, True)),
        (1000, 701, (True, False)),
        (1000, 901, (False, False)),
        (100, 500, (False, False)),
    ],
)
def test_copies_are_kept_while_there_is_room(room, asked, kept):
    whole, parts = Copied(100), [Copied(150), Copied(50)]
    keep_copies([whole, Parts(parts, [1, 1])], int(room), asked)
    assert [linear.kept for linear in (whole, *parts)] == [kept[0], kept[1], kept[1]]


@pytest.mark.parametrize(("code_bytes", "kept"), [(25, 3), (26, 2), (50, 2), (51, 1), (100, 0)])
def test_a_model_with_copies_has_the_cache_of_one_in_16_bits(code_bytes, kept):
    """Four weights of 100 bytes, whose codes have saved what their copies may take."""
    linears = [Copied(100, code_bytes) for _ in range(4)]
    keep_copies([Copied(0, 500), *linears], 1 << 20, 1 << 10)
    assert [linear.kept for linear in linears] == [n < kept for n in range(4)]
    assert sum(linear.nbytes + linear.kept * linear.copy_bytes for linear in linears) <= 400


def test_a_kv_cache_that_takes_what_is_left_loses_a_quarter_at_most():
    assert SHARE == 0.25
    linear = Copied(1 << 30)
    keep_copies([linear], 4 << 30, None)
    assert linear.kept
