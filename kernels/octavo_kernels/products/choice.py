"""Which kernel computes a matrix product: decided here and in `coded_choice`, and nowhere else.

`choose` maps what is known of a product before it runs to a `Launch`, which the CUDA module carries out as it is told.
All thresholds are measurements on an H200 (kernels/NOTEBOOK.md). A new form of weights is a member of `Form` and a
branch here; those of codes with rows in 16 bits have `coded_choice`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from octavo_kernels.chips import Chip


class Form(IntEnum):
    """How a weight is stored."""

    DENSE_32 = 0
    DENSE_16 = 1
    INT8 = 2
    """As codes of eight bits, for rows that become such codes, too; a scale for each row."""
    FP8 = 3
    FP8_BLOCKS = 4
    """A scale for each row and 128 of the depth, of the weight and of x."""


class Ending(IntEnum):
    """Operation behind the product in the same launch, beside bias and residual."""

    PLAIN = 0
    GATE = 1
    """The activation of the first half of the columns, times the second half."""
    BIASED_GATE = 2


class Alignment(IntEnum):
    """Operands that begin, with each of their rows, at a multiple of 16 bytes."""

    NONE = 0
    INPUTS = 1
    """The weight, and the beginning of x and of the norm's weight."""
    ALL = 2


class Kernel(IntEnum):
    """Numbers from 0 on are those of `LinearKernel` in csrc/cuda/linear/args.h."""

    CUBLAS = -2
    CUBLASLT = -1
    ROW = 0
    HELD = 1
    RING = 2
    WIDE = 3
    UNIFORM = 4


class Tile(NamedTuple):
    """Tile of a kernel's results: 64 rows of x for each consumer, so many columns. The two blocks of a cluster share
    their rows of x or, `tall`, those of the weight."""

    consumers: int = 0
    columns: int = 0
    tall: bool = False


class Launch(NamedTuple):
    """A kernel and what it has to be told: `WIDE` and `UNIFORM` their tile, `RING` how many blocks of a `cluster` share
    the depth."""

    kernel: Kernel
    tile: Tile = Tile()
    cluster: int = 1


class W8A8Kernel(IntEnum):
    """Products of codes of eight bits with such codes; the numbers from 0 on are those of `W8A8Kernel` in
    csrc/cuda/w8a8/w8a8.h. `ROW` turns its row into codes itself, norm included."""

    ROW = -1
    PLAIN = 0
    WIDE = 1


class W8A8Launch(NamedTuple):
    """`WIDE` has tiles of at most so many rows of x, `tokens`, and `height` rows of the weight: 64 a consumer."""

    kernel: W8A8Kernel
    consumers: int = 0
    tokens: int = 0
    height: int = 0


OLDEST = 9  # the first chips with bulk copies and clusters
TENSOR_CORES = 8  # the first whose tensor cores take bfloat16; to a build without such kernels every chip is of major 0
FEW_ROWS = 32  # up to which a row's bits do not depend on the number of rows, unless it is alone
SOME_ROWS = 64  # of one consumer

# cuBLASLt's choices are 2 to 7 % faster over a decoder of 8B or 13B; with more rows or smaller weights they are slower.
LT_ROWS, LT_WEIGHT = 112, 1 << 24

# Depths whose x fits into the registers of two blocks, and of one. Between these sizes two are slower than the ring.
HELD_DEPTH, HELD_BLOCK_DEPTH = 5120, 2048
HELD_SMALL, HELD_LARGE = 1 << 23, 1 << 25

RING_ROWS, RING_LARGE = 16, 1 << 24  # with more rows a ring is worth it for large weights
# A narrow, deep weight has too few columns for tiles that feed the tensor cores well: two blocks share the depth.
# On Hopper cuBLAS makes two launches of it and a third for a residual, so there a ring is worth it for smaller ones.
NARROW_COLUMNS, NARROW_DEPTH = 4224, 2048

# Gates of more rows: where next to no room is empty, or the product is so short that a second launch counts.
GATE_ROWS, GATE_FULL, GATE_CLOCKS = 128, 0.95, 12000
PLAIN_SIZE, PLAIN_FULL = 1 << 24, 0.85

GATE_TILES = {
    1: (Tile(1, 224), Tile(1, 160), Tile(1, 128), Tile(1, 96)),
    2: (Tile(2, 256, tall=True), Tile(2, 224, tall=True), Tile(2, 224), Tile(2, 160), Tile(2, 128), Tile(2, 96)),
}
PLAIN_TILES = (Tile(1, 224), Tile(1, 160), Tile(1, 128), Tile(1, 96), Tile(1, 64), Tile(1, 48))
UNIFORM_TILES = (Tile(2, 256), Tile(2, 128))

