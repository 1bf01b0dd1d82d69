"""Values of codes, as the CUDA kernels unpack them: compiled for the host, run with every code and zero point."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from octavo_kernels.products.weights import E2M1, Codes

pytestmark = [pytest.mark.nvcc, pytest.mark.timeout(0)]

SOURCES = Path(__file__).parents[2] / "kernels" / "csrc"
PROBE = """
#include <cstdio>

#include "coded/codes.cuh"

using namespace octavo;

// The two bytes of each code of a step, in the order of registers and elements, for every code in every place.
template <class T, Codes kind>
void run(const char* name) {
  const bool nibble = is_nibble(kind);
  for (uint32_t point = 0; point < (is_float(kind) ? 1 : nibble ? 16 : 256); ++point) {
    for (uint32_t code = 0; code < (nibble ? 16 : 256); ++code) {
      const auto at = [&](int i) { return (code + 37 * i) % (nibble ? 16 : 256); };  // others are its neighbours
      uint32_t words[2] = {}, registers[4];
      for (int i = 0; i < 4; ++i)
        for (int e = 0; e < 2; ++e) {
          if (nibble) words[0] |= at(2 * i + e) << 4 * (i + 4 * e);
          else words[i / 2] |= at(2 * i + e) << 8 * (i % 2 * 2 + e);
        }
      const uint32_t other = is_float(kind) ? 0 : (point + 5) % (nibble ? 16 : 256);
      Unpack<T, kind>::step(words, Unpack<T, kind>::zero(point), Unpack<T, kind>::zero(other), registers);
      std::printf("%s %u %u %u", name, point, other, code);
      for (uint32_t r : registers) std::printf(" %u %u", r & 0xffff, r >> 16);
      std::printf("\\n");
    }
  }
}

int main() {
  run<bf16, Codes::int4>("bfloat16 INT4"), run<f16, Codes::int4>("float16 INT4");
  run<bf16, Codes::int8>("bfloat16 INT8"), run<f16, Codes::int8>("float16 INT8");
  run<bf16, Codes::fp4>("bfloat16 FP4"), run<f16, Codes::fp4>("float16 FP4");
  run<bf16, Codes::fp8>("bfloat16 FP8"), run<f16, Codes::fp8>("float16 FP8");
}
"""
TABLES = {
    Codes.INT4: torch.arange(16.0),
    Codes.INT8: torch.arange(256.0),
    Codes.FP4: torch.tensor(E2M1 + tuple(-v for v in E2M1)),
    Codes.FP8: torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float(),
}


def test_every_code_is_unpacked_to_what_it_stands_for(tmp_path):
    (tmp_path / "probe.cu").write_text(PROBE)
    include = [f"-I{SOURCES}", f"-I{SOURCES / 'cuda'}"]
    compiled = ["nvcc", "-std=c++17", "--expt-relaxed-constexpr", *include, "-o", "probe", "probe.cu"]
    done = subprocess.run(compiled, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    printed = subprocess.run([tmp_path / "probe"], capture_output=True, text=True, check=True).stdout
    rows: dict[tuple[str, str], list[list[int]]] = {}
    for line in printed.splitlines():
        dtype, kind, *numbers = line.split()
        rows.setdefault((dtype, kind), []).append([int(n) for n in numbers])
    assert len(rows) == 8
    for (dtype, name), numbers in rows.items():
        kind, got = Codes[name], torch.tensor(numbers)
        table = TABLES[kind]
        assert len(got) == len(table) * (1 if kind >= Codes.FP4 else len(table))
        value = got[:, 3:].to(torch.int32).to(torch.uint16).view(getattr(torch, dtype)).float().unflatten(1, (4, 2))
        code = (got[:, 2:3] + 37 * torch.arange(8)) % len(table)
        expected = table[code].unflatten(1, (4, 2))
        if kind < Codes.FP4:  # the zero points of both rows
            expected = expected - torch.stack((got[:, 0], got[:, 1], got[:, 0], got[:, 1]), dim=1)[:, :, None]
        is_number = ~expected.isnan()
        assert torch.equal(value[is_number], expected[is_number]), (dtype, name)
