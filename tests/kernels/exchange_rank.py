"""One rank of an exchange: a process that does what it is asked over a connection. Started by `exchange_ranks.Ranks`.

Every rank draws the parts of all ranks and knows the sum. What it returns are digests, for the test to compare ranks.
"""

from __future__ import annotations

import hashlib
import random
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.exchange.gpus import Exchange, Way
from octavo_kernels.operands import RmsNorm

PART_BYTES = 64 << 20
Case = tuple[int, int, torch.dtype]


def drawn(seed: int, *shape: int, dtype: torch.dtype) -> Tensor:
    """The same on all ranks. Many are zeros of either sign, in pairs that look like a word that has not come, too."""
    generator = torch.Generator("cuda").manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cuda").to(dtype)
    kinds = torch.rand(shape, generator=generator, device="cuda")
    values[kinds < 0.2] = 0.0
    values[kinds > 0.8] = -0.0
    return values


def summed(parts: list[Tensor], residual: Tensor | None) -> Tensor:
    total = torch.zeros_like(parts[0], dtype=torch.float32)
    for part in [*parts, *([] if residual is None else [residual])]:
        total += part.float()
    return total.to(parts[0].dtype)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def digest(*tensors: Tensor) -> str:
    made = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        made.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return made.hexdigest()


def unwritten(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """With a gap between rows."""
    return torch.full((rows, columns + 64), float("nan"), dtype=dtype, device="cuda")[:, :columns]


def add(exchange: Exchange, case: Case, seed: int, bare: bool, way: Way | None = None) -> str:
    """Checks a sum, and without `bare` one with a residual and a norm."""
    rows, columns, dtype = case
    parts = [drawn(seed * 100 + rank, rows, columns, dtype=dtype) for rank in range(exchange.ranks)]
    addend, out = exchange.addend(rows, columns, dtype), unwritten(rows, columns, dtype)
    addend.copy_(parts[exchange.rank])
    if bare:
        expected = normalised = summed(parts, None)
        normed = out
        exchange.add(addend, out, way=way)
    else:
        out.copy_(drawn(seed * 100 + 99, rows, columns, dtype=dtype))
        normed = unwritten(rows, columns, dtype)
        norm = RmsNorm(drawn(seed * 100 + 98, columns, dtype=dtype), 1e-5, 1.0)
        expected = summed(parts, out)
        normalised = ops.rms_norm(expected, norm.weight, norm.eps, offset=norm.offset)
        exchange.add(addend, out, out, norm, normed, way)
    torch.cuda.synchronize()
    assert not exchange.lost(), f"{case}: lost"
    assert same_bits(out, expected), f"{case}, {way}: the sum, in {int((out != expected).sum())} places"
    assert same_bits(normed, normalised), f"{case}, {way}: the norm, in {int((normed != normalised).sum())} places"
    return digest(out, normed)


def adds(exchange: Exchange, cases: list[Case], ways: list[Way | None], bare: bool) -> list[str]:
    """A digest for each case, which all ways agree on."""
    found = []
    for seed, case in enumerate(cases):
        made = {add(exchange, case, seed, bare, way) for way in ways}
        assert len(made) == 1, f"{case}: ways differ"
        found.append(made.pop())
    return found


def gathers(exchange: Exchange, words: list[int]) -> list[str]:
    found = []
    for count in words:
        generator = torch.Generator("cuda").manual_seed(count)
        every = torch.randint(-(2**31), 2**31, (exchange.ranks, count), generator=generator, device="cuda").int()
        every[:, ::3] = -(2**31)  # the word of what has not come
        out = torch.zeros_like(every)
        exchange.gather(every[exchange.rank].contiguous(), out)
        assert torch.equal(out, every), f"{count} words"
        found.append(digest(out))
    return found


def replays(exchange: Exchange, case: Case, times: int) -> list[str]:
    """A graph of sums that follow each other, a gather between them, and a larger sum, replayed over new rows."""
    rows, columns, dtype = case
    addend, large = exchange.addend(rows, columns, dtype), exchange.addend(300, columns, dtype)
    rest, normed = torch.zeros_like(addend), torch.zeros_like(addend)
    kept, mine = torch.zeros_like(addend), torch.zeros_like(addend)
    several, total = torch.zeros(exchange.ranks, *addend.shape, dtype=dtype, device="cuda"), torch.zeros_like(large)
    norm = RmsNorm(drawn(7, columns, dtype=dtype), 1e-6)

    def chain() -> None:
        for _ in range(3):
            addend.copy_(mine)
            exchange.add(addend, rest, rest, norm, normed)
            exchange.gather(normed, several)
            mine.copy_(normed).mul_(exchange.rank + 1)
        large.copy_(rest.repeat(300 // rows, 1))
        exchange.add(large, total)

    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    found = []
    for seed in range(times):
        for launch in (graph.replay, chain):
            rest.copy_(drawn(seed, rows, columns, dtype=dtype))
            mine.copy_(drawn(seed * 10 + exchange.rank, rows, columns, dtype=dtype))
            launch()
            if launch is chain:
                assert same_bits(torch.stack([rest, normed]), kept), "a replay differs from the launches"
            kept = torch.stack([rest, normed])
            assert same_bits(total, summed([rest.repeat(300 // rows, 1)] * exchange.ranks, None))
            assert all(torch.equal(got, normed) for got in several)
        found.append(digest(kept, total))
    assert not exchange.lost()
    return found


def races(exchange: Exchange, rounds: int, seed: int) -> list[int]:
    """Rounds of random sizes, ways and delays without a look at the device; returns those that were wrong."""
    sizes, delays = random.Random(seed), random.Random(seed + exchange.rank + 1)
    rows, columns = 160, 2048
    parts = drawn(seed, exchange.ranks, 2 * rows, columns, dtype=torch.bfloat16)
    wrong = torch.zeros(rounds, dtype=torch.bool, device="cuda")
    for number in range(rounds):
        some, first = sizes.choice([1, 1, 2, 3, 8, 33, rows]), sizes.randrange(rows)
        way = sizes.choice([None, *([Way.PULL, Way.SHARED_PULL] if sizes.random() < 0.3 else [])])
        theirs = parts[:, first : first + some]
        if delays.random() < 0.05:
            torch.cuda._sleep(delays.randrange(200_000))
        if sizes.random() < 0.2:
            got = torch.empty_like(theirs)
            exchange.gather(theirs[exchange.rank].contiguous(), got)
            wrong[number] = (got != theirs).any()
            continue
        addend, out = exchange.addend(some, columns, torch.bfloat16), torch.empty_like(theirs[0])
        addend.copy_(theirs[exchange.rank])
        exchange.add(addend, out, way=way)
        wrong[number] = (out != summed(list(theirs), None)).any()
    found: list[int] = wrong.nonzero().flatten().tolist()
    assert not exchange.lost()
    return found


def checked(exchange: Exchange) -> None:
    exchange.check()


def begin(exchange: Exchange, rows: int) -> bool:
    """A sum to which the others may not come; returns what `lost` says of it."""
    addend = exchange.addend(rows, 4096, torch.bfloat16).zero_()
    exchange.add(addend, torch.empty_like(addend))
    return exchange.lost()


def end(exchange: Exchange) -> bool:
    torch.cuda.synchronize()
    return exchange.lost()


def abort(exchange: Exchange) -> bool:
    exchange.abort()
    return end(exchange)


CASES: dict[str, Callable[..., Any]] = {
    case.__name__: case for case in (abort, adds, begin, checked, end, gathers, races, replays)
}


def main(descriptor: int, rank: int, ranks: int) -> None:
    connection = Connection(descriptor)
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    exchange = Exchange(rank, ranks, device, PART_BYTES)
    connection.send(exchange.handle)
    exchange.connect(connection.recv())
    connection.send(True)
    while (asked := connection.recv()) is not None:
        name, arguments = asked
        try:
            reply = True, CASES[name](exchange, **arguments)
        except Exception:
            reply = False, traceback.format_exc()
        connection.send(reply)
    exchange.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
