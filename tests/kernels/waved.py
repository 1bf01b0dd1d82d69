"""The module of the plain kernels with the CPU for its device, whose waves have 64 lanes: AMD's build, header and all,
but for the compiler, over a HIP of our own (waves/)."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pybind11
import pytest
import torch
from torch import Tensor

from octavo_kernels import call, cuda
from octavo_kernels.attention.plan import AttentionPlan, chunk_count
from octavo_kernels.cache.blocks import cache_layout
from octavo_kernels.operands import DTYPES, address, rows_at

from .conftest import Batch
from .plain_build import CSRC, OPERATIONS, kernel_sources

HERE = Path(__file__).parent
HOST_SOURCES = ("cuda/module.cpp", "cuda/attention/plan_host.cpp", "hip/absent.cpp")
FLAGS = (
    "-std=gnu++17", "-O1", "-fPIC", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-fvisibility=hidden",
    # A barrier stays one call, by the calls that the source has.
    "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-thread-jumps", "-fno-tree-tail-merge",
    "-DOCTAVO_HIP=1", "-D__HIP_PLATFORM_AMD__=1", "-D__HIPCC__=1",
)  # fmt: skip
# What the host's compiler does not take: launches, shared memory of a launch, addresses of shared memory.
CHANGES = (
    (r"(\w+)<<<(.+?)>>>\(", r"waves::launching(\1, \2)("),
    (r"^  extern __shared__ float4 (\w+)\[\];", r"  float4* const \1 = waves::dynamic_shared();"),
    (r"^extern __shared__ float4 (\w+)\[\];", r"static waves::DynamicShared \1;"),
    (r"return .*\(SharedByte\*\)\(p\)\);", "return waves::shared_address(p);"),
    (r"return .*\(SharedByte\*\)\(SharedPlace\(address\)\)\);", "return waves::shared_pointer(address);"),
)


def build(folder: Path) -> ModuleType:
    """Raises `RuntimeError` with what the compiler says."""
    for source in (path for part in ("cuda", "hip") for path in (CSRC / part).rglob("*") if path.is_file()):
        copy = folder / source.relative_to(CSRC)
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text()
        for pattern, replacement in CHANGES:
            text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
        copy.write_text(text)
    sources = [folder / name for name in HOST_SOURCES] + [folder / p.relative_to(CSRC) for p in kernel_sources()]
    objects = [str(source.with_suffix(".o")) for source in sources]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(partial(compile_one, folder), sources))
    module = folder / f"_cuda{sysconfig.get_config_var('EXT_SUFFIX')}"
    _run(["c++", "-shared", *objects, "-o", str(module)])
    spec = importlib.util.spec_from_file_location("_cuda", module)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def compile_one(folder: Path, source: Path) -> None:
    """A source over the copies in `folder`."""
    places = [HERE / "waves", folder / "hip/include", folder / "cuda", folder, CSRC, HERE / "emulator"]
    include = [f"-I{path}" for path in (*places, pybind11.get_include(), sysconfig.get_path("include"))]
    _run(["c++", *FLAGS, *include, "-x", "c++", "-c", str(source), "-o", str(source.with_suffix(".o"))])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-6000:])


class Waved:
    """Operations of the module, on tensors of the CPU. While `patched`, those of `ops` on the CPU are the module's, but
    for attention and samples, which are called here."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.module = folder, build(folder)

    def run(self, operation: str, *arguments: object) -> None:
        getattr(self.module, operation)(*arguments, 0)

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        operations = {name: partial(self.run, name) for name in OPERATIONS}
        monkeypatch.setattr(call, "_cpu", SimpleNamespace(**operations))
        monkeypatch.setattr(cuda, "compiled", self.module)
        monkeypatch.setattr(cuda, "run", lambda operation, device, *arguments: self.run(operation, *arguments))

    def attend(
        self, batch: Batch, scale: float, window: int = 0, softcap: float = 0.0, sinks: Tensor | None = None
    ) -> Tensor:
        """Attention of a batch whose cache the module wrote."""
        q, tables, out = batch.q, batch.tables, torch.full_like(batch.q, float("nan"))
        heads = (q.shape[1], batch.layer.shape[-2], q.shape[2])
        contexts, queries = batch.context_lens.numpy(), batch.query_start.diff().numpy()
        chunks = chunk_count(contexts, queries, heads[0] // heads[1])
        plan = AttentionPlan(
            sequences=len(tables), tokens=len(q), chunks=chunks, heads=heads[0], kv_heads=heads[1], head_dim=heads[2],
            max_queries=int(queries.max()), sliding_window=window, device="cpu",
        )  # fmt: skip
        plan.update(batch.context_lens, batch.query_start)
        self.run(
            "paged_attention", DTYPES[q.dtype], rows_at(q), rows_at(out), heads,
            cache_layout(batch.layer, q.dtype, heads[1], heads[2], batch.block_size), rows_at(tables),
            (scale, window, softcap, address(sinks)), *plan.use(len(tables), *heads, window, False),
        )  # fmt: skip
        return out

    def sample(self, logits: Tensor, samples: Tensor) -> Tensor:
        tokens = torch.full((len(logits),), -7)
        self.run("sample", DTYPES[logits.dtype], rows_at(logits), *logits.shape, samples.data_ptr(), tokens.data_ptr())
        return tokens

    def sample_in_parts(self, logits: Tensor, samples: Tensor, borders: Sequence[int]) -> Tensor:
        """Samples of the tokens before the first border, between each and the next, and behind the last."""
        starts, ends = (0, *borders), (*borders, logits.shape[1])
        candidates, tokens = torch.full((len(starts), len(logits)), -7), torch.full((len(logits),), -7)
        for start, end, found in zip(starts, ends, candidates, strict=True):
            part = logits[:, start:end].contiguous()
            given = DTYPES[logits.dtype], rows_at(part), *part.shape, samples.data_ptr(), start
            self.run("sample_part", *given, found.data_ptr())
        self.run("best_part", candidates.data_ptr(), *candidates.shape, tokens.data_ptr())
        return tokens

    def logprobs(self, logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = len(logits)
        chosen, ids, values = torch.empty(rows), torch.empty((rows, top), dtype=torch.int64), torch.empty((rows, top))
        self.run(
            "logprobs", DTYPES[logits.dtype], rows_at(logits), *logits.shape, tokens.data_ptr(), top, chosen.data_ptr(),
            ids.data_ptr(), values.data_ptr(),
        )  # fmt: skip
        return chosen, ids, values
