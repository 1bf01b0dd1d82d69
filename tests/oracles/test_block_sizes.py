"""However many tokens a block has, the tokens and their scores are the same."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.messages import AddRequest
from octavo_worker.contract.options import ModelOptions
from octavo_worker.memory.cost import PreemptionPolicy

from .conftest import Pair
from .drive import Engine, request
from .zoo import VOCAB


def requests() -> list[AddRequest]:
    rng = random.Random(5)
    prefix = [rng.randrange(VOCAB) for _ in range(20)]
    return [
        request(
            str(i), prefix[: rng.choice([0, 20])] + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 40))],
            n=1 + i % 3, temperature=0.9 * (i % 2), seed=i, logprobs=1, max_tokens=30,
        )
        for i in range(24)
    ]  # fmt: skip


@pytest.mark.full(but=2)
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("block_size", [4, 8, 32])
def test_block_sizes_change_no_bit(block_size: int, kv_dtype: str, cpu_pair: Callable[[str], Pair]) -> None:
    def engine(size: int, tokens: int) -> Engine:
        options = ModelOptions(
            model=str(cpu_pair("llama").folder), device="cpu", dtype="bfloat16", kv_dtype=kv_dtype, block_size=size,  # type: ignore[arg-type]
            num_blocks=tokens // size + 1, host_cache_bytes=1 << 20, threads=1,
        )  # fmt: skip
        runner = load_runner(options)
        return Engine(runner, num_host_blocks=runner.num_host_blocks, policy=PreemptionPolicy("swap"))

    expected, tight = engine(16, 4096).run(requests()), engine(block_size, 512).run(requests())
    assert tight.tokens == expected.tokens
    assert tight.logprobs == expected.logprobs
    assert tight.stats.preemptions > 0
