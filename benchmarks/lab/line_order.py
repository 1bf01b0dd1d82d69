"""How fast tiles of experts' weights come, by the order in which their lines lie in memory. Needs a Hopper GPU and nvcc.

    python benchmarks/lab/line_order.py [--out benchmarks/results/h200-line-order.json]

A matrix of experts lies row by row. A tile of 64 rows and 64 of the depth is then 64 lines of 128 bytes, each in another
page of memory; in strips of eight rows it is eight pieces of 1 KB, and as a tile of its own 8 KB. Nothing is computed:
what is measured is what a kernel of tiles could reach. `ratio` is over rows with as many stages.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from octavo_worker.bench.report import report, write

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "kernels/csrc"
FLAGS = ("-std=c++17", "-O3", "--expt-relaxed-constexpr", "-DOCTAVO_HOPPER=1")


def rates() -> list[dict[str, object]]:
    """A row for each shape, number of stages and order."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "line_order")
        places = [f"-I{place}" for place in (SOURCES / "cuda", SOURCES)]
        source = Path(__file__).parent / "line_order/line_order.cu"
        hopper = ["-gencode", "arch=compute_90a,code=sm_90a"]
        subprocess.run(["nvcc", *FLAGS, *hopper, *places, source, "-o", program], check=True)
        said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in said.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    arguments = parser.parse_args()
    rows = rates()
    plain = {(row["shape"], row["stages"]): row["tb_per_s"] for row in rows if row["order"] == "rows"}
    for row in rows:
        row["ratio"] = round(float(str(row["tb_per_s"])) / float(str(plain[row["shape"], row["stages"]])), 3)
        print(*row.values(), sep=" | ")
    if arguments.out:
        write(report("line order", rows), arguments.out)


if __name__ == "__main__":
    main()
