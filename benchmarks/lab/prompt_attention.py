"""Why prompts of some heads are attended faster than of others, on one Hopper GPU: speed, clock and power of each.

    python benchmarks/lab/prompt_attention.py [--out benchmarks/results/prompt-attention.json]

Heads that share their keys are computed by blocks alone and by pairs of blocks (`AttentionPlan.pairs`), in turns, and the bits
compared. Each case runs for a while after a rest: `first` is its speed before the GPU has lowered its clock, `tflops` that of
the later half of the time, of which are the clock and the power that nvidia-smi tells, too. `spun_mhz` is the clock just after
it, by counting cycles. `tensor_cores` is the share of the products that these could do at that clock, `of_product` that of a
large matrix product in the same process. Half a minute.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.attention.plan import AttentionPlan, chunk_count
from octavo_worker.bench.report import report, write

sys.path.insert(0, str(Path(__file__).parents[1]))  # kernel_rows is shared with benchmarks/kernels.py
from kernel_rows.measuring import bf16, changed
from kernel_rows.paged import Cache

BATCHES = ((1, 8192), (4, 4096), (16, 2048))
HEADS = ((32, 8, 128), (32, 4, 128), (32, 32, 128), (16, 8, 128))
WIDE = (16, 8, 256)  # half the exponentials of as many products, for the first batch
BLOCK, LAYERS = 16, 2
PRODUCT = 8192  # rows, columns and depth
OPERATIONS_A_CYCLE = 4096  # dense, of 16 bits, by a multiprocessor of Hopper
REST, FIRST, SAMPLE = 0.05, 0.02, 0.02  # seconds
QUERIES = ("clocks.sm,power.draw.instant,clocks_event_reasons.active", "clocks.sm,power.draw,clocks_throttle_reasons.active")


@dataclass
class Watch:
    """What nvidia-smi says of the GPU, with the times at which it says so. It holds back lines unless a terminal reads them."""

    samples: list[tuple[float, float, float, int]] = field(default_factory=list)  # time, MHz, W, reasons

    def __post_init__(self) -> None:
        command = ["nvidia-smi", "-i", f"GPU-{torch.cuda.get_device_properties(0).uuid}", "--format=csv,noheader,nounits"]
        for query in QUERIES:
            asked = [*command, f"--query-gpu=timestamp,{query}"]
            if self._answers(asked):
                terminal, writes = os.openpty()
                self._process = subprocess.Popen([*asked, "-lms", str(int(1000 * SAMPLE))], stdout=writes)
                os.close(writes)
                threading.Thread(target=self._read, args=(terminal,), daemon=True).start()
                return
        print("nvidia-smi does not answer: no clocks and no power", file=sys.stderr)

    def _answers(self, command: list[str]) -> bool:
        try:
            return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    def _read(self, terminal: int) -> None:
        rest = b""
        while True:
            try:
                data = os.read(terminal, 4096)
            except OSError:  # the other end is closed
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                try:
                    at, clock, power, reasons = (part.strip() for part in line.decode().split(","))
                    seconds = datetime.strptime(at, "%Y/%m/%d %H:%M:%S.%f").timestamp()
                    self.samples.append((seconds, float(clock), float(power), int(reasons, 16)))
                except ValueError:
                    continue  # a value that this GPU does not tell

    def between(self, begin: float, end: float) -> dict[str, Any]:
        found = [sample for sample in self.samples if begin <= sample[0] <= end]
        if not found:
            return {"mhz": None, "watts": None, "samples": 0, "reasons": None}
        _, clocks, powers, reasons = zip(*found, strict=True)
        whole = 0
        for one in reasons:
            whole |= one
        middle = statistics.median
        return {"mhz": middle(clocks), "watts": round(middle(powers), 1), "samples": len(found), "reasons": hex(whole)}

    def stop(self) -> None:
        if hasattr(self, "_process"):
            self._process.terminate()
            self._process.wait()


@dataclass
class Case:
    """Calls in a graph, and what each of its turns measured."""

    shape: str
    variant: str
    operations: float  # of a replay
    graph: torch.cuda.CUDAGraph
    turns: list[dict[str, Any]] = field(default_factory=list)

    def run(self, watch: Watch, seconds: float) -> None:
        torch.cuda.synchronize()
        time.sleep(REST)
        count = max(8, int(seconds * 600e12 / self.operations))
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        begin = time.time()
        events[0].record()
        for event in events[1:]:
            self.graph.replay()
            event.record()
        torch.cuda.synchronize()
        end = time.time()
        spun = spun_mhz()
        ends = [events[0].elapsed_time(event) / 1e3 for event in events]
        took = [after - before for before, after in zip(ends, ends[1:])]
        first = [t for t, at in zip(took, ends) if at < FIRST] or took[:1]
        later = [t for t, at in zip(took, ends) if at >= ends[-1] / 2]
        time.sleep(SAMPLE)  # the last sample is read
        self.turns.append({
            "first": self.operations / statistics.median(first) / 1e12,
            "tflops": self.operations / statistics.median(later) / 1e12,
            "spun_mhz": spun, **watch.between((begin + end) / 2, end),
        })  # fmt: skip

    def row(self, product: float) -> dict[str, Any]:
        def middle(name: str) -> float | None:
            values = [turn[name] for turn in self.turns if turn[name] is not None]
            return statistics.median(values) if values else None

        clock = middle("mhz") or middle("spun_mhz")
        cores = torch.cuda.get_device_properties(0).multi_processor_count * OPERATIONS_A_CYCLE
        row = {
            "shape": self.shape, "variant": self.variant, "first": round(middle("first")),
            "tflops": round(middle("tflops"), 1), "mhz": middle("mhz"), "spun_mhz": round(middle("spun_mhz")),
            "watts": middle("watts"), "reasons": self.turns[-1]["reasons"],
            "tensor_cores": round(middle("tflops") * 1e6 / (cores * clock), 3),
            "of_product": round(middle("tflops") / product, 3),
            "turns": [round(turn["tflops"], 1) for turn in self.turns],
        }  # fmt: skip
        return row


def spun_mhz() -> float:
    """The clock by two loops that count cycles, of which the longer one takes so much more."""
    times = []
    for cycles in (100_000, 500_000):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return 400_000 / (times[1] - times[0]) / 1e6


def captured(calls: list[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def product() -> Case:
    x, weight = bf16(PRODUCT, PRODUCT), bf16(PRODUCT, PRODUCT)
    out = torch.empty_like(x)
    call = lambda: torch.mm(x, weight, out=out)
    return Case(f"product {PRODUCT}^3", "cuBLAS", 2.0 * PRODUCT**3, captured([call]))


def prompts(count: int, tokens: int, heads: int, kv_heads: int, head_dim: int) -> tuple[list[Case], bool | None]:
    """A case for blocks alone and one for pairs, where there are pairs, and whether their bits are the same."""
    cache = Cache.make([tokens] * count, LAYERS, kv_heads, head_dim, BLOCK)
    q = bf16(count * tokens, heads, head_dim)
    starts = torch.arange(0, (count + 1) * tokens, tokens, dtype=torch.int32, device="cuda")
    cases: list[Case] = []
    outs: list[Tensor] = []
    for variant, pairs in (("alone", False), ("pairs", True))[: 2 if kv_heads < heads and head_dim == 128 else 1]:
        with changed(AttentionPlan, pairs=pairs):
            plan = AttentionPlan(
                sequences=count, tokens=len(q), chunks=chunk_count([tokens] * count, [tokens] * count, heads // kv_heads),
                heads=heads, kv_heads=kv_heads, head_dim=head_dim, max_queries=tokens,
            )  # fmt: skip
        plan.update(cache.lengths, starts, decodes=False)
        outs.append(torch.full_like(q, float("nan")))

        def call(layer: int, plan: AttentionPlan = plan, out: Tensor = outs[-1]) -> None:
            ops.paged_attention(
                q, cache.pool[:, layer], cache.tables, cache.lengths, starts, out, head_dim**-0.5, BLOCK, plan=plan
            )

        operations = 4.0 * heads * head_dim * count * tokens * (tokens + 1) / 2 * LAYERS
        graph = captured([lambda i=i, call=call: call(i) for i in range(LAYERS)])
        cases.append(Case(f"{heads}/{kv_heads}/{head_dim} {count} x {tokens}", variant, operations, graph))
    return cases, torch.equal(*outs) if len(outs) == 2 else None


def show(row: dict[str, Any]) -> None:
    print(" | ".join(str(row.get(name, "")) for name in COLUMNS), flush=True)


COLUMNS = (
    "shape", "variant", "first", "tflops", "mhz", "spun_mhz", "watts", "reasons", "tensor_cores", "of_product", "same_bits"
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.35, help="of a turn of a case")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    watch = Watch()
    rows: list[dict[str, Any]] = []
    print(" | ".join(COLUMNS))
    try:
        floor = product()
        floor.run(watch, options.seconds)
        for batch in BATCHES:
            for heads in [*HEADS, *([WIDE] if batch == BATCHES[0] else [])]:
                cases, same_bits = prompts(*batch, *heads)
                for turn in range(options.turns):
                    for case in cases if turn % 2 == 0 else reversed(cases):
                        case.run(watch, options.seconds)
                for case in cases:
                    rows.append({**case.row(floor.turns[-1]["tflops"]), "same_bits": same_bits})
                    show(rows[-1])
                del cases, case
                torch.cuda.empty_cache()
            floor.run(watch, options.seconds)
        rows.append(floor.row(floor.turns[-1]["tflops"]))
        show(rows[-1])
    finally:
        watch.stop()
    if options.out:
        write(report("prompt_attention", rows, device=torch.cuda.get_device_name()), options.out)


if __name__ == "__main__":
    main()