# Consumers, tokens. Those of 208 are not chosen: nothing has measured them yet.
W8A8_TILES = ((1, 8), (1, 16), (1, 32), (1, 64), (1, 128), (2, 128), (2, 208), (2, 256))
# Rows for which one tile is fastest, or next to it: 16 tokens of 48 rows of the weight at most, of which two find room
# on a multiprocessor, and 64.
W8A8_FEW_ROWS, W8A8_FEW_HEIGHT, W8A8_SOME_ROWS = 16, 48, 64
ROW_DEPTH, ROW_NORMED = 16384, 8192  # of a row that each block holds
# Of `_w8a8_clocks`, fitted to the times of all tiles of an 8B: bytes a clock, of weights that are read once and through
# the L2; the least of a stage, and for each row of x and consumer; of a tile, and for each of its tokens.
CODE_RATE, CODE_L2_RATE, STAGE_CLOCKS, TOKEN_CLOCKS, TILE_CLOCKS, TILE_TOKEN_CLOCKS = 40, 60, 200, 3.5, 6000, 24

RECENT = 256
"""Choices that are remembered: those of a few steps, so that a step's layers find what its first one chose."""


@lru_cache(maxsize=RECENT)
def choose(
    rows: int,
    columns: int,
    depth: int,
    form: Form,
    ending: Ending,
    chip: Chip,
    normed: bool = False,
    alignment: Alignment = Alignment.ALL,
) -> Launch | None:
    """The launch for `x[rows, depth] @ weight[columns, depth].T`. `normed`: the launch begins with an RMS norm of x.

    None: no launch does all of that faster than its steps apart (norm, product, activation).
    """
    own = None
    if form is Form.DENSE_16 and rows > 0 and chip.major >= OLDEST:
        own = _own(rows, columns, depth, ending, chip, normed, alignment)
    if own is not None or normed or ending is not Ending.PLAIN:
        return own
    return library(rows, columns, depth, form)


@lru_cache(maxsize=RECENT)
def choose_uniform(rows: int, columns: int, chip: Chip) -> Launch:
    """For a product none of whose rows depends on how many there are: the largest tile of which every multiprocessor
    has one. All tiles give the same bits."""

    def fills(tile: Tile) -> bool:
        return over(rows, 64 * tile.consumers) * over(columns, tile.columns) >= chip.multiprocessors

    if rows <= SOME_ROWS:
        return Launch(Kernel.UNIFORM, Tile(1, 64) if fills(Tile(1, 64)) else Tile(1, 32))
    return Launch(Kernel.UNIFORM, next(filter(fills, UNIFORM_TILES), Tile(2, 64)))


def choose_w8a8(
    rows: int, columns: int, depth: int, form: Form, chip: Chip, normed: bool = False, uniform: bool = False
) -> W8A8Launch | None:
    """For a product of codes with codes, with any ending. Sums of integers are exact in all kernels; neither tiles nor
    the number of rows change a bit of `WIDE`, so that is what `uniform` products of floats are. None: the product goes
    by way of a dequantised matrix."""
    by_row = rows == 1 and (form is Form.INT8 or not uniform)
    return _w8a8(rows, columns, depth, form, chip, normed, uniform, by_row)


@lru_cache(maxsize=RECENT)
def _w8a8(
    rows: int, columns: int, depth: int, form: Form, chip: Chip, normed: bool, uniform: bool, by_row: bool
) -> W8A8Launch | None:
    if chip.major < TENSOR_CORES or (uniform and form is not Form.INT8 and not chip.hopper):
        return None
    if by_row and chip.major >= OLDEST and depth <= (ROW_NORMED if normed else ROW_DEPTH):
        return W8A8Launch(W8A8Kernel.ROW)
    if not chip.hopper:
        return W8A8Launch(W8A8Kernel.PLAIN)
    few, some = rows <= W8A8_FEW_ROWS, rows <= W8A8_SOME_ROWS
    wanted = (W8A8_FEW_ROWS,) if few else (W8A8_SOME_ROWS,) if some else (128, 256) if rows > 128 else (128,)
    tiles = [
        W8A8Launch(W8A8Kernel.WIDE, consumers, tokens, height)
        for consumers, tokens in W8A8_TILES
        if tokens in wanted
        for height in range(W8A8_FEW_HEIGHT if few else 64 * consumers, 64 * (consumers - 1), -16)
    ]
    return min(tiles, key=lambda tile: _w8a8_clocks(tile, rows, columns, depth, chip))


def _w8a8_clocks(tile: W8A8Launch, rows: int, columns: int, depth: int, chip: Chip) -> float:
    """About how many a product takes. A stage is 128 of the depth: its weights come from memory, once for all tiles
    with these rows; those and half of the rows of x, which two blocks share, through the L2."""
    along_x = over(rows, tile.tokens)
    pairs = along_x * over(columns, 2 * tile.height)
    tokens = over(rows, along_x)
    stage = max(
        128 * tile.height / (CODE_RATE * along_x),
        128 * (tile.height + tokens / 2) / CODE_L2_RATE,
        TOKEN_CLOCKS * tile.tokens * tile.consumers,
        STAGE_CLOCKS,
    )
    at_once = chip.multiprocessors // (1 if tile.tokens <= W8A8_FEW_ROWS else 2)
    rounds = over(pairs, at_once)
    return rounds * (over(depth, 128) * stage + TILE_CLOCKS + TILE_TOKEN_CLOCKS * tile.tokens)


