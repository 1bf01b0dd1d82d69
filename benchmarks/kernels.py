"""Speed of the CUDA kernels against the fewest bytes or operations they could take.

    python benchmarks/kernels.py --flashinfer --out benchmarks/results/h200-kernels.json

Random bfloat16 data, medians over replays of a CUDA graph. Each graph goes over several layers (or buffers) whose bytes
together exceed four times the L2 cache, so every call finds it cold. Floors use ceilings measured on an H200: paged
reads, copies (read plus write) and a large bf16 matrix product.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from kernel_rows.between import between_rows
from kernel_rows.cascade import cascade_rows
from kernel_rows.coded_experts import coded_experts_rows, few_coded_experts_rows
from kernel_rows.copies import copy_rows, swap_rows
from kernel_rows.decode import FlashInfer, decode_others, decode_table
from kernel_rows.eight_bits import eight_bits
from kernel_rows.expanded import expanded_rows
from kernel_rows.experts import experts_rows
from kernel_rows.fused import fused_rows
from kernel_rows.linear import gated_rows, linear_rows
from kernel_rows.measuring import COPY, MATMUL, READ, Row
from kernel_rows.prefill import prefill_rows
from kernel_rows.recurrent import recurrent_rows
from kernel_rows.sampling import sample_rows
from kernel_rows.w8a8 import w8a8_rows, w8a8_tile_rows
from kernel_rows.wide import latent_rows

from octavo_worker.bench.report import write


def groups(peer: FlashInfer | None) -> dict[str, Callable[[], list[Row]]]:
    """The rows by name; `peer` stands beside those of decode."""
    return {
        "decode": partial(decode_table, 32, 8, peer),
        "decode-64/8": partial(decode_table, 64, 8, peer),
        "decode-40/40": partial(decode_table, 40, 40, peer),
        "decode-others": partial(decode_others, peer),
        "8-bit": eight_bits,
        "cascade": cascade_rows,
        "prefill": prefill_rows,
        "latent": latent_rows,
        "expanded": expanded_rows,
        "fused": fused_rows,
        "between": between_rows,
        "copy": copy_rows,
        "linear": linear_rows,
        "gated": gated_rows,
        "w8a8": w8a8_rows,
        "w8a8-tiles": w8a8_tile_rows,
        "experts": lambda: [*experts_rows(), *coded_experts_rows()],
        "experts-few": few_coded_experts_rows,
        "recurrent": recurrent_rows,
        "swap": swap_rows,
        "sample": sample_rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    parser.add_argument("--only", choices=groups(None), action="append")
    parser.add_argument("--flashinfer", action="store_true", help="put FlashInfer's decode beside ours")
    arguments = parser.parse_args()
    named = groups(FlashInfer() if arguments.flashinfer else None)
    torch.manual_seed(0)
    print("operation | shape | us | floor us | % of floor | peer | peer us | times faster")
    rows = [r for name in arguments.only or named for r in named[name]()]
    if arguments.out:
        header = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        }
        ceilings = {"read_bytes_per_s": READ, "copy_bytes_per_s": COPY, "bf16_flop_per_s": MATMUL}
        write({**header, "ceilings": ceilings, "rows": [asdict(r) for r in rows]}, arguments.out)


if __name__ == "__main__":
    main()
