"""The least time that a device could need for a workload, from its bandwidth and its matrix rate alone.

Every weight and every distinct KV entry is read once a step, the matrices of every state are read and written, every
product runs at the full rate, a prefix that several requests share is computed and read once, memory is unlimited, and
reading and computing hide each other. Nothing can be faster, so a measured speed is stated as a share of this one. Of a
model on several ranks each computes its part at the same time, and the sums between them take none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import prod

from octavo_worker.bench.ceilings import Ceilings
from octavo_worker.bench.experts import ExpertBytes
from octavo_worker.bench.workloads import Work
from octavo_worker.model.config import DecoderConfig
from octavo_worker.ranks.rank import Rank, vocabulary_of


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a model: elements of its layers' matrices that a token is multiplied with and of its head, bytes of all
    matrices, bytes of one token's keys and values in all layers, operations of one query and one key in all layers,
    bytes of the matrices of one sequence's states. Of `experts` a step reads those that rows take, which are
    independent of each other."""

    layers: int
    head: int
    weight_bytes: int
    kv_bytes: int
    pair_flops: int
    experts: Sequence[ExpertBytes] = ()
    state_bytes: int = 0

    @classmethod
    def of(
        cls,
        config: DecoderConfig,
        weight_bytes: int,
        kv_itemsize: int,
        ranks: int = 1,
        experts: Sequence[ExpertBytes] = (),
    ) -> Costs:
        """`weight_bytes` are those of the layers and the head. Of the embedding table a step reads rows only; norms and
        biases are left out. Of a model on several ranks these are the costs of one, whose part `config` and
        `weight_bytes` are; what ranks exchange is left out, too."""
        hidden, seen = config.hidden_size, config.attentions
        each = list(zip(seen, (layer for layer in config.attention_layers if layer is not None), strict=True))
        attention = hidden * sum(2 * c.q_size + own.projected * c.kv_size + c.gate_size for c, own in each)
        latent = config.latent_layers
        recurrent = [layer for layer in config.recurrent_layers if layer is not None]
        states = hidden * sum(layer.inner.size + sum(part.size for part in layer.segments) for layer in recurrent)
        columns = sum(layer.mlp.columns for layer in config.layers if layer.mlp is not None)
        mlps = (3 if config.gated else 2) * hidden * columns
        inputs = 0 if config.layer_inputs is None else 3 * hidden * config.layer_inputs.width * len(config.layers)
        return cls(
            layers=attention + sum(c.weights(hidden) for c in latent) + states + mlps + inputs,
            head=hidden * len(vocabulary_of(config.vocab_size, Rank(0, ranks))),
            weight_bytes=weight_bytes,
            kv_bytes=(2 * sum(c.kv_size for c, own in each if own.shares is None) + sum(c.width for c in latent))
            * kv_itemsize,
            pair_flops=4 * sum(c.q_size for c in seen) + 2 * sum(c.heads * (c.width + c.rank) for c in latent),
            experts=experts,
            state_bytes=sum(4 * prod(layer.matrix) for layer in recurrent if layer.matrix),
        )

    @property
    def weights(self) -> int:
        return self.layers + self.head

    def read_bytes(self, rows: int) -> float:
        """Bytes of weights that a step of so many rows reads."""
        return self.weight_bytes - sum(one.unread(rows) for one in self.experts)


def floor_seconds(costs: Costs, work: list[Work], ceilings: Ceilings) -> float:
    """Seconds for all of `work`, which arrives at once."""
    branches = _branches(work)
    return _prompts(costs, branches, ceilings) + _decodes(costs, branches, ceilings)


Branch = tuple[Work, int]
"""A request, and how many leading tokens it shares with the one before it. In the order of their prompts these are all
that it shares with any before it."""


def _branches(work: list[Work]) -> list[Branch]:
    ordered = sorted(work, key=lambda w: w.prompt)
    before = [Work([], 0), *ordered]
    return [(w, _common(previous.prompt, w.prompt)) for previous, w in zip(before, ordered, strict=False)]


def _common(left: list[int], right: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _running(branches: list[Branch], step: int) -> list[Branch]:
    """Branches that have not ended by then: two share the least that their neighbours between them share."""
    kept, shared = [], []
    for w, common in branches:
        shared.append(common)
        if w.max_tokens > step:
            kept.append((w, min(shared)))
            shared = []
    return kept


def _prompts(costs: Costs, branches: list[Branch], ceilings: Ceilings) -> float:
    computed = sum(len(w.prompt) - shared for w, shared in branches)
    pairs = sum(len(w.prompt) ** 2 - shared**2 for w, shared in branches) / 2
    flops = 2 * costs.layers * computed + 2 * costs.head * len(branches) + costs.pair_flops * pairs
    return max(flops / ceilings.flops, costs.read_bytes(computed) / ceilings.bandwidth)


def _decodes(costs: Costs, branches: list[Branch], ceilings: Ceilings) -> float:
    """Every request's first token comes with its prompt; step t computes the one behind t others."""
    seconds = 0.0
    for step in range(1, max(w.max_tokens for w, _ in branches)):
        branches = _running(branches, step)
        contexts = [len(w.prompt) + step for w, _ in branches]
        distinct = sum(contexts) - sum(shared for _, shared in branches)
        read = costs.read_bytes(len(contexts)) + costs.kv_bytes * distinct + 2 * costs.state_bytes * len(contexts)
        flops = 2 * costs.weights * len(contexts) + costs.pair_flops * sum(contexts)
        seconds += max(read / ceilings.bandwidth, flops / ceilings.flops)
    return seconds
