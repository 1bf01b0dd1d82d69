"""The name of a worker's arithmetic."""

from __future__ import annotations

from collections.abc import Collection

import torch

from octavo_kernels import ops

DECODER = "decoder-3"
"""The own decoder and its revision, which rises where it gives a model that it ran before other bits."""
TRANSFORMERS = "1"
"""Revision of all that stands around transformers' code; its version is told beside it."""


def numerics(
    device: torch.device,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    *,
    route: str,
    forms: Collection[str] = (),
    uniform: bool = False,
    factors: str = "",
    ranks: int = 1,
    whole_experts: bool = False,
    states: bool = False,
    chunks: bool = False,
    expanded: bool = False,
) -> str:
    """The CPU's instruction set or the GPU, the code that computes the model with its revision, the type of the
    weights and that of the KV cache, the forms of weights that are quantised (such as int4g128:
    `layers.quantised`), the factors of LongRoPE, the number of ranks (such as tp2), whose products are summed, and
    whether each has whole experts, the type of recurrent states, whether prompts go into these by chunks, and whether
    those of latent attention may be in the expanded form.
    Workers of one model with equal numerics generate the same tokens; on GPUs only with `uniform` rows."""
    computes = ops.cpu_level() if device.type == "cpu" else torch.cuda.get_device_name(device)
    names = [route, *(str(kind).removeprefix("torch.") for kind in (dtype, cache_dtype))]
    names += [f"weights {' + '.join(sorted(forms))}"] * bool(forms)
    names += ["deterministic"] * uniform + [f"{factors} factors"] * bool(factors) + ["state-f32"] * states
    names += ["chunks"] * chunks + ["expanded prompts"] * expanded
    names += [f"tp{ranks}"] * (ranks > 1) + ["whole experts"] * whole_experts
    return f"{device.type} {computes} {' '.join(names)}"
