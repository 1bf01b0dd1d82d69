"""The CUDA module compiles for Hopper without a GPU, and what would make it slow or wrong fails the build."""

import fcntl
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pybind11
import pytest

from . import plain_build

pytestmark = [pytest.mark.nvcc, pytest.mark.timeout(0)]

KERNELS = Path(__file__).parents[2] / "kernels"
SPILLS = """
__global__ void __launch_bounds__(1024, 2) kernel(float* data, int n) {
  float kept[64];
  for (int i = 0; i < 64; ++i) kept[i] = data[i * n + threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 64; ++i) data[kept[i] > 0 ? i * n : threadIdx.x] += kept[i] * kept[63 - i];
}
"""
WARNS = "__global__ void kernel(float* data) { int unused = 3; data[0] = 1; }"
RIGHT = "__global__ void kernel(float* data) { data[threadIdx.x] = 1; }"


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.fixture(scope="module")
def build(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Configured as `pip install ./kernels` would, for one architecture. Kept between runs: what has changed since the
    last one is compiled again, as CMake finds by sources, headers and flags."""
    folder = request.config.cache.mkdir("cuda_build")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        configure(folder)
        yield folder


def configure(folder: Path) -> None:
    cmake = [
        sys.executable, "-m", "cmake", "-S", str(KERNELS), "-B", str(folder), "-DCMAKE_CUDA_ARCHITECTURES=90a-real",
        f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
    ]  # fmt: skip
    done = run(cmake, folder)
    assert "CPU and CUDA modules (90a-real)" in done.stdout, done.stdout + done.stderr


def compile_like(
    build: Path, kernel: str, source: Path | None = None, architecture: str = "90a"
) -> subprocess.CompletedProcess[str]:
    """Compiles `source` (none: the kernel itself) with the flags that the build has for a kernel."""
    commands = json.loads((build / "compile_commands.json").read_text())
    entry = next(entry for entry in commands if Path(entry["file"]).name == kernel)
    words = shlex.split(entry["command"])
    words[words.index(entry["file"])] = str(source or entry["file"])
    words[words.index("-o") + 1] = os.devnull
    generated = next(i for i, word in enumerate(words) if word.startswith("--generate-code"))
    words[generated] = words[generated].replace("90a", architecture)
    return run(words, Path(entry["directory"]))


def test_every_kernel_compiles_without_warnings_and_spills(build: Path) -> None:
    done = run([sys.executable, "-m", "cmake", "--build", str(build), "--target", "_cuda", "-j2"], build)
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    assert list(build.rglob("_cuda.*.so"))
    compiled = {entry["file"] for entry in json.loads((build / "compile_commands.json").read_text())}
    assert {str(source) for source in (KERNELS / "csrc/cuda").rglob("*.cu")} <= compiled


@pytest.mark.parametrize(("source", "complaint"), [(SPILLS, "spill"), (WARNS, "unused")], ids=["spill", "warning"])
def test_a_spill_or_a_warning_fails_the_build(build: Path, tmp_path: Path, source: str, complaint: str) -> None:
    probe = tmp_path / "probe.cu"
    probe.write_text(RIGHT)
    assert compile_like(build, "norm.cu", probe).returncode == 0
    probe.write_text(source)
    done = compile_like(build, "norm.cu", probe)
    assert done.returncode != 0
    assert complaint in done.stderr


@pytest.mark.parametrize(
    "kernel",
    [
        "activation",
        "adjust",
        "coded_few",
        "coded_tiles",
        "coded_wide",
        "dequantise",
        "exchange_gather",
        "exchange_pull",
        "exchange_push",
        "linear_ring",
        "logprobs",
        "norm",
        "plan",
        "sample",
        "step",
        "w8a8_plain",
        "w8a8_rows",
    ],
)
def test_kernels_fit_chips_whose_multiprocessors_hold_fewer_threads(build: Path, kernel: str) -> None:
    """Kernels beside attention, which takes minutes; `make kernels` builds all for every chip."""
    done = compile_like(build, f"{kernel}.cu", architecture="86")
    assert done.returncode == 0, done.stderr[-4000:]


def test_plain_kernels_compile_for_nvidia_too(request: pytest.FixtureRequest) -> None:
    """Without PTX, to try on an NVIDIA GPU what AMD's runs."""
    folder = request.config.cache.mkdir("plain_build")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = plain_build.configure(folder, "-DOCTAVO_HIP=nvcc", "-DCMAKE_CUDA_ARCHITECTURES=90-real")
        assert "plain kernels by nvcc (90-real)" in said
        plain_build.build(folder)
        offered = plain_build.offered(folder / "csrc/hip")
    assert offered == ("NVIDIA", False, plain_build.OPERATIONS | plain_build.HOST)
