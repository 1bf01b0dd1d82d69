"""The least time that a device could need for a workload, from its bandwidth and its matrix rate alone.

Every weight and every distinct KV entry is read once a step, every product runs at the full rate, a prefix that all
requests share is computed and read once, memory is unlimited, and reading and computing hide each other. Nothing can
be faster, so a measured speed is stated as a share of this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from octavo_worker.bench.ceilings import Ceilings
from octavo_worker.bench.workloads import Work
from octavo_worker.model.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Costs:
    """What a model costs: elements of its layers' matrices and of its head, bytes of one element, bytes of one token's
    keys and values in all layers, operations of one query and one key in all layers."""

    layers: int
    head: int
    itemsize: int
    kv_bytes: int
    pair_flops: int

    @classmethod
    def of(cls, config: DecoderConfig, itemsize: int, kv_itemsize: int) -> Costs:
        """Of the embedding table a step reads rows only; norms and biases are left out."""
        hidden, layers = config.hidden_size, len(config.layers)
        attention = hidden * (2 * config.q_size + 2 * config.kv_size)
        mlp = (3 if config.gated else 2) * hidden * config.intermediate_size
        return cls(
            layers=layers * (attention + mlp),
            head=hidden * config.vocab_size,
            itemsize=itemsize,
            kv_bytes=2 * layers * config.kv_size * kv_itemsize,
            pair_flops=4 * layers * config.q_size,
        )

    @property
    def weights(self) -> int:
        return self.layers + self.head


def floor_seconds(costs: Costs, work: list[Work], ceilings: Ceilings) -> float:
    """Seconds for all of `work`, which arrives at once."""
    shared = _shared([w.prompt for w in work]) if len(work) > 1 else 0
    return _prompts(costs, work, shared, ceilings) + _decodes(costs, work, shared, ceilings)


def _shared(prompts: list[list[int]]) -> int:
    """Leading tokens that all prompts have in common."""
    columns = zip(*prompts, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def _prompts(costs: Costs, work: list[Work], shared: int, ceilings: Ceilings) -> float:
    own = [len(w.prompt) - shared for w in work]
    pairs = shared**2 / 2 + sum(n * shared + n**2 / 2 for n in own)
    flops = 2 * costs.layers * (shared + sum(own)) + 2 * costs.head * len(work) + costs.pair_flops * pairs
    return max(flops / ceilings.flops, costs.weights * costs.itemsize / ceilings.bandwidth)


def _decodes(costs: Costs, work: list[Work], shared: int, ceilings: Ceilings) -> float:
    """Every request's first token comes with its prompt; step t computes the one behind t others."""
    seconds = 0.0
    for step in range(1, max(w.max_tokens for w in work)):
        contexts = [len(w.prompt) + step for w in work if w.max_tokens > step]
        distinct = shared + sum(contexts) - shared * len(contexts)
        read = costs.weights * costs.itemsize + costs.kv_bytes * distinct
        flops = 2 * costs.weights * len(contexts) + costs.pair_flops * sum(contexts)
        seconds += max(read / ceilings.bandwidth, flops / ceilings.flops)
    return seconds
