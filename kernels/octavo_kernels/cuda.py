"""The CUDA side of `ops`: launches on torch's current stream.

Kernels take what those for the CPU take, with block sizes that are powers of two. Attention runs on the tensor cores
for bfloat16 and float16 with `TENSOR_CORE_HEAD_DIMS` and a cache of the same type, and over a cache in eight bits with
head dims 64, 128 and 256; everything else takes slower kernels that compute in float32. Nothing here synchronises with
the device: every launch can be captured in a CUDA graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from octavo_kernels.operands import RmsNorm

try:
    from octavo_kernels import _cuda
except ImportError:  # built without nvcc
    _cuda = None

log = logging.getLogger(__name__)

TENSOR_CORE_HEAD_DIMS = (32, 64, 96, 128, 256)
LINEAR_DTYPES = {torch.bfloat16: 1, torch.float16: 2}
# Up to so many rows products may be ours on Hopper (of few, no row feels how many), those with a gate with more, too.
FEW_ROWS, LINEAR_ROWS = 32, 64
# What cuBLASLt chooses is 2 to 7 % faster over a decoder of 8B or 13B, with more rows or fewer weights slower (H200).
LT_ROWS, LT_WEIGHTS = 112, 1 << 24
# Products with more rows, square ones that are wider, or with other depths gain nothing by being cut (H200).
SPLIT_ROWS, SPLIT_SQUARE, SPLIT_DEPTH = 384, 4096, 512
# Parts of products with so many rows and weights at most are sooner done by our kernel (H200).
OWN_PARTS = ((64, 1 << 24), (128, 1 << 22), (256, 3 << 20))
SUMMED_COLUMNS = 8192  # of 16 bits, the most that the norm of a sum takes


def available() -> bool:
    """Whether this build has CUDA kernels."""
    return _cuda is not None


def run(operation: str, device: torch.device, *arguments: object) -> None:
    """Launches an operation of the module on the current stream of `device`."""
    if _cuda is None:
        raise RuntimeError(
            f"a tensor is on {device}, but this build of octavo-kernels has no CUDA kernels: "
            "install it where nvcc is on the PATH"
        )
    launch = getattr(_cuda, operation, None)
    if launch is None:
        raise NotImplementedError(f"{operation} has no CUDA kernel yet: call it with tensors on the CPU")
    _launch(launch, device, *arguments)


def _launch(launch: Callable[..., Any], device: torch.device, *arguments: object) -> Any:
    """Calls it on `device`, with its current stream as the last argument. A step that is no graph comes here hundreds
    of times: guards and objects for streams would be a third of its time on the host."""
    if device.index == torch.cuda.current_device():
        return launch(*arguments, torch._C._cuda_getCurrentRawStream(device.index))
    with torch.cuda.device(device):
        return launch(*arguments, torch._C._cuda_getCurrentRawStream(device.index))


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
    counter: Tensor | None = None,
) -> None:
    """Our kernel where it takes the product, else torch (cuBLAS), whose algorithm depends on the number of rows."""
    if launch_linear(x, weight, bias, residual, out, counter=counter):
        return
    better = len(x) <= LT_ROWS and weight.numel() > LT_WEIGHTS and x.dtype in LINEAR_DTYPES
    with _cublaslt() if better else nullcontext():
        if residual is not None and bias is not None:
            torch.addmm(residual, x, weight.t(), out=out).add_(bias)
        elif bias is None and residual is None:
            torch.mm(x, weight.t(), out=out)
        else:
            torch.addmm(bias if residual is None else residual, x, weight.t(), out=out)


def parts_of(x: Tensor, weight: Tensor) -> int:
    """Into how many parts along its depth a product of dozens of rows is cut best, if their sum costs little: where
    tiles of 128 x 128 results leave half of the multiprocessors idle, and the depth is worth it (see `SPLIT_ROWS`)."""
    rows, (columns, depth) = len(x), weight.shape
    if x.dtype not in LINEAR_DTYPES or not FEW_ROWS < rows <= SPLIT_ROWS or depth % SPLIT_DEPTH:
        return 1
    if columns % 8 or columns > SUMMED_COLUMNS:
        return 1
    if depth < columns or depth == columns > SPLIT_SQUARE or (rows <= LT_ROWS and weight.numel() > LT_WEIGHTS):
        return 1
    room = _multiprocessors(x.device) // (-(-rows // 128) * -(-columns // 128))
    return 4 if room >= 16 else 2 if room >= 2 else 1


def linear_parts(x: Tensor, weight: Tensor, parts: int) -> Tensor:
    """The product, cut along the depth, by our kernel where it is the faster one: float32 `[parts, rows, columns]`."""
    own = any(len(x) <= rows and weight.numel() <= weights for rows, weights in OWN_PARTS)
    if own and runs_hopper_code(x.device):
        out = torch.empty(parts, len(x), len(weight), dtype=torch.float32, device=x.device)
        if _launch(
            _cuda.linear_parts, x.device, LINEAR_DTYPES[x.dtype], x.data_ptr(), x.stride(0), weight.data_ptr(),
            weight.stride(0), out.data_ptr(), len(x), *weight.shape, parts,
        ):  # fmt: skip
            return out
    cut = [tensor.unflatten(1, (parts, -1)) for tensor in (x, weight)]
    return torch.bmm(cut[0].transpose(0, 1), cut[1].permute(1, 2, 0), torch.float32)


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@contextmanager
def _cublaslt() -> Iterator[None]:
    """Torch's products by the library that chooses better for some dozens of rows (see `LT_ROWS`). The choice is a
    variable of the process on the host: a graph that is captured keeps the kernels that were chosen."""
    library = torch.backends.cuda.preferred_blas_library
    before = library()
    library("cublaslt")
    try:
        yield
    finally:
        library(before)


def linear_uniform(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, out: Tensor) -> None:
    """With our kernel of which no row feels how many there are. Raises TypeError or ValueError for what it does not
    take, RuntimeError on chips that it is not for."""
    if not runs_hopper_code(x.device):
        raise RuntimeError(f"uniform products need a Hopper GPU and kernels built for it, not {x.device}")
    if x.dtype not in LINEAR_DTYPES:
        raise TypeError(f"x must be bfloat16 or float16 for a uniform product, not {x.dtype}")
    for name, tensor in (("x", x), ("weight", weight)):
        if tensor.data_ptr() % 16 or tensor.stride(0) % 8:
            raise ValueError(f"{name} must have rows at multiples of 16 bytes; its strides are {tensor.stride()}")
    if len(x):
        run(
            "linear_uniform", x.device, LINEAR_DTYPES[x.dtype], x.data_ptr(), x.stride(0), weight.data_ptr(),
            weight.stride(0), 0 if bias is None else bias.data_ptr(), 0 if residual is None else residual.data_ptr(),
            0 if residual is None else residual.stride(0), out.data_ptr(), out.stride(0), len(x), *weight.shape,
        )  # fmt: skip


def runs_hopper_code(device: torch.device) -> bool:
    """Whether this GPU runs what is built for Hopper alone: uniform products, and parts of others."""
    return _cuda is not None and hasattr(_cuda, "linear_uniform") and torch.cuda.get_device_capability(device)[0] == 9


def launch_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
    activation: int | None = None,
    norm: RmsNorm | None = None,
    counter: Tensor | None = None,
) -> bool:
    """Launches our matrix product, with what is before and behind it, where it is the faster one; returns whether it
    did: otherwise nothing was done."""
    rows, depth = x.shape
    most = FEW_ROWS if norm is not None else LINEAR_ROWS if activation is None else rows
    if _cuda is None or x.dtype not in LINEAR_DTYPES or not 0 < rows <= most:
        return False
    return bool(
        _launch(
            _cuda.linear, x.device,
            LINEAR_DTYPES[x.dtype], x.data_ptr(), x.stride(0), weight.data_ptr(), weight.stride(0),
            0 if bias is None else bias.data_ptr(), 0 if residual is None else residual.data_ptr(),
            0 if residual is None else residual.stride(0), out.data_ptr(), out.stride(0), rows, weight.shape[0], depth,
            activation is not None, activation or 0, 0 if norm is None else norm.weight.data_ptr(),
            0.0 if norm is None else norm.eps, 0.0 if norm is None else norm.offset,
            0 if counter is None else counter.data_ptr(),
        )
    )  # fmt: skip


def decode_step(device: torch.device, write: tuple[object, ...], attention: tuple[object, ...], arrivals: int) -> bool:
    """Launches what `rope_write_kv` and `paged_attention` with these arguments would; returns whether it did."""
    return bool(_launch(_cuda.decode_step, device, write, attention, arrivals))


@cache
def mapping_granularity(device: torch.device) -> int | None:
    """Bytes of which both parts of `mapped_memory` are multiples; None where the driver or the system maps no memory of
    the host behind the device's, which a trial tells."""
    try:
        with torch.cuda.device(device):
            granularity: int = _cuda.MappedPool.granularity(torch.cuda.current_device())
            _cuda.MappedPool(torch.cuda.current_device(), granularity, granularity)
    except RuntimeError as error:
        log.info("kernels on %s do not read the host's memory: %s", device, error)
        return None
    return granularity


