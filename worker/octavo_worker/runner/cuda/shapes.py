"""Padded shapes of steps, so that a few graphs serve nearly all of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from octavo_kernels.attention.plan import chunk_count, only_prompts
from octavo_worker.model.stage import Stage

PROMPT_TOKENS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Steps with prompts are padded to these many tokens. With more, a GPU computes longer than their launches take."""

DRAFTED_TOKENS = (4, 8, *PROMPT_TOKENS)
"""Steps with drafts, to these: a product takes 8 rows in less time than 16."""

STAGED_QUERIES = 64
"""Up to here one or two tiles hold all queries of a sequence: they may as well read the host's blocks over the link."""


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """A step of one token and one sample a sequence: how many, with padding, and whether some are grouped by what they
    share."""

    sequences: int
    is_shared: bool


@dataclass(frozen=True, slots=True)
class PromptShape:
    """The padded shape of a step with prompts or drafts, and the chunks of keys for which its attention plans have
    room. It samples a row for each of its sequences, or, if it has `drafts`, that of every token. `few`: all its
    sequences are computed as decodes are, and in no groups."""

    sequences: int
    tokens: int
    chunks: int
    drafts: bool = False
    few: bool = False

    @property
    def samples(self) -> int:
        return self.tokens if self.drafts else self.sequences


@dataclass(frozen=True, slots=True)
class RaggedShape:
    """A step that launches its kernels one by one, as many as it needs. `prompts_only`: no sequence of it is computed
    as decodes are. `is_staged`: its layers are gathered before their attention."""

    chunks: int
    prompts_only: bool
    is_staged: bool


@dataclass(frozen=True, slots=True)
class DraftShape:
    """A pass of a draft model that guesses a token for each of so many sequences, with padding. `is_first`: it computes
    two tokens of each."""

    sequences: int
    is_first: bool