def library(rows: int, columns: int, depth: int, form: Form) -> Launch:
    """Which of torch's libraries computes a product that none of our kernels does."""
    better = form is Form.DENSE_16 and rows <= LT_ROWS and columns * depth > LT_WEIGHT
    return Launch(Kernel.CUBLASLT if better else Kernel.CUBLAS)


def _own(
    rows: int, columns: int, depth: int, ending: Ending, chip: Chip, normed: bool, alignment: Alignment
) -> Launch | None:
    gated = ending is not Ending.PLAIN
    if rows == 1 and alignment >= Alignment.INPUTS and _row_takes(columns, depth, gated, chip, normed):
        return Launch(Kernel.ROW)
    if normed or depth == 0 or columns % (16 if gated else 8) or alignment < Alignment.ALL:
        return None  # a norm of several rows is better off in a launch of its own
    size = columns * depth
    if rows <= FEW_ROWS and _is_held(columns, depth):
        return Launch(Kernel.HELD)
    shares = not gated and columns <= NARROW_COLUMNS and depth >= NARROW_DEPTH
    large = HELD_SMALL if shares and columns < depth and chip.hopper else RING_LARGE
    if rows <= (FEW_ROWS if size >= large else RING_ROWS) and depth % 64 == 0:
        return Launch(Kernel.RING, cluster=2 if shares else 1)
    if not chip.hopper or ending is Ending.BIASED_GATE:
        return None
    return _gate(rows, columns, depth, chip) if gated else _plain(rows, columns, depth, chip)


def _is_held(columns: int, depth: int) -> bool:
    if depth % 32 or depth > HELD_DEPTH:
        return False
    return depth <= HELD_BLOCK_DEPTH or not HELD_SMALL < columns * depth < HELD_LARGE


def _row_takes(columns: int, depth: int, gated: bool, chip: Chip, normed: bool) -> bool:
    """True if x and a ring of two pieces of the weight for each of sixteen warps fit into shared memory, as
    linear_row.cu lays it out."""
    if depth == 0 or depth % 8 or (normed and depth > 8192):
        return False
    piece = min(2048, over(depth, 1024) * 1024)
    units = columns // 2 if gated else columns
    blocks = min(chip.multiprocessors, over(units, 16))
    pieces = over(units, 16 * blocks) * (2 if gated else 1) * over(depth, piece)
    free = chip.shared_per_block - (19072 + over(2 * depth, 128) * 128)
    return min(pieces, 2) * 16 * piece * 2 <= free


class _Tiling(NamedTuple):
    """A product in tiles of one kind. `room`: results until the last round of clusters ends. `clocks`: about how many
    they keep a multiprocessor's shared memory busy, which moves 128 bytes a clock. Into it go x and weights; out of it
    each consumer reads its x and all weights; storing a column's results takes about twelve clocks."""

    clocks: int
    room: int
    tile: Tile

    @classmethod
    def of(cls, tile: Tile, rows: int, columns: int, depth: int, chip: Chip) -> _Tiling:
        high, wide = (2, 1) if tile.tall else (1, 2)
        height = 64 * tile.consumers
        pairs = over(rows, height * high) * over(columns, tile.columns * wide)
        at_once = chip.multiprocessors // 2
        rounds = over(pairs, at_once)
        stage = 2 * height + (tile.consumers + 1) * tile.columns
        stages = over(depth, 64)
        return cls(rounds * (stages * stage + 12 * tile.columns), rounds * at_once * 2 * height * tile.columns, tile)


def _soonest(tiles: Iterable[Tile], rows: int, columns: int, depth: int, chip: Chip) -> _Tiling:
    """The tiling that is done first; of equals the first one."""
    return min((_Tiling.of(tile, rows, columns, depth, chip) for tile in tiles), key=lambda tiling: tiling.clocks)


def _gate(rows: int, columns: int, depth: int, chip: Chip) -> Launch | None:
    best = _soonest(GATE_TILES[_consumers(rows)], rows, columns, depth, chip)
    worth = rows <= GATE_ROWS or rows * columns >= GATE_FULL * best.room or best.clocks <= GATE_CLOCKS
    return Launch(Kernel.WIDE, best.tile) if worth else None


def _plain(rows: int, columns: int, depth: int, chip: Chip) -> Launch | None:
    """Up to 64 rows, where there is a lot to read. Some small matrices are faster by themselves, but not where a
    decoder's layers follow each other."""
    if rows > SOME_ROWS or columns * depth < PLAIN_SIZE:
        return None
    best = _soonest(PLAIN_TILES, rows, columns, depth, chip)
    return Launch(Kernel.WIDE, best.tile) if SOME_ROWS * columns >= PLAIN_FULL * best.room else None


def _consumers(rows: int) -> int:
    return 1 if rows <= SOME_ROWS else 2


def over(n: int, by: int) -> int:
    return -(-n // by)
