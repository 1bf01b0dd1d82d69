"""The CUDA side of `ops`: launches on torch's current stream.

Kernels take what those for the CPU take, with block sizes that are powers of two. Attention runs on the tensor cores
for bfloat16 and float16 with `TENSOR_CORE_HEAD_DIMS` and a cache of the same type, and over a cache in eight bits with
head dims 64, 128 and 256; everything else takes slower kernels that compute in float32. Nothing here synchronises with
the device: every launch can be captured in a CUDA graph.

A build for AMD (`OCTAVO_HIP`) has the slower kernels alone, and torch computes products. Torch names AMD's devices and
streams as it names NVIDIA's, and so does this module.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from octavo_kernels.chips import Chip


def _module() -> Any:
    """None where it was not built, or for other GPUs than those of this torch."""
    try:
        module = importlib.import_module("octavo_kernels._cuda")
    except ImportError:
        return None
    return module if (module.built_for == "AMD") == (torch.version.hip is not None) else None


compiled: Any = _module()
BUILD_STEP = "install it where nvcc is on the PATH"
if torch.version.hip is not None:
    BUILD_STEP = "install it with CMAKE_ARGS=-DOCTAVO_HIP=gfx942, or what this chip is (kernels/README.md)"

log = logging.getLogger(__name__)

TENSOR_CORE_HEAD_DIMS = (32, 64, 96, 128, 256)
HALF = (torch.bfloat16, torch.float16)


def available() -> bool:
    """True if this build has kernels for the GPUs of this torch."""
    return compiled is not None


def has_tensor_cores() -> bool:
    """True if this build has the kernels that use them: attention's fast ones, all products, a decode step in one."""
    return compiled is not None and bool(compiled.tensor_cores)


def build_name() -> str:
    """Which kernels this build has, for messages."""
    return f"{'all' if has_tensor_cores() else 'the plain'} kernels for {compiled.built_for}" if compiled else "none"


def run(operation: str, device: torch.device, *arguments: object) -> Any:
    """Launches an operation of the module on the current stream of `device`. Returns what the operation says of it.
    Raises RuntimeError where this build has no kernels for the device, NotImplementedError where it lacks this one."""
    if compiled is None:
        raise RuntimeError(
            f"a tensor is on {device}, but this build of octavo-kernels has no kernels for it: {BUILD_STEP}"
        )
    launch = getattr(compiled, operation, None)
    if launch is None:
        kind = "" if compiled.tensor_cores else "plain "
        raise NotImplementedError(
            f"{operation} is not among the {kind}kernels for {compiled.built_for}: call it with tensors on the CPU"
        )
    return _launch(launch, device, *arguments)


def launched(operation: str, device: torch.device, *arguments: object) -> bool:
    """As `run`, where this build has the operation; whether the chip had room for it."""
    return bool(_launch(getattr(compiled, operation), device, *arguments))


def _launch(launch: Callable[..., Any], device: torch.device, *arguments: object) -> Any:
    """Calls it on `device`, with its current stream as the last argument. A step that is no graph comes here hundreds
    of times: guards and objects for streams would be a third of its time on the host."""
    if device.index == torch.cuda.current_device():
        return launch(*arguments, torch._C._cuda_getCurrentRawStream(device.index))
    with torch.cuda.device(device):
        return launch(*arguments, torch._C._cuda_getCurrentRawStream(device.index))


@cache
def chip(device: torch.device) -> Chip:
    """Facts of a GPU by which a product's kernel is chosen."""
    with torch.cuda.device(device):
        return Chip(*compiled.chip())


def runs_hopper_code(device: torch.device) -> bool:
    """True if this GPU runs what is built for Hopper alone, such as uniform products."""
    return compiled is not None and chip(device).hopper


def decode_step(device: torch.device, write: tuple[object, ...], attention: tuple[object, ...]) -> bool:
    """Launches what `rope_write_kv` and `paged_attention` with these arguments would; returns whether it did."""
    return has_tensor_cores() and bool(_launch(compiled.decode_step, device, write, attention))


@cache
def mapping_granularity(device: torch.device) -> int | None:
    """Bytes of which both parts of `mapped_memory` are multiples; None where the driver or the system maps no memory of
    the host behind the device's, which a trial tells, and in a build without that."""
    if not hasattr(compiled, "MappedPool"):
        log.info("kernels on %s do not read the host's memory: this build maps none", device)
        return None
    try:
        with torch.cuda.device(device):
            granularity: int = compiled.MappedPool.granularity(torch.cuda.current_device())
            compiled.MappedPool(torch.cuda.current_device(), granularity, granularity)
    except RuntimeError as error:
        log.info("kernels on %s do not read the host's memory: %s", device, error)
        return None
    return granularity


class _Foreign:
    """Foreign memory as torch takes it; keeps its owner alive.

    https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
    """

    def __init__(self, owner: Any, address: int, size: int) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def foreign_memory(owner: Any, address: int, size: int, device: torch.device) -> Tensor:
    """Memory of `device` that is not torch's as a tensor of bytes, which keeps `owner`."""
    return torch.as_tensor(_Foreign(owner, address, size), device=device)


def mapped_memory(device: torch.device, device_bytes: int, host_bytes: int) -> Tensor:
    """One tensor of bytes of which the first `device_bytes` lie on the device, and the others in pinned memory of the
    host, which kernels reach over the link. Uninitialised. Raises `RuntimeError` if there is not as much memory."""
    with torch.cuda.device(device):
        pool = compiled.MappedPool(torch.cuda.current_device(), device_bytes, host_bytes)
        return foreign_memory(pool, pool.address, device_bytes + host_bytes, device)


def check_cache(block_size: int) -> None:
    """Checks a block size for CUDA. Raises ValueError."""
    if block_size < 16 or block_size & (block_size - 1):
        raise ValueError(f"block_size must be a power of two on CUDA, 16 at least, not {block_size}")


def reads_prefixes_once(dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int) -> bool:
    """True if sequences with equal leading blocks can be grouped (`AttentionPlan.update`): the tensor cores' kernels
    do that, and only where the cache has the type of the data."""
    fits = dtype == cache_dtype and dtype.itemsize == 2 and head_dim in TENSOR_CORE_HEAD_DIMS
    return fits and has_tensor_cores()
