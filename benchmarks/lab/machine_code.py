"""The machine code of every CUDA kernel for Hopper in this checkout beside that of another one. Needs nvcc and pyelftools.

    python benchmarks/lab/machine_code.py --other CHECKOUT [--build FOLDER] [--out benchmarks/results/machine-code.json]

Each unit is compiled with the flags of the build; what a folder of an earlier run has is not compiled again. Kernels are
compared by the bytes of their code. `ratio` is the share of kernels that are the same. Of those that differ, `other` has
the number of instructions and how many of these differ from the nearest kernel of the same size.
"""

from __future__ import annotations

import argparse
import subprocess
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import pybind11
from elftools.elf.elffile import ELFFile

from octavo_worker.bench.report import report, write

ROOT = Path(__file__).parents[2]
INSTRUCTION = 16  # bytes
FLAGS = ("-std=c++17", "-O3", "--expt-relaxed-constexpr", "-DOCTAVO_HOPPER=1", "-DNDEBUG", "-arch=sm_90a", "-cubin")


def compiled(checkout: Path, unit: str, target: Path) -> Path:
    sources = checkout / "kernels/csrc"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        places = (sources / "cuda", sources, sysconfig.get_path("include"), pybind11.get_include())
        command = ["nvcc", *FLAGS, *(f"-I{place}" for place in places), "-o", str(target), str(sources / unit)]
        subprocess.run(command, check=True)
    return target


def kernels(cubin: Path) -> Counter[bytes]:
    """The code of each kernel."""
    with cubin.open("rb") as file:
        sections = ELFFile(file).iter_sections()
        return Counter(section.data() for section in sections if section.name.startswith(".text."))


def changed(code: bytes, others: Counter[bytes]) -> list[int]:
    """Instructions, and how many are others than in the nearest kernel of this size; all of them if there is none."""
    count = len(code) // INSTRUCTION
    least = count
    for other in others:
        if len(other) == len(code):
            places = range(0, len(code), INSTRUCTION)
            least = min(least, sum(code[i : i + INSTRUCTION] != other[i : i + INSTRUCTION] for i in places))
    return [count, least]


def row(unit: str, ours: Counter[bytes], theirs: Counter[bytes]) -> dict[str, Any]:
    same = ours & theirs
    other = [changed(code, theirs - same) for code in (ours - same).elements()]
    total = ours.total()
    return {"unit": unit, "kernels": total, "same": same.total(), "other": other, "ratio": round(same.total() / total, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="the other checkout")
    parser.add_argument("--build", type=Path, default=ROOT / "build/machine-code", help="where cubins are kept")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sources = ROOT / "kernels/csrc"
    rows = []
    for path in sorted((sources / "cuda").rglob("*.cu")):
        unit = str(path.relative_to(sources))
        pair = []
        for name, checkout in (("this", ROOT), ("other", options.other)):
            pair.append(kernels(compiled(checkout, unit, options.build / name / f"{unit.replace('/', '_').removesuffix('.cu')}.cubin")))
        if pair[0]:  # a unit may have none
            rows.append(row(unit, *pair))
            print(rows[-1], flush=True)
    if options.out:
        write(report("machine_code", rows), options.out)


if __name__ == "__main__":
    main()
