"""The plain kernels as AMD's compiler makes them, for a chip that Debian's knows: they compile without warnings and
spills, the module loads without a GPU, and what could make a result wrong is looked for in machine code.

`OCTAVO_HIP_CHIP`, and options of CMake in `OCTAVO_HIP_OPTIONS`, take another chip and compiler.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from .plain_build import ABSENT, HOST, OPERATIONS, build, configure, kernel_sources, offered

pytestmark = [pytest.mark.hip, pytest.mark.timeout(0)]

CHIP = os.environ.get("OCTAVO_HIP_CHIP", "gfx90a")
REMARKS = "-Rpass-analysis=kernel-resource-usage"
KERNEL = re.compile(r"remark: [^\n]*Function Name: (\S+)")
SPILLS = re.compile(r"([SV]GPRs) Spill: (\d+)")
FENCE = "__global__ void probe(float* x) { __shared__ float s[64]; s[threadIdx.x] = *x; __syncwarp(); *x = s[1]; }"
PROBES = {
    "encode": "__global__ void probe(float* x, float f) { *x = __fadd_rn(__fmul_rn(*x, f), 12583040.0f); }",
    "divide": "__global__ void probe(float* x, float f) { *x = __fdiv_rn(*x, f) + __frcp_rn(f); }",
    "bounds": "__global__ void __launch_bounds__(192, 4) probe(float* x) { x[threadIdx.x] = 1; }",
    "fence": FENCE,
    "host": "__global__ void probe(const int* x, int* y) { *y = __ldcv(x); }",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Configured for one chip and built once; what the compiler said."""
    folder = tmp_path_factory.mktemp("hip")
    options = shlex.split(os.environ.get("OCTAVO_HIP_OPTIONS", ""))
    flags = next((o for o in options if o.startswith("-DOCTAVO_HIP_FLAGS=")), "-DOCTAVO_HIP_FLAGS=")
    said = configure(folder, f"-DOCTAVO_HIP={CHIP}", *options, f"{flags};{REMARKS}")
    assert f"plain kernels for AMD ({CHIP})" in said
    return folder, build(folder)


def test_it_loads_without_a_gpu_and_offers_what_a_plain_engine_needs(built: tuple[Path, str]) -> None:
    assert offered(built[0] / "csrc/hip") == ("AMD", False, OPERATIONS | HOST)
    assert not OPERATIONS & ABSENT


def test_no_register_is_spilled(built: tuple[Path, str]) -> None:
    kernels, spills = set(KERNEL.findall(built[1])), SPILLS.findall(built[1])
    assert len(kernels) > 100
    assert {kind for kind, _ in spills} == {"SGPRs", "VGPRs"}
    assert [count for kind, count in spills if kind == "VGPRs" and count != "0"] == []


def test_machine_code_is_that_chips(built: tuple[Path, str]) -> None:
    (module,) = (built[0] / "csrc/hip").glob("_cuda.*.so")
    assert f"amdgcn-amd-amdhsa--{CHIP}".encode() in module.read_bytes()


def assembly(built: tuple[Path, str], tmp_path: Path, probe: str, *but: str) -> str:
    """Machine code of a kernel, compiled as norm.cu is, less the flags `but`."""
    source = tmp_path / "probe.cu"
    source.write_text(f'#include "device/common.cuh"\nnamespace octavo {{\n{PROBES[probe]}\n}}\n')
    (line,) = (line for line in built[1].splitlines() if "-x hip" in line and "/norm.cu -o " in line)
    words = [word for word in shlex.split(line.partition(" && ")[2] or line) if word not in (*but, REMARKS)]
    ends = ("-Wno-unused-command-line-argument", "--cuda-device-only", "-S", str(source), "-o", "-")
    words[words.index("-MD") :] = ends  # hipcc adds libraries
    done = subprocess.run(words, cwd=built[0], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_products_and_sums_stay_apart(built: tuple[Path, str], tmp_path: Path) -> None:
    """Codes of int8 are the last bits of a sum: contracted, some are others. Without the flag this would be so."""
    fused = re.compile(r"v_(pk_)?(fma|fmac|mad|mac)_")
    assert not fused.search(assembly(built, tmp_path, "encode"))
    assert fused.search(assembly(built, tmp_path, "encode", "-ffp-contract=off"))


def test_quotients_are_rounded_and_reciprocals_are_quotients(built: tuple[Path, str], tmp_path: Path) -> None:
    """HIP's own reciprocal is one instruction, and a unit in the last place off."""
    assert assembly(built, tmp_path, "divide").count("v_div_fixup_f32") == 2


def test_bounds_of_blocks_ask_for_no_waves(built: tuple[Path, str], tmp_path: Path) -> None:
    code = assembly(built, tmp_path, "bounds")
    assert ".max_flat_workgroup_size: 192" in code
    assert "amdgpu-waves-per-eu" not in code


def test_subnormal_numbers_are_no_zeros(built: tuple[Path, str], tmp_path: Path) -> None:
    assert re.search(r"\.amdhsa_float_denorm_mode_32 3", assembly(built, tmp_path, "divide"))


def test_a_warp_keeps_the_order_of_its_memory_without_a_barrier_of_the_block(
    built: tuple[Path, str], tmp_path: Path
) -> None:
    code = assembly(built, tmp_path, "fence")
    assert code.index("ds_write") < code.index("; wave barrier") < code.index("ds_read")
    assert "s_barrier" not in code


def test_what_the_host_writes_passes_caches_by(built: tuple[Path, str], tmp_path: Path) -> None:
    assert re.search(r"(global|flat)_load_dword .* (glc|sc0)", assembly(built, tmp_path, "host"))


def test_every_source_of_the_list_is_there() -> None:
    assert all(path.exists() for path in kernel_sources())