GraphShape = DecodeShape | PromptShape
Shape = GraphShape | RaggedShape


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The sizes that decide a step's shape: its sequences, tokens, samples, `queries[S]` and `contexts[S]`, whether any
    sequences are grouped by what they share, whether prompts are scored, and which sequences have blocks on the host
    (`on_host[S]`)."""

    sequences: int
    decodes: int
    tokens: int
    samples: int
    queries: np.ndarray
    contexts: np.ndarray
    is_shared: bool
    is_scored: bool
    on_host: np.ndarray

    @property
    def decoded(self) -> int:
        """Tokens of the decodes."""
        return int(self.queries[: self.decodes].sum())

    @property
    def reads_host(self) -> bool:
        return bool(self.on_host.any())


class StepShapes:
    """The shapes of the steps of one runner, of at most `sequences`, `samples` and `tokens`. The room for `chunks` only
    grows, and with it all prompt shapes change.

    Sequences of up to `few_queries` are computed as decodes are. In layers `heads_per_kv` query heads share keys and
    values. `block_bytes` are those of one layer. Without `prompts` no step with prompts is padded.
    """

    def __init__(
        self,
        sequences: int,
        tokens: int,
        *,
        samples: int,
        prompts: bool,
        chunks: int,
        heads_per_kv: Sequence[int],
        few_queries: int,
        block_size: int,
        block_bytes: int,
    ) -> None:
        self.decodes = batch_sizes(sequences)
        self.prompts = prompt_sizes(sequences, tokens if prompts else 0)
        self._drafted = drafted_sizes(sequences), [size for size in DRAFTED_TOKENS if prompts and size <= tokens]
        self._most_tokens, self._most_samples = tokens, samples
        self._chunks = chunks
        self._heads_per_kv, self._few_queries = heads_per_kv, few_queries
        self._block_size, self._block_bytes = block_size, block_bytes

    def of(self, step: StepSizes) -> Shape:
        """Raises `ValueError` for a step that the runner has no room for."""
        if step.tokens > self._most_tokens or step.samples > self._most_samples:
            most = f"{self._most_tokens} tokens and {self._most_samples} samples"
            raise ValueError(f"a step of {step.tokens} tokens and {step.samples} samples: there is room for {most}")
        if step.decodes == step.sequences == step.tokens == step.samples:
            return DecodeShape(self.decodes[bisect_left(self.decodes, step.sequences)], step.is_shared)
        is_staged = self._is_staged(step)
        drafts = step.decodes == step.sequences and step.tokens == step.samples  # every row is sampled
        sizes, tokens = self._drafted if drafts else self.prompts
        fewest = step.sequences if drafts else max(step.sequences, step.samples)
        padded = sizes[min(bisect_left(sizes, fewest), len(sizes) - 1)]
        padding = padded - step.sequences  # a token and a chunk each
        fit = bisect_left(tokens, step.tokens + padding)
        has_room = fit < len(tokens) and (tokens[fit] <= self._most_samples if drafts else fewest <= padded)
        is_padded = has_room and not step.is_scored and not is_staged
        chunks = max((chunk_count(step.contexts, step.queries, group) for group in self._heads_per_kv), default=0)
        self._chunks = max(self._chunks, chunks + (padding if is_padded else 0))
        if is_padded:
            few = drafts and not step.is_shared and int(step.queries.max()) <= self._few_queries
            return PromptShape(padded, tokens[fit], self._chunks, drafts, few)
        prompts_only = all(only_prompts(step.contexts, step.queries, group) for group in self._heads_per_kv)
        return RaggedShape(self._chunks, prompts_only, is_staged)

    def verifying(self, drafts: int) -> list[PromptShape]:
        """The shapes of the steps to come of decodes alone with up to `drafts` drafts each."""
        few, any_number = self._verifying(min(drafts, self._few_queries - 1)), self._verifying(drafts)
        found = [PromptShape(*sizes, self._chunks, drafts=True, few=True) for sizes in few]
        found += [PromptShape(*sizes, self._chunks, drafts=True) for sizes in any_number]  # or in groups
        return sorted(found, key=astuple)

    def _verifying(self, drafts: int) -> set[tuple[int, int]]:
        """(sequences, tokens)."""
        sizes, lengths = self._drafted
        found = set[tuple[int, int]]()
        for count in range(1, sizes[-1] + 1 if drafts > 0 else 1):
            padded = sizes[bisect_left(sizes, count)]
            most = min(count * (1 + drafts), self._most_samples) + padded - count
            fits = range(bisect_left(lengths, padded + 1), bisect_left(lengths, most) + 1)
            found.update((padded, lengths[fit]) for fit in fits if fit < len(lengths))
        return {sizes for sizes in found if sizes[1] <= self._most_samples}

    def _is_staged(self, step: StepSizes) -> bool:
        """True if many queries of a sequence read blocks on the host, and those fit."""
        many = bool((step.on_host & (step.queries > STAGED_QUERIES)).any())
        return many and Stage.fits(step.contexts, self._block_size, self._block_bytes)


def batch_sizes(most: int) -> list[int]:
    """1, 2, 4, then multiples of 8, up to `most` sequences."""
    sizes = [1, 2, 4, *range(8, most, 8)]
    return sorted({size for size in sizes if size < most} | {most})


def drafted_sizes(sequences: int) -> list[int]:
    """For decodes with drafts: powers of two up to `sequences`. A sequence of padding takes a row of every product, and
    those with drafts have rows enough for rows to cost something."""
    return sorted({min(2**power, sequences) for power in range((sequences - 1).bit_length() + 1)})


def prompt_sizes(sequences: int, tokens: int) -> tuple[list[int], list[int]]:
    """For steps with prompts: powers of four up to `sequences`, and the sizes of at most `tokens`."""
    powers = {min(4**power, sequences) for power in range(sequences.bit_length())}
    return sorted(powers), [size for size in PROMPT_TOKENS if size <= tokens]
