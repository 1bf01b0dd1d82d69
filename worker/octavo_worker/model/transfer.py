"""Copies between the host and a device that nothing waits for, and names of types."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""The types that models compute in, by name."""


def on_device(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of `values` on `device`, without waiting for it."""
    tensor = torch.as_tensor(values, dtype=dtype)
    return tensor.to(device) if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """`tensor` itself on the CPU, else a pinned copy that is complete once the current stream has come this far."""
    if tensor.is_cpu:
        return tensor
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


def dtype_name(dtype: torch.dtype) -> str:
    """Such as bfloat16."""
    return str(dtype).removeprefix("torch.")
