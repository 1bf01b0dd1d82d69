"""Sums and gathers over the GPUs of one host, beside NCCL's: `octavo_kernels.exchange.gpus`, one process a rank.

    python benchmarks/exchange.py --ranks 2 --out benchmarks/results/h100x2-exchange.json
    python benchmarks/exchange.py --ranks 2 --only races --races 100000

A sum is that of a layer, with residual and norm: ours is one launch, NCCL's is its all-reduce and our RMS norm with a
residual. Each is a CUDA graph of many calls; both take turns, and figures are medians of the time of a call. A graph is
replayed twice in a row and the second time counts, which all ranks begin at once. `ratio` is NCCL's time over ours.
Multicast is off for NCCL.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}  # before torch is loaded

import torch
import torch.distributed as dist
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.exchange import gpus as kernels
from octavo_kernels.exchange.gpus import Exchange, Way
from octavo_kernels.operands import RmsNorm
from octavo_worker.bench import report

BF16 = torch.bfloat16
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 8192)
COLUMNS = (4096, 8192)
BARE = (1, 16, 256, 4096)  # rows of sums without residual and norm
WORDS = (2, 64, 1024, 16384, 131072, 1 << 20)  # of what is gathered
PART_BYTES = 8192 * 8192 * 2
TURNS = 7
ROUND_BYTES = 256 << 20  # of the messages of one graph, about


def drawn(seed: int, *shape: int) -> Tensor:
    """The same on all ranks."""
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").to(BF16)


def captured(call: Callable[[], None], calls: int) -> torch.cuda.CUDAGraph:
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog asks for events meanwhile
        for _ in range(calls):
            call()
    return graph


def measured(ways: dict[str, Callable[[], None]], nbytes: int) -> dict[str, float]:
    """Microseconds of a call, on the slowest rank."""
    calls = max(4, min(200, ROUND_BYTES // max(nbytes, 1)))
    graphs = {name: captured(call, calls) for name, call in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, graph in graphs.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            graph.replay()
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e3 / calls)
    medians = torch.tensor([report.median(found) for found in times.values()], device="cuda")
    dist.all_reduce(medians, dist.ReduceOp.MAX)
    return dict(zip(times, medians.tolist(), strict=True))


def possible_ways(exchange: Exchange, rows: int, columns: int) -> list[Way]:
    ways = [Way.PULL] if exchange.ranks == 2 else [Way.PULL, Way.SHARED_PULL]
    fits = rows * columns * 2 <= kernels.slot_bytes(exchange.ranks) and rows <= 132 * max(1, 1024 // (columns // 8))
    return [Way.PUSH, *ways] if fits else ways


def sum_row(exchange: Exchange, rows: int, columns: int, bare: bool) -> dict[str, Any]:
    parts = [drawn(rank, rows, columns) for rank in range(exchange.ranks)]
    addend, theirs = exchange.addend(rows, columns, BF16), torch.zeros_like(parts[0])
    rest, out, normed = torch.zeros_like(theirs), torch.empty_like(theirs), torch.empty_like(theirs)
    norm = RmsNorm(drawn(99, columns))
    total = torch.zeros(rows, columns, device="cuda")
    for part in parts:
        total += part.float()
    same = True
    for way in [None, *possible_ways(exchange, rows, columns)]:
        addend.copy_(parts[exchange.rank])  # a sum may be left in its place
        exchange.add(addend, out, way=way)
        same &= torch.equal(out, total.to(BF16))
    del parts, total

    def ours(way: Way | None) -> None:
        if bare:
            exchange.add(addend, out, way=way)
        else:
            exchange.add(addend, rest, rest, norm, normed, way)

    def nccl() -> None:
        dist.all_reduce(theirs)
        if not bare:
            ops.rms_norm(theirs, norm.weight, norm.eps, out=normed, residual=rest)

    calls: dict[str, Callable[[], None]] = {"ours": partial(ours, None), "nccl": nccl}
    calls |= {way.name.lower(): partial(ours, way) for way in possible_ways(exchange, rows, columns)}
    times = measured(calls, addend.nbytes)
    return row("sum" if bare else "sum, residual, norm", f"{rows} x {columns}", addend.nbytes, times, agreed(same))


def gather_row(exchange: Exchange, words: int) -> dict[str, Any]:
    every = torch.arange(exchange.ranks * words, dtype=torch.int32, device="cuda").view(exchange.ranks, words)
    mine, got = every[exchange.rank].contiguous(), torch.zeros_like(every)
    exchange.gather(mine, got)
    same = torch.equal(got, every)
    theirs = torch.zeros_like(every)
    calls: dict[str, Callable[[], None]] = {
        "ours": lambda: exchange.gather(mine, got),
        "nccl": lambda: dist.all_gather_into_tensor(theirs, mine),
    }
    return row("gather", f"{words} words", mine.nbytes, measured(calls, mine.nbytes), agreed(same))


def agreed(same: bool) -> bool:
    all_same = torch.tensor(int(same), device="cuda")
    dist.all_reduce(all_same, dist.ReduceOp.MIN)
    return bool(all_same)


def row(operation: str, shape: str, nbytes: int, times: dict[str, float], equal: bool) -> dict[str, Any]:
    ours, nccl = times.pop("ours"), times.pop("nccl")
    made = {
        "operation": operation, "shape": shape, "bytes": nbytes, "us": round(ours, 2), "nccl_us": round(nccl, 2),
        "ratio": round(nccl / ours, 2), "ways_us": {name: round(us, 2) for name, us in times.items()}, "equal": equal,
    }  # fmt: skip
    if dist.get_rank() == 0:
        others = ", ".join(f"{name} {us}" for name, us in made["ways_us"].items())
        wrong = "" if equal else " | WRONG"
        print(f"{operation} | {shape} | {nbytes >> 10} | {ours:.2f} | {nccl:.2f} | {nccl / ours:.2f} | {others}{wrong}")
    return made


def races(exchange: Exchange, rounds: int, seed: int = 1) -> dict[str, Any]:
    """Random sizes and ways, with random delays of each rank; every result is compared on the device."""
    sizes, delays = random.Random(seed), random.Random(seed + exchange.rank + 1)
    rows, columns = 160, 2048
    parts = torch.stack([drawn(rank, 2 * rows, columns) for rank in range(exchange.ranks)])
    sums = torch.zeros(2 * rows, columns, device="cuda")
    for part in parts:
        sums += part.float()
    expected, wrong = sums.to(BF16), torch.zeros(1, dtype=torch.int64, device="cuda")
    for _ in range(rounds):
        some, first = sizes.choice([1, 1, 2, 3, 8, 33, rows]), sizes.randrange(rows)
        way = sizes.choice([None, None, None, None, Way.PULL, Way.SHARED_PULL])
        gathers = sizes.random() < 0.2
        place = slice(first, first + some)
        if delays.random() < 0.02:
            torch.cuda._sleep(delays.randrange(100_000))
        if gathers:
            got = torch.empty_like(parts[:, place])
            exchange.gather(parts[exchange.rank, place], got)
            wrong += (got != parts[:, place]).any()
            continue
        addend, out = exchange.addend(some, columns, BF16), torch.empty(some, columns, dtype=BF16, device="cuda")
        addend.copy_(parts[exchange.rank, place])
        exchange.add(addend, out, way=way)
        wrong += (out != expected[place]).any()
    equal = agreed(not int(wrong) and not exchange.lost())
    if exchange.rank == 0:
        print(f"races: {rounds} rounds, {'all right' if equal else 'WRONG'}")
    return {"operation": "races", "rounds": rounds, "equal": equal}


def rows_of(exchange: Exchange, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    if "races" in arguments.only and arguments.races:
        found.append(races(exchange, arguments.races))
    if exchange.rank == 0:
        print("operation | shape | KiB | us | NCCL us | ratio | ways us")
    if "sums" in arguments.only:
        found += [sum_row(exchange, rows, columns, bare=False) for columns in COLUMNS for rows in ROWS]
        found += [sum_row(exchange, rows, 8192, bare=True) for rows in BARE]
    if "gathers" in arguments.only:
        found += [gather_row(exchange, words) for words in WORDS]
    return found


def serve(rank: int, arguments: argparse.Namespace, folder: str) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl", init_method=f"file://{folder}/store", rank=rank, world_size=arguments.ranks, device_id=device
    )
    kernels.PUSHED = arguments.pushed
    exchange = Exchange(rank, arguments.ranks, device, PART_BYTES)
    handles: list[Any] = [None] * arguments.ranks
    dist.all_gather_object(handles, exchange.handle)
    exchange.connect(handles)
    exchange.check()
    found = rows_of(exchange, arguments)
    if rank == 0 and arguments.out:
        sizes = {"ranks": arguments.ranks, "pushed": arguments.pushed, "nccl": list(torch.cuda.nccl.version())}
        report.write(report.report("exchange", found, **sizes), arguments.out)
    dist.barrier()
    exchange.close()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="GPUs")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    parser.add_argument("--only", choices=["sums", "gathers", "races"], action="append")
    parser.add_argument("--races", type=int, default=2000, help="rounds of random sizes")
    parser.add_argument("--pushed", type=int, default=kernels.PUSHED, help="bytes that a rank gets by push, at most")
    arguments = parser.parse_args()
    arguments.only = arguments.only or ["races", "sums", "gathers"]
    if torch.cuda.device_count() < arguments.ranks:
        parser.error(f"{arguments.ranks} ranks need as many GPUs, but there are {torch.cuda.device_count()}")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(serve, (arguments, folder), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
