"""A build of the plain kernels: its sources, and its module's functions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pybind11

KERNELS = Path(__file__).parents[2] / "kernels"
CSRC = KERNELS / "csrc"
OPERATIONS = {
    "activation", "add_norms", "adjust", "best_part", "carry", "copy_blocks", "head_gate", "latent_attention",
    "latent_read", "latent_rows", "layer_norm", "logprobs", "norm_heads", "paged_attention", "plan_attention",
    "rms_norm", "rope_write_kv", "sample", "sample_part", "swap_blocks", "unpack_step", "write_kv",
}  # fmt: skip
ABSENT = {
    "by_head", "coded_few", "coded_tiles", "coded_wide", "decode_step", "dequantise", "exchange_add", "exchange_gather",
    "latent_queries", "linear", "quantise_rows", "w8a8_linear", "w8a8_row",
}  # fmt: skip
HOST = {"chip", "chunk_count", "only_prompts", "few_queries", "part_queries", "split_queries"}

# Loads the module from the folder that it is given, and prints what it offers.
LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
import _cuda
named = (name for name in dir(_cuda) if callable(getattr(_cuda, name)) and not isinstance(getattr(_cuda, name), type))
print(_cuda.built_for, _cuda.tensor_cores, *named)
"""


def kernel_sources() -> list[Path]:
    """The `plain` list of the build."""
    listed = re.search(r"set\(plain\n(.*?)\)", (CSRC / "hip/CMakeLists.txt").read_text(), re.DOTALL)
    assert listed
    return [CSRC / "cuda" / f"{name}.cu" for name in listed[1].split()]


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout + done.stderr


def configure(folder: Path, *options: str) -> str:
    """As `pip install ./kernels` would."""
    return run(
        sys.executable, "-m", "cmake", "-S", KERNELS, "-B", folder, f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}", *options,
    )  # fmt: skip


def build(folder: Path) -> str:
    """Returns its commands, and what the compilers said."""
    return run(sys.executable, "-m", "cmake", "--build", folder, "--target", "_cuda", "-j2", "-v")


def offered(folder: Path) -> tuple[str, bool, set[str]]:
    """For which GPUs the module in a folder was built, whether it has tensor cores, and its functions. It loads where
    there is no GPU."""
    built_for, tensor_cores, *names = run(sys.executable, "-c", LOAD, folder).split()
    return built_for, tensor_cores == "True", set(names)
