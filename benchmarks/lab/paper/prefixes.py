"""How much of a real trace's prompts a prefix cache of a given size serves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo_worker.bench.traces import TRACE_BLOCK as BLOCK
from octavo_worker.bench.traces import read_trace
from octavo_worker.memory.block_pool import BlockPool
from octavo_worker.memory.block_table import BlockTable
from octavo_worker.memory.prefix_cache import PrefixCache


@dataclass(frozen=True)
class Prompt:
    """`ids` are those of the trace, `digests` belong to the full ones of these blocks, behind the root."""

    tokens: int
    ids: list[int]
    digests: list[bytes]


def read_prompts(path: Path, limit: int | None = None) -> list[Prompt]:
    """A block's content is unknown, its identity is not: the id stands for its 512 tokens."""
    prompts, cache = [], PrefixCache(BlockPool(2), 1)
    root = cache.root(b"")
    for request in read_trace(path, limit):
        digests = [root]
        cache.extend_digests(digests, request.blocks[: request.prompt // BLOCK])
        prompts.append(Prompt(request.prompt, list(request.blocks), digests))
    return prompts


def published_reuse(prompts: list[Prompt]) -> float:
    """The traces' own figure: an unlimited cache, and a last block that is partly filled counts where its id was seen.
    Here only full blocks are shared and the last token is always computed, so `hit_rate` stays a little below."""
    seen: set[int] = set()
    reused = 0
    for prompt in prompts:
        run = next((i for i, id in enumerate(prompt.ids) if id not in seen), len(prompt.ids))
        reused += min(run * BLOCK, prompt.tokens)
        seen.update(prompt.ids)
    return reused / sum(prompt.tokens for prompt in prompts)


def hit_rate(prompts: list[Prompt], num_blocks: int | None = None) -> float:
    """Share of the tokens served from a cache of `num_blocks` blocks (None: all that ever appear), one request after
    the other, least recently used blocks evicted first. Prompts larger than the pool are computed without it."""
    total = num_blocks or sum(len(prompt.digests) for prompt in prompts) + len(prompts)
    pool = BlockPool(total + 1)
    cache = PrefixCache(pool, BLOCK)
    hit = tokens = 0
    for prompt in prompts:
        tokens += prompt.tokens
        if -(-prompt.tokens // BLOCK) > total:
            continue
        found = cache.match(prompt.digests, prompt.tokens)
        hit += len(found) * BLOCK
        table = BlockTable(pool, BLOCK)
        table.adopt(found)
        table.reserve(prompt.tokens)
        for block, digest in list(zip(table.blocks, prompt.digests[1:], strict=False))[len(found) :]:
            pool.publish(block, digest)
        table.free()
    pool.check_integrity([])
    return hit / tokens


def decline(prompts: list[Prompt]) -> dict[str, float]:
    """Hit rate by pool size, as a share of the distinct blocks of the trace."""
    distinct = len({digest for prompt in prompts for digest in prompt.digests[1:]})
    shares = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625)
    rates = {str(share): hit_rate(prompts, max(64, round(share * distinct))) for share in shares}
    return {"published_reuse": published_reuse(prompts), "unlimited": hit_rate(prompts), **rates}
