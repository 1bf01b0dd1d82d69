"""Copies of quantised weights in 16 bits: all of them or none, as there is room."""

from __future__ import annotations

import pytest

from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.parts import Parts
from octavo_worker.runner.cuda.copies import SHARE, keep_copies


class Copied(Linear):
    nbytes = 0

    def __init__(self, copy_bytes: int) -> None:
        self.bytes, self.kept = copy_bytes, False

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
        (300 / SHARE, None, True),
        (300 / SHARE - 4, None, False),
        (1000, 700, True),
        (1000, 701, False),
        (100, 500, False),
    ],
)
def test_all_copies_are_kept_or_none(room, asked, kept):
    whole, parts = Copied(100), [Copied(150), Copied(50)]
    keep_copies([whole, Parts(parts, [1, 1])], int(room), asked)
    assert [linear.kept for linear in (whole, *parts)] == [kept] * 3


def test_a_kv_cache_that_takes_what_is_left_loses_a_quarter_at_most():
    assert SHARE == 0.25
    linear = Copied(1 << 30)
    keep_copies([linear], 4 << 30, None)
    assert linear.kept
