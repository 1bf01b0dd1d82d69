"""Attention of heads with 512 values on Hopper: which heads they are, and the plan that their layers share."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels import cuda
from octavo_kernels.attention.plan import AttentionPlan
from octavo_kernels.cache.blocks import CELLS

VALUES = 512
LATENT_WIDTH = 576


def takes_wide(device: torch.device, dtype: torch.dtype, cache_dtype: torch.dtype, width: int, latent: int = 0) -> bool:
    """True if heads of `width` elements go to the kernels of this module: data of a 16-bit type, a cache of the same or
    in eight bits, keys and values of 512, or keys whose first `latent` elements, 512 of 576, are the values."""
    fits = (width, latent) in ((VALUES, 0), (LATENT_WIDTH, VALUES)) and dtype in cuda.HALF
    fits = fits and (dtype == cache_dtype or cache_dtype in CELLS)
    return fits and device.type == "cuda" and cuda.runs_hopper_code(device)


class WidePlan:
    """Work of one step's attention of wide heads, cut on the device into an equal stretch of keys for each
    multiprocessor (Stream-K, arXiv 2301.03598), and the scratch memory that its layers share.

    In the place of an `AttentionPlan`, with the same `update`; but there is no limit of tokens, chunks, or queries, and
    no sequence reads a prefix for others. What a row is, in bits, depends on the batch, unless the plan is `uniform`,
    which cuts no keys. One stream at a time may use it.
    """

    one_query_each = steps_alone = shared_prefixes = False

    def __init__(
        self,
        *,
        sequences: int,
        heads: int,
        kv_heads: int,
        latent: bool,
        uniform: bool = False,
        device: torch.device | str = "cuda",
    ) -> None:
        self.sequences, self.heads, self.kv_heads, self.latent = sequences, heads, kv_heads, latent
        self._cuts = not uniform
        self._device = torch.empty(0, device=device).device
        self._blocks = cuda.chip(self._device).multiprocessors
        lists, partial = cuda.compiled.wide_sizes(self._blocks)
        self._lists = torch.zeros(lists // 4, dtype=torch.int32, device=device)
        self._partial = torch.empty(partial // 4, dtype=torch.float32, device=device)
        self._lengths: tuple[Tensor, Tensor] | None = None  # which kernels read, too

    @staticmethod
    def partial_bytes(device: torch.device) -> int:
        """Bytes of a plan's partial results, nearly all of its memory."""
        return int(cuda.compiled.wide_sizes(cuda.chip(device).multiprocessors)[1])

    def update(
        self,
        context_lens: Tensor,
        query_start: Tensor,
        groups: Tensor | None = None,
        prefix_lens: Tensor | None = None,
        *,
        decodes: bool = True,
        prompts: bool = True,
    ) -> None:
        """Makes the lists for a step of `context_lens[S]` and `query_start[S + 1]` (int32), S at most `sequences`. Both
        are read by the layers as well: they must stay as they are until then. The others say nothing here. Raises
        ValueError for more sequences than the plan was made for."""
        count = context_lens.shape[0]
        if count > self.sequences:
            raise ValueError(f"context_lens has {count} sequences, but the plan was made for {self.sequences}")
        for name, tensor, size in (("context_lens", context_lens, count), ("query_start", query_start, count + 1)):
            if tensor.shape != (size,) or tensor.dtype != torch.int32 or tensor.device != self._device:
                raise ValueError(
                    f"{name} must be int32 of shape [{size}] on {self._device}, not {tensor.dtype} of "
                    f"{list(tensor.shape)} on {tensor.device}"
                )
        self._lengths = (context_lens, query_start)
        group = self.heads // self.kv_heads
        cuda.run("plan_wide", self._device, self._operands(count), group, self.kv_heads, self._cuts)

    def use(self, sequences: int, heads: int, kv_heads: int, *, latent: bool) -> tuple[int, ...]:
        """The lists, for a call with the `sequences` of the last `update`, as `wide_attention` of the module takes
        them. Raises ValueError for other heads than the plan's."""
        own = (self.heads, self.kv_heads, self.latent)
        if own != (heads, kv_heads, latent):
            raise ValueError(f"plan was made for (heads, kv_heads, latent) = {own}, not {(heads, kv_heads, latent)}")
        return self._operands(sequences)

    def _operands(self, sequences: int) -> tuple[int, ...]:
        """As `WideLists` of csrc/cuda/attention/wide_bindings.cpp."""
        assert self._lengths is not None
        contexts, starts = self._lengths
        addresses = (each.data_ptr() for each in (contexts, starts, self._lists, self._partial))
        return sequences, self._blocks, *addresses


Plan = AttentionPlan | WidePlan
