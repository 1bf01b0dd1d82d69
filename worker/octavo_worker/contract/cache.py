"""The KV cache as models describe it, a layer at a time, and the layout of its blocks that follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3fn": 1}
SCALE_BYTES = {"int8": 4, "float8_e4m3fn": 4}
"""Bytes of each head of a token, beside its elements."""


@dataclass(frozen=True, slots=True, order=True)
class AttentionShape:
    """The shape of attention that layers with one plan have in common: queries of `heads` see the last `window` tokens
    (0: all), of which there are keys and values of `kv_heads`, `width` elements each. `latent`: values are the first so
    many elements of keys; 0: they are kept beside them."""

    window: int
    heads: int
    kv_heads: int
    width: int
    latent: int = 0

    @property
    def group(self) -> int:
        """Query heads that share keys and values."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Keys and values that a layer keeps of a token: `kv_heads` of each, `key_dim` and `value_dim` elements wide, of
    type `dtype`. A query sees the last `window` tokens; 0: all. There are `heads` of queries; 0: as many as of keys.
    A layer that `shares` keeps nothing of its own: it reads what the layer of that number keeps, an earlier one.
    Where it keeps a `latent`, there are no values beside keys: they are the first `value_dim` elements of them. The
    others are of the type `exact` then, and never in eight bits."""

    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: str
    window: int = 0
    heads: int = 0
    shares: int | None = None
    latent: bool = False
    exact: str = ""

    @property
    def shape(self) -> AttentionShape:
        latent = self.value_dim if self.latent else 0
        return AttentionShape(self.window, self.heads or self.kv_heads, self.kv_heads, self.key_dim, latent)

    @property
    def rows(self) -> int:
        """Rows of a token and head: of keys and of values."""
        return 1 if self.latent else 2

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token, scales included."""
        behind = self.key_dim - self.value_dim if self.latent else self.key_dim
        elements = self.value_dim * ELEMENT_BYTES[self.dtype] + behind * ELEMENT_BYTES[self.exact or self.dtype]
        return self.kv_heads * (elements + self.rows * SCALE_BYTES.get(self.dtype, 0))


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes of one layer in a block: from `offset` on."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class KvLayout:
    """A block of `block_size` tokens, of all layers under one id: the piece of each layer, None where it keeps nothing,
    and the bytes of all. Layers that share have one piece."""

    specs: tuple[CacheSpec | None, ...]
    block_size: int
    pieces: tuple[Piece | None, ...]
    block_bytes: int

    @classmethod
    def of(cls, specs: Sequence[CacheSpec | None], block_size: int, dtype: str | None = None) -> Self:
        """The layout of layers that keep `specs`, all in the type `dtype` if it is given."""
        kept = tuple(spec if spec is None or dtype is None else replace(spec, dtype=dtype) for spec in specs)
        pieces = list[Piece | None]()
        end = 0
        for spec in kept:
            if spec is None or spec.shares is not None:
                pieces.append(None if spec is None or spec.shares is None else pieces[spec.shares])
                continue
            pieces.append(Piece(end, block_size * spec.token_bytes))
            end += block_size * spec.token_bytes
        return cls(kept, block_size, tuple(pieces), end)


def windows_of(specs: Iterable[CacheSpec | None]) -> list[int]:
    """The sliding windows that occur among layers, in ascending order; 0: none."""
    return sorted({spec.window for spec in specs if spec is not None})


def common_window(specs: Iterable[CacheSpec | None]) -> int:
    """Tokens that a query sees in every layer; 0 if some layer sees all."""
    windows = windows_of(specs)
    return max(windows, default=0) if all(windows) else 0


def group_window(specs: Iterable[CacheSpec | None]) -> int:
    """Tokens that a query sees in layers with a window, where other layers see all: those may have a group of blocks of
    their own. 0 where there are no such layers, or no others."""
    windows = windows_of(specs)
    return windows[-1] if len(windows) > 1 and not windows[0] and windows[1] > 1 else 0


def in_group(specs: Iterable[CacheSpec | None], *, windowed: bool) -> tuple[CacheSpec | None, ...]:
    """Caches of layers with a window, or of the others; None for the rest."""
    return tuple(spec if spec is not None and (spec.window > 0) == windowed else None for spec in specs)


def shapes_of(specs: Iterable[CacheSpec | None]) -> list[AttentionShape]:
    """The shapes of attention that occur among layers, in ascending order."""
    return sorted({spec.shape for spec in specs if spec is not None})


def heads_per_kv(specs: Iterable[CacheSpec | None]) -> list[int]:
    """The numbers of query heads that share keys and values in some layer, in ascending order."""
    return sorted({shape.group for shape in shapes_of(specs)})
