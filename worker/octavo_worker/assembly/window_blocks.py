"""How many blocks layers with a window have, where they are a group of their own."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from octavo_worker.contract.cache import group_window
from octavo_worker.contract.capacity import Capacity
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.windows import Slabs
from octavo_worker.model.causal_model import CausalModel

MOST_SHARE = 0.5
"""Share of the memory for keys and values that windows take at most, where it is not shared."""
MOST_IN_SLAB = 16
"""Blocks of windows in a slab. More make slabs that are seldom free."""


@dataclass(frozen=True, slots=True)
class WindowGroup:
    """Layers with a window in a model that has layers that see all, too. They share the memory with those: `full_bytes`
    and `window_bytes` are those of a block of each, of all ranks together. One sequence runs with `least` blocks, and
    `wanted` are enough for all that run at once, beside a chunk; the null block is one of either. A prompt has `chunk`
    in a step. `is_beside`: blocks of the first group have more than the model's keys and values."""

    full_bytes: int
    window_bytes: int
    least: int
    wanted: int
    chunk: int
    is_beside: bool

    @classmethod
    def of(
        cls,
        options: ModelOptions,
        model: CausalModel,
        max_model_len: int,
        chunk: int,
        sizes: tuple[int, int],
        beside: int,
    ) -> WindowGroup | None:
        """The group of a model whose blocks have `sizes` of bytes, those of the first group `beside` others; steps
        compute `chunk` tokens of a prompt. None where all layers are one group: nothing falls out of a window, or the
        model reads one table. This is the only place that decides it."""
        window = group_window(model.cache)
        if not window or not model.reads_windows:
            return None
        capacity = Capacity(1, options.block_size, window=window)
        live, chunks = capacity.sliding_blocks(1), capacity.sliding_blocks(chunk)
        if live >= -(-max_model_len // options.block_size):
            return None
        full, windowed = sizes
        wanted = 1 + options.max_running * live + chunks
        return cls(full + beside, windowed, 1 + live, wanted, chunks, beside > 0)

    def blocks(self, budget: int, num_blocks: int | None) -> int:
        """Blocks of windows in `budget` bytes for both groups, or beside `num_blocks` that were asked for."""
        most = int(budget * MOST_SHARE) // self.window_bytes if num_blocks is None else num_blocks
        return max(self.least, min(self.wanted, most))

    def slabs(self, budget: int, most_blocks: int) -> Slabs | None:
        """The slabs of a memory of `budget` bytes that both groups share, of whose first `most_blocks` are enough. None
        where their blocks do not fill small slabs, and where one sequence would not have half of the memory."""
        ratio = Fraction(self.window_bytes, self.full_bytes)
        blocks, windows = ratio.numerator, ratio.denominator
        enough = -(-most_blocks // blocks) - (-self.wanted // windows)
        number = min(budget // (windows * self.window_bytes), enough)
        if windows > MOST_IN_SLAB or self.is_beside or not number:
            return None
        slabs = Slabs.of(number, number * blocks, number * windows, self.least - 1, self.chunk)
        return slabs if 2 * slabs.for_one >= number * blocks else None

    def on_host(self, budget: int) -> tuple[int, int]:
        """Blocks of layers that see all, without the null block, and of windows, in `budget` bytes of the host's
        memory; none where it has no room for both."""
        windows = min(self.wanted, int(budget * MOST_SHARE) // self.window_bytes)
        blocks = (budget - windows * self.window_bytes) // self.full_bytes
        return (blocks, windows) if blocks and windows > 1 else (0, 0)
