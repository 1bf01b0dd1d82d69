"""Which kernel computes a product of rows in 16 bits with a weight of codes; see `choice`."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from octavo_kernels.chips import Chip
from octavo_kernels.products.choice import OLDEST, RECENT, Ending, over
from octavo_kernels.products.coded import STRIP_ROWS, Bricks


class CodedKernel(IntEnum):
    """Kernels in csrc/cuda/coded/."""

    MATRIX = 0
    """The weight is dequantised, and a library multiplies."""
    FEW = 1
    TILES = 2
    WIDE = 3
    """The only ones whose weights are rounded to the type of x are this one's and the matrix's."""


class CodedLaunch(NamedTuple):
    """`TILES` are of so many `tokens`, rows of x, and a `cluster` of blocks shares the depth. `WIDE` has tiles of at
    most so many, with 64 rows of the weight for each of its `consumers`, and `shares` pairs of blocks share the depth
    of all tiles evenly, or 0: they have whole tiles."""

    kernel: CodedKernel
    tokens: int = 0
    cluster: int = 1
    consumers: int = 0
    shares: int = 0


CODED_FEW_ROWS = 8
CODED_NARROW_ROWS = 64  # from there on wide tiles, or a copy
CODED_WIDE_ROWS = 4096  # from there on a matrix is dequantised for a library
CODED_TILE_ROWS = 512  # likewise, where wide tiles cannot store
CODED_TOKENS = (8, 16, 32, 64, 128)
CODED_STRIPS, CODED_MOST_CLUSTER, CODED_LEAST_BRICKS = 8, 8, 4  # of a block
CODED_PAIRED_TOKENS = 32  # up to there a multiprocessor has two blocks
# Of the clusters of more than two blocks that there is room for, as many start at once.
CODED_ROOM = 0.9
# Clocks of a block: of a brick; of its beginning and end, and there for each block of the cluster.
CODED_BRICK, CODED_END, CODED_SHARE = 1220, 5000, 1300

WIDE_TILES = ((2, 64), (2, 128), (2, 192), (2, 208), (2, 256))  # consumers, tokens
SHARED_TILES = 500  # pairs of them, of which a product has counters
# Bytes a clock that a multiprocessor gets of what is read once, and out of the L2, from data sheets.
MEMORY_RATE, L2_RATE = 19, 26
# Clocks: of a consumer's stage, and for each row of x in it; of a tile's beginning and end; of the end where pairs add
# up each other's sums, and for each of its sums of a thread.
WIDE_STAGE, WIDE_TOKEN, WIDE_END, SHARED_END, SHARED_ROW = 230, 1.4, 2000, 8000, 9


def choose_coded(
    rows: int,
    columns: int,
    depth: int,
    bricks: Bricks,
    ending: Ending,
    chip: Chip,
    normed: bool = False,
    uniform: bool = False,
    in_eights: bool = True,
    shares: bool = True,
) -> CodedLaunch | None:
    """The launch for `x[rows, depth]`, in 16 bits and aligned, with a weight of codes; see `choice.choose`.
    `in_eights`: results, and what is added to them, are aligned, too. `shares`: there are counters for tiles that
    blocks share.

    Rows of `TILES` never depend on how many there are, so a `uniform` product is one of those, or None.
    """
    gated = ending is not Ending.PLAIN
    if gated and columns % (2 * STRIP_ROWS):
        return None
    if not uniform and _few_takes(rows, depth, bricks, chip, normed):
        return CodedLaunch(CodedKernel.FEW)
    if normed:
        return None
    wide = chip.hopper and not uniform and in_eights and columns % 8 == 0
    if wide and CODED_NARROW_ROWS < rows <= CODED_WIDE_ROWS:
        return _wide(rows, columns, depth, bricks, gated, chip, shares)
    if chip.hopper and (uniform or rows <= CODED_TILE_ROWS):
        tokens = next((n for n in CODED_TOKENS if rows <= n), CODED_TOKENS[-1])
        blocks = 2 if tokens <= CODED_PAIRED_TOKENS and not uniform else 1
        return CodedLaunch(CodedKernel.TILES, tokens, _coded_cluster(columns, depth, bricks, gated, chip, blocks))
    return None if gated or uniform else CodedLaunch(CodedKernel.MATRIX)


def prefers_copy(rows: int, chip: Chip) -> bool:
    """True if a copy of a weight in 16 bits, if there is one, is multiplied sooner than the codes."""
    return rows > (CODED_NARROW_ROWS if chip.hopper else CODED_FEW_ROWS)


def _few_takes(rows: int, depth: int, bricks: Bricks, chip: Chip, normed: bool) -> bool:
    """True if x, or a cluster's share of it, fits into shared memory beside the sums of a unit, as coded_few.cu lays it
    out."""
    if not 0 < rows <= CODED_FEW_ROWS or depth % 8 or (normed and (rows > 1 or depth > 8192)):
        return False
    blocks = CODED_MOST_CLUSTER if chip.major >= OLDEST else 1
    held, whole = (over(over(depth, bricks.depth), n) * bricks.depth * 2 + 16 for n in (blocks, 1))
    return 128 + max(CODED_FEW_ROWS * held, whole) + CODED_FEW_ROWS * 144 <= chip.shared_per_block


@lru_cache(maxsize=RECENT)
def _coded_cluster(columns: int, depth: int, bricks: Bricks, gated: bool, chip: Chip, blocks: int) -> int:
    """Blocks that share the depth of a tile, which have some bricks each: as many as are done first, the fewest of
    equals. A multiprocessor has room for `blocks`. None is taken to be alone there: where there is room, those of a
    decoder's next product start."""
    strips, deep = over(columns, STRIP_ROWS), over(depth, bricks.depth)
    tiles = over(strips // 2, CODED_STRIPS // 2) if gated else over(strips, CODED_STRIPS)

    def clocks(n: int) -> int:
        room = max(1, int(blocks * chip.multiprocessors / n * (CODED_ROOM if n > 2 else 1)))
        return over(tiles, room) * (over(deep, n) * CODED_BRICK + CODED_END + n * CODED_SHARE)

    shares = range(1, CODED_MOST_CLUSTER + 1)
    return min((n for n in shares if n == 1 or deep >= n * CODED_LEAST_BRICKS), key=clocks)


@lru_cache(maxsize=RECENT)
def _wide(rows: int, columns: int, depth: int, bricks: Bricks, gated: bool, chip: Chip, may_share: bool) -> CodedLaunch:
    """The tile that is done first; of equals the first one."""
    strips, stages = over(columns, STRIP_ROWS) // (2 if gated else 1), over(depth, 64)
    pairs, launches = chip.multiprocessors // 2, []
    for consumers, tokens in WIDE_TILES:
        tiles = over(rows, tokens) * over(strips, 8 * consumers // (2 if gated else 1))
        shares = {0}
        if may_share and tiles <= SHARED_TILES:
            shares |= {min(pairs, tiles * stages), tiles * min(pairs // tiles, stages)}
        launches += [
            (_wide_clocks(tokens, consumers, n, tiles, rows, stages, bricks, chip), i, n, tokens, consumers)
            for i, n in enumerate(sorted(shares))
        ]
    _, _, n, tokens, consumers = min(launches)
    return CodedLaunch(CodedKernel.WIDE, tokens, 1, consumers, n)


def _wide_clocks(
    most: int, consumers: int, shares: int, tiles: int, rows: int, stages: int, bricks: Bricks, chip: Chip
) -> float:
    """About how many a product takes. A stage is 64 of the depth: its weights come from memory, once for all tiles with
    these rows; those and half of the rows of x, which two blocks share, through the L2. Consumers take turns at the
    tensor cores, and what one unpacks meanwhile hides only in part behind the other's products."""
    along_x = over(rows, most)
    tokens = over(over(rows, along_x), 16) * 16
    weights = 64 * consumers * (4096 // bricks.depth + 4 * over(64 * bricks.scales, bricks.depth))
    stage = max(
        consumers * (WIDE_STAGE + WIDE_TOKEN * most),
        weights / (MEMORY_RATE * along_x),
        (weights + 64 * tokens) / L2_RATE,
    )
    if shares:
        ends = 2 if shares % tiles else 1  # tiles of a pair that others have a part of
        return over(tiles * stages, shares) * stage + WIDE_END + ends * (SHARED_END + SHARED_ROW * most * consumers)
    return over(tiles, chip.multiprocessors // 2) * (stages * stage + WIDE_END)
