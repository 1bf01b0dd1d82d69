"""500 random requests on a real model get the same tokens with a large pool and with every way of preemption."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import pytest

from octavo_worker.contract.messages import AddRequest, BeamOptions
from octavo_worker.memory.block_pool import BlockPool
from octavo_worker.memory.cost import Decision, PreemptionPolicy, Victim

from .conftest import Pair
from .drive import Answers, Engine, request
from .zoo import VOCAB

COUNT = 500


class MixedPolicy(PreemptionPolicy):
    """Swaps and recomputes by turns."""

    def __init__(self) -> None:
        super().__init__("swap")
        self._turn = 0

    def decide(self, victim: Victim, host: BlockPool | None) -> Decision:
        self._turn += 1
        return super().decide(victim, host) if self._turn % 2 else Decision.CHEAPER


def random_requests() -> list[AddRequest]:
    """Greedy, seeded, four samples, beams; many begin alike, some with several hundred tokens."""
    rng = random.Random(77)
    prefixes = [[rng.randrange(VOCAB) for _ in range(length)] for length in (48, 48, 48, 48, 48, 48, 330)]
    requests = []
    for number in range(COUNT):
        prefix = rng.choice(prefixes)
        prompt = prefix[: rng.randint(0, len(prefix))] + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 24))]
        kind = rng.choice(["greedy", "seeded", "n4", "beams"])
        options: dict[str, object] = {
            "greedy": {},
            "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": number},
            "n4": {"n": 4, "temperature": 1.0, "seed": number},
            "beams": {"n": 2, "beam": BeamOptions(3, 1.0, False), "stop_token_ids": list(range(0, VOCAB, 9))},
        }[kind]  # type: ignore[assignment]
        requests.append(request(str(number), prompt, max_tokens=rng.randint(1, 20), **options))  # type: ignore[arg-type]
    return requests


@pytest.fixture(scope="module")
def roomy(pair: Callable[[str], Pair]) -> Callable[[str], Answers]:
    @cache
    def run(name: str) -> Answers:
        answers = Engine(pair(name).runner).run(random_requests())
        assert answers.stats.preemptions == 0
        return answers

    return run


@pytest.mark.full(but=1)
@pytest.mark.parametrize("mode", ["recompute", "swap", "mixed"])
@pytest.mark.parametrize("name", ["llama", "qwen3_5"])
def test_preemption_changes_no_token(
    name: str, mode: str, pair: Callable[[str], Pair], roomy: Callable[[str], Answers]
) -> None:
    policy = MixedPolicy() if mode == "mixed" else PreemptionPolicy(mode)
    hosts = 0 if mode == "recompute" else 100
    tight = Engine(pair(name).runner, num_blocks=61, num_host_blocks=hosts, policy=policy).run(random_requests())
    assert tight.stats.preemptions > 100
    assert (tight.stats.swapped_out > 50) == (mode != "recompute")
    assert (tight.stats.recomputed_tokens > 500) == (mode != "swap")
    assert tight.tokens == roomy(name).tokens
