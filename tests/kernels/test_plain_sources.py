"""The sources of the plain kernels, as far as no compiler for GPUs is needed: no PTX, twins of what was PTX, and number
formats that HIP lacks, against torch's."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from .plain_build import CSRC, kernel_sources

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
FUNCTION = re.compile(r"__device__ inline [\w :]*?[ *](\w+)\(([^)]*)\)")
F8 = torch.float8_e4m3fn
ENTRY = """
#include "hip/floats.h"
template <class X, class Y>
void each(Y (*convert)(X), const X* x, Y* to, long n) {
  for (long i = 0; i < n; ++i) to[i] = convert(x[i]);
}
extern "C" {
void bf16(const float* x, uint16_t* to, long n) { each(octavo::bf16_bits, x, to, n); }
void f8(const float* x, uint8_t* to, long n) { each(octavo::f8_code, x, to, n); }
void from_bf16(const uint16_t* x, float* to, long n) { each(octavo::float_of_bf16, x, to, n); }
void from_f8(const uint8_t* x, float* to, long n) { each(octavo::float_of_f8, x, to, n); }
}
"""


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("floats")
    (folder / "floats.cpp").write_text(ENTRY)
    command = ["c++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{CSRC}"]
    subprocess.run([*command, str(folder / "floats.cpp"), "-o", str(folder / "floats.so")], check=True)
    return ctypes.CDLL(str(folder / "floats.so"))


def converted(library: ctypes.CDLL, name: str, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(len(x), dtype=dtype)
    getattr(library, name)(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr()), ctypes.c_long(len(x)))
    return out


def any_floats(count: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, (count,), dtype=torch.int64).to(torch.int32).view(torch.float32)


def with_neighbours(x: torch.Tensor) -> torch.Tensor:
    bits = x.view(torch.int32)
    return torch.cat([(bits + step).view(torch.float32) for step in (-1, 0, 1)])


def between(values: torch.Tensor) -> torch.Tensor:
    """The middle between each two that follow each other, its neighbours, and the values."""
    values = values[values.isfinite()].sort().values
    return torch.cat((with_neighbours((values[1:] + values[:-1]) / 2), values))


def test_bfloat16_is_torchs(floats: ctypes.CDLL) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    decoded = converted(floats, "from_bf16", every, torch.float32)
    assert torch.equal(decoded.view(torch.int32), every.view(torch.bfloat16).float().view(torch.int32))
    for x in (any_floats(1_000_000), between(decoded)):
        got, expected = converted(floats, "bf16", x, torch.int16), x.bfloat16()
        assert torch.equal(got[~x.isnan()], expected.view(torch.int16)[~x.isnan()])
        assert (got[x.isnan()] == 0x7FFF).all()


def test_fp8_is_torchs_up_to_the_largest_and_saturates_there(floats: ctypes.CDLL) -> None:
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    decoded = converted(floats, "from_f8", every, torch.float32)
    assert torch.equal(decoded.nan_to_num(9e9), every.view(F8).float().nan_to_num(9e9))
    signs = decoded.view(torch.int32) < 0
    assert torch.equal(signs, every > 127)
    usual = torch.randn(1_000_000) * 2.0 ** torch.randint(-14, 10, (1_000_000,))
    for x in (any_floats(1_000_000), usual, between(decoded)):
        got = converted(floats, "f8", x, torch.uint8)
        expected = x.clamp(-448, 448).to(F8).view(torch.uint8)
        assert torch.equal(got[~x.isnan()], expected[~x.isnan()])
        assert (got[x.isnan()] == 0x7F).all()


def reached(source: Path, found: set[Path]) -> None:
    """Adds all that a source includes in a build of the plain kernels."""
    if source in found:
        return
    found.add(source)
    for name in INCLUDE.findall(source.read_text()):
        place = next(path for path in (source.parent / name, CSRC / "cuda" / name, CSRC / name) if path.exists())
        if place.name != "ptx.cuh":
            reached(place, found)


def test_no_source_of_theirs_has_ptx() -> None:
    found: set[Path] = set()
    for source in kernel_sources():
        reached(source, found)
    assert {"common.cuh", "primitives.cuh", "rope.cuh", "plan.cu", "attention.cuh"} <= {path.name for path in found}
    assert [path.name for path in found if re.search(r"\basm\b", path.read_text())] == []


def functions(header: Path) -> Iterator[tuple[str, str]]:
    """Names and types of parameters."""
    for name, parameters in FUNCTION.findall(header.read_text()):
        yield name, ", ".join(re.sub(r"\w+( = \w+)?$", "", part).strip() for part in parameters.split(",") if part)


def test_every_primitive_is_the_twin_of_one_in_ptx() -> None:
    plain, ptx = (set(functions(CSRC / name)) for name in ("hip/primitives.cuh", "cuda/device/ptx.cuh"))
    names = {name for name, _ in plain}
    assert {"pack", "fast_exp2", "copy16", "store_words", "hold", "wait_for_previous_kernel"} <= names
    assert {(name, types.replace("&", "")) for name, types in plain} <= {(n, t.replace("&", "")) for n, t in ptx}


def test_what_keeps_arithmetic_exact_is_asked_of_the_compiler() -> None:
    """Effects of the flags are seen in machine code by test_hip_build.py, where there is the compiler."""
    text = (CSRC / "hip/CMakeLists.txt").read_text()
    flags = re.search(r"set\(exact (.*?)\)", text)
    assert flags
    assert flags[1].split() == [
        "-ffp-contract=off", "-fhip-fp32-correctly-rounded-divide-sqrt", "-fno-gpu-flush-denormals-to-zero",
    ]  # fmt: skip
    assert "${exact}" in text
