"""Sequences in a paged cache of wide heads, and what attention makes of them in float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import torch
from torch import Tensor

from octavo_kernels import reference
from octavo_kernels.attention.latent import latent_cells

TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
SCALE = 0.0625
LATENT, VALUES = 576, 512
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # of the reference


@dataclass
class WideRows:
    """Queries `[T, heads, width]`, and keys and values `[context, kv_heads, width]` of each sequence. Blocks are in any
    order, and what is not written in the cache is NaN."""

    queries: Tensor
    cache: Tensor
    tables: Tensor
    context_lens: Tensor
    query_start: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    block_size: int

    def sequences(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.tables, self.context_lens, self.query_start

    @cached_property
    def expected(self) -> Tensor:
        parts = []
        for number, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            own = slice(int(self.query_start[number]), int(self.query_start[number + 1]))
            operands = (each.to(DEVICE).double() for each in (self.queries[own], keys, values))
            parts.append(reference.attention(*operands, SCALE)[..., :VALUES].cpu())
        return torch.cat(parts)

    def check(self, out: Tensor, *, scaled: bool = False) -> None:
        """`scaled`: beside the largest value, as where those of keys grow."""
        tolerance = TOLERANCE[self.queries.dtype] * (float(self.expected.abs().max()) if scaled else 1.0)
        torch.testing.assert_close(out.double(), self.expected, atol=tolerance, rtol=tolerance)

    def only(self, number: int, first: int, last: int) -> WideRows:
        """Queries `first` to `last` of one sequence, which ends there."""
        asked = int(self.query_start[number + 1] - self.query_start[number])
        begin, end = int(self.query_start[number]), int(self.context_lens[number]) - asked + last
        keys, values = self.keys[number][:end], self.values[number][:end]
        return WideRows(
            self.queries[begin + first : begin + last], self.cache, self.tables[number : number + 1].contiguous(),
            torch.tensor([end], dtype=torch.int32), torch.tensor([0, last - first], dtype=torch.int32), [keys],
            [values], self.block_size,
        )  # fmt: skip


def swizzled(rows: Tensor) -> Tensor:
    """Rows `[tokens, width]` of a block's tokens with their units of 16 bytes as the cache has them."""
    tokens, width = rows.shape
    units = torch.arange(width // 8)
    places = (units & ~7) + ((units ^ torch.arange(tokens)[:, None]) & 7)
    return torch.empty_like(rows).view(tokens, -1, 8).scatter_(
        1, places[..., None].expand(-1, -1, 8), rows.reshape(tokens, -1, 8)
    ).view(tokens, width)  # fmt: skip


def coded(rows: Tensor, cells: torch.dtype, *, of_values: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Rows `[tokens, 512]` as codes (uint8) where a cache in eight bits has them, their scales `[tokens, 1]`, and what
    the two stand for."""
    codes, scales = reference.quantise(rows.float(), cells)
    raised = (codes.to(torch.int16) + 128).to(torch.uint8) if cells is torch.int8 else codes.view(torch.uint8)
    tokens, columns = torch.arange(len(rows))[:, None], torch.arange(VALUES)
    within, unit = columns % 16, columns // 16
    turned = within % 8 * 2 + within // 8 if of_values else within % 8 // 2 * 4 + within % 2 + within // 8 * 2
    places = ((unit & ~7) + ((unit ^ tokens) & 7)) * 16 + turned
    return torch.empty_like(raised).scatter_(1, places, raised), scales, codes.double() * scales.double()


def put_coded(memory: Tensor, rows: Tensor, block_size: int, cells: torch.dtype, *, of_values: bool) -> Tensor:
    """Puts rows `[tokens, width]` into the bytes of a block and head; returns what can be read there."""
    tokens, dtype = len(rows), rows.dtype
    codes, scales, read = coded(rows[:, :VALUES], cells, of_values=of_values)
    end = block_size * (VALUES + 4)
    memory[: block_size * VALUES].view(block_size, VALUES)[:tokens] = codes
    memory[block_size * VALUES : end].view(torch.float32)[:tokens] = scales[:, 0]
    exact = rows[:, VALUES:]
    if exact.shape[1]:
        memory[end:].view(dtype).view(block_size, -1)[:tokens] = exact
    return torch.cat((read, exact.double()), dim=1)


def wide_rows(
    lengths: list[tuple[int, int]], heads: int, kv_heads: int = 1, *, latent: bool = True,
    dtype: torch.dtype = torch.bfloat16, block_size: int = 16, rising: bool = False, cells: torch.dtype | None = None,
) -> WideRows:  # fmt: skip
    """Rows of sequences with so many queries, at the end of so many tokens. `rising`: keys grow along the context, from
    nothing to ten times as long, and with them the highest scores. `cells`: type of a cache in eight bits."""
    generator = torch.Generator().manual_seed(heads)
    width, kinds = (LATENT, 1) if latent else (VALUES, 2)
    needed = [-(-context // block_size) for _, context in lengths]
    if cells is None:
        cache = torch.full((sum(needed) + 2, kinds, kv_heads, block_size * width), float("nan"), dtype=dtype)
    else:
        count = latent_cells(width, VALUES, block_size, dtype, cells)
        cache = torch.full((sum(needed) + 2, kinds, kv_heads, count), 255, dtype=torch.uint8)
    order = torch.randperm(sum(needed), generator=generator) + 1
    tables = torch.full((len(lengths), max(needed)), -(2**31), dtype=torch.int32)
    kept: list[list[Tensor]] = []
    start = 0
    for row, ((_, context), count) in enumerate(zip(lengths, needed, strict=True)):
        blocks = order[start : start + count]
        tables[row, :count] = blocks
        start += count
        made = [torch.randn(context, kv_heads, width, generator=generator) for _ in range(kinds)]
        if rising:
            made[0] *= torch.linspace(0, 10, context)[:, None, None]
        written = [each.to(dtype) for each in made]
        kept.append([each.double() for each in written])
        for number, block in enumerate(blocks.tolist()):
            own = slice(number * block_size, (number + 1) * block_size)
            for kind, head in product(range(kinds), range(kv_heads)):
                place, rows = cache[block, kind, head], written[kind][own, head]
                if cells is None:
                    place.view(block_size, width)[: len(rows)] = swizzled(rows)
                else:
                    kept[-1][kind][own, head] = put_coded(place, rows, block_size, cells, of_values=kind == 1)
    queries = torch.randn(sum(asked for asked, _ in lengths), heads, width, generator=generator).to(dtype)
    starts = torch.tensor([0, *(asked for asked, _ in lengths)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    lens = torch.tensor([context for _, context in lengths], dtype=torch.int32)
    if cells is not None:
        cache = cache.view(cells)
    return WideRows(
        queries, cache, tables, lens, starts, [each[0] for each in kept], [each[-1] for each in kept], block_size
    )
