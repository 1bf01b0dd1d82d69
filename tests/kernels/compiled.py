"""Runs the tests that need the CUDA compiler, and records the sources that passed.

    make compiled

Every kernel is compiled for Hopper without warnings and spills, some for older chips, and some run on a CPU. That takes
a compiler and minutes, which `make test` does not have: it compares the record with the sources.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).parent / "data/compiled.json"
CUDA = ("*.cu", "*.cuh", "*.h", "*.cpp", "CMakeLists.txt")
TESTS = (
    "compiled.py", "emulated.py", "emulated_exchange.py", "emulated_w8a8.py", "emulator/**/*", "plain_build.py",
    "step_words.py", "test_codes.py", "test_cuda_build.py", "test_emulated.py", "test_emulated_exchange.py",
    "test_emulated_w8a8.py", "test_waves.py", "waved.py", "waves/**/*",
)  # fmt: skip


def sources() -> list[Path]:
    """All that the result depends on, but for the compiler."""
    csrc = ROOT / "kernels/csrc"
    found = {path for part in ("cuda", "hip") for pattern in CUDA for path in (csrc / part).rglob(pattern)}
    found |= {*csrc.glob("*.h"), ROOT / "kernels/CMakeLists.txt"}
    found |= {path for pattern in TESTS for path in Path(__file__).parent.glob(pattern) if path.is_file()}
    return sorted(found)


def digest() -> str:
    made = hashlib.blake2b(digest_size=16)
    for path in sources():
        made.update(f"{path.relative_to(ROOT).as_posix()}\n".encode())
        made.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return made.hexdigest()


def main() -> int:
    began = digest()
    passed = subprocess.run([sys.executable, "-m", "pytest", "-m", "nvcc", *sys.argv[1:], str(Path(__file__).parent)])
    if passed.returncode or digest() != began:
        return passed.returncode or 1
    version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    release = version.partition("release ")[2].partition(",")[0]
    record = {"sources": began, "nvcc": release, "date": datetime.now(UTC).date().isoformat()}
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
