"""Runs the tests that need the CUDA compiler, and records the sources that passed.

    make compiled

Every kernel is compiled for Hopper without warnings and spills, some for older chips, and some run on a CPU. That takes
a compiler and minutes, which `make test` does not have: it compares the record with the sources, unit by unit. A unit
is a file that is compiled, with all that it includes; another is the build with its tests.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).parent / "data/compiled.json"
CSRC = ROOT / "kernels/csrc"
FOLDERS = (CSRC / "cuda", CSRC, CSRC / "hip", CSRC / "hip/include")
"""In which an include is looked for, after that of its file. One that is in several counts in all of them."""
INCLUDE = re.compile(r'^\s*#\s*include "([^"]+)"', re.MULTILINE)
FOR_CPUS = re.compile(r"^set\(cpu csrc/cpu\)$.*?^install\(TARGETS _cpu [^\n]*$", re.MULTILINE | re.DOTALL)
"""The part of the build's first file that is for the CPU module alone."""
BUILD = "build and tests"
TESTS = (
    "emulated.py", "emulated_coded_experts.py", "emulated_exchange.py", "emulated_experts.py", "emulated_latent.py",
    "emulated_linear.py", "emulated_recurrent.py", "emulated_w8a8.py", "emulated_wide.py", "emulator/**/*",
    "plain_build.py", "recurrent_blocks.py", "step_words.py", "test_codes.py", "test_cuda_build.py",
    "test_emulated.py", "test_emulated_coded_experts.py", "test_emulated_exchange.py", "test_emulated_experts.py",
    "test_emulated_latent.py", "test_emulated_linear.py", "test_emulated_recurrent.py",
    "test_emulated_shared_expert.py", "test_emulated_w8a8.py", "test_emulated_wide.py", "test_waves.py", "waved.py",
    "waves/**/*",
)  # fmt: skip


@cache
def included(path: Path) -> frozenset[Path]:
    """Our own files that a file includes itself."""
    names = INCLUDE.findall(path.read_text())
    places = [folder / name for name in names for folder in (path.parent, *FOLDERS)]
    return frozenset(place.resolve() for place in places if place.exists())


def sources_of(unit: Path) -> list[Path]:
    """A unit and all that it includes."""
    found, new = set[Path](), {unit.resolve()}
    while new:
        found |= new
        new = {path for one in new for path in included(one)} - found
    return sorted(found)


def units() -> list[Path]:
    """Sources that are compiled for GPUs."""
    return sorted(
        path for part in ("cuda", "hip") for path in (CSRC / part).rglob("*") if path.suffix in (".cu", ".cpp")
    )


def digest(texts: dict[str, str]) -> str:
    made = hashlib.blake2b(digest_size=16)
    for name, text in sorted(texts.items()):
        made.update(f"{name}\n{len(text)}\n{text}".encode())
    return made.hexdigest()


def texts_of(paths: list[Path]) -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def build_texts() -> dict[str, str]:
    """All that decides how units are compiled and what they are tried with."""
    tests = [path for pattern in TESTS for path in Path(__file__).parent.glob(pattern) if path.is_file()]
    first = ROOT / "kernels/CMakeLists.txt"
    whole = texts_of([*tests, *CSRC.glob("*/CMakeLists.txt")])
    return {**whole, "kernels/CMakeLists.txt": FOR_CPUS.sub("", first.read_text())}


def digests() -> dict[str, str]:
    """By unit."""
    compiled = {unit.relative_to(CSRC).as_posix(): digest(texts_of(sources_of(unit))) for unit in units()}
    return {**compiled, BUILD: digest(build_texts())}


def main() -> int:
    began = digests()
    passed = subprocess.run([sys.executable, "-m", "pytest", "-m", "nvcc", *sys.argv[1:], str(Path(__file__).parent)])
    included.cache_clear()
    if passed.returncode or digests() != began:
        return passed.returncode or 1
    version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    release = version.partition("release ")[2].partition(",")[0]
    record = {"units": began, "nvcc": release, "date": datetime.now(UTC).date().isoformat()}
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