class _Mapped:
    """What torch wants to know of foreign memory, and who keeps it.

    https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
    """

    def __init__(self, pool: Any, size: int) -> None:
        self._pool = pool
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (pool.address, False), "version": 3,
        }  # fmt: skip


def mapped_memory(device: torch.device, device_bytes: int, host_bytes: int) -> Tensor:
    """One tensor of bytes of which the first `device_bytes` lie on the device, and the others in pinned memory of the
    host, which kernels reach over the link. Uninitialised. Raises `RuntimeError` if there is not as much memory."""
    with torch.cuda.device(device):
        pool = _cuda.MappedPool(torch.cuda.current_device(), device_bytes, host_bytes)
        return torch.as_tensor(_Mapped(pool, device_bytes + host_bytes), device=device)


def check_cache(block_size: int) -> None:
    if block_size < 16 or block_size & (block_size - 1):
        raise ValueError(f"block_size must be a power of two on CUDA, 16 at least, not {block_size}")


def reads_prefixes_once(dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int) -> bool:
    """Whether sequences with equal leading blocks can be grouped (`AttentionPlan.update`): the tensor cores' kernels
    do that, and only where the cache has the type of the data."""
    return dtype == cache_dtype and dtype.itemsize == 2 and head_dim in TENSOR_CORE_HEAD_DIMS
