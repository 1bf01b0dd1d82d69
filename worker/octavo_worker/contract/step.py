"""The contract between the scheduler and the model runner: a `StepPlan` goes in, a `StepResult` comes out.

A plan is a value: nothing of it changes once it is planned, so it may be kept, replayed or sent to other ranks. Two
kinds of lists in it belong to the scheduler and go on growing: block tables and outputs. They are append-only, and a
plan means the beginning that it names; whatever else happens to such a list happens to a copy of it.

The engine may launch a step while the one before it still runs: two at most are in flight. Their effects are those of
running one after the other, in the order of their launch: whatever a step swaps, copies or writes comes after all that
the step before it reads or writes. That order is what allows a block to be handed on while a step that uses it runs.

Blocks have one id space: those of the device, then from `ModelRunner.first_host_block` on those in CPU memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo_worker.contract.messages import EngineSampling, Logprob

UNKNOWN = -1
"""Stands for a token that is still being chosen, see `SequenceStep.follows`, or for a draft that the runner guesses."""


class SampleSpec(msgspec.Struct, frozen=True, gc=False):
    """How tokens of sequence `index` are chosen: what stays the same from step to step.

    The noise is a pure function of (`params.seed`, `index`, position, token id). Penalties look at `prompt` and
    `output`. `forbidden` ids get a logit of minus infinity at positions below `allowed_from` (stop ids before
    `min_tokens`).

    With `candidates` the answer lists that many of the most likely tokens instead of choosing one: natural
    log-probabilities of the raw logits, to which bias, penalties and `forbidden` are applied afterwards, as
    transformers does in a beam search. Ids at minus infinity are left out.

    A `masked` sample is chosen late, among the ids that `Launched.choose` allows it.
    """

    params: EngineSampling
    index: int
    prompt: Sequence[int]
    output: Sequence[int]
    forbidden: Sequence[int] = ()
    allowed_from: int = 0
    candidates: int = 0
    masked: bool = False

    @property
    def penalises(self) -> bool:
        p = self.params
        return p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0


class SampleRow(msgspec.Struct, frozen=True, gc=False):
    """One row of logits to sample, with all that its token depends on: `SampleSpec` at one absolute `position`.

    `output` are the tokens before `position`, but for one that is still being chosen. Without penalties it is empty.
    """

    params: EngineSampling
    index: int
    position: int
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    forbidden: Sequence[int] = ()
    candidates: int = 0
    masked: bool = False


class SequenceStep(msgspec.Struct, frozen=True, gc=False):
    """Compute `tokens` of one sequence at positions `start`, `start + 1`, ...

    `samples` lists what to sample: nothing for a chunk that does not reach the end of the prompt, one for an ordinary
    decode, several when parallel sequences leave a prompt together or when drafts are verified. `sample_rows[i]` is the
    place among `tokens` of the one whose logits `samples[i]` reads, in ascending order; without `sample_rows` all read
    the last one's. A sample's position is the one after its row's. A decode with drafts has them behind its token, and
    a sample of each row. Where they are `UNKNOWN`, the runner guesses up to so many itself, by its own lights, and its
    answer says which: they depend on the same noise and options as the samples that verify them. Such a decode follows
    no sample. Its tokens before `start` are `prompt` and `output` of its samples.

    The first entries of `block_table`, as many as `start + len(tokens)` tokens take, are the sequence's blocks.
    Leading entries may be the null block: nothing reads them, they lie left of the sliding window. Or they are blocks
    of the host: a runner that `reads_host` attends to them as to any other. A block that this step swaps out may be
    read in its device block still.

    `run_id` numbers one run of one sequence in the batch, from the step that admits it to its end or its preemption; no
    other run ever has that number. From one step of a run to the next, only table entries from the block that is
    written next on are new, and more null or host blocks at the beginning; the first of `samples` is the same. A runner
    that remembers the run needs to look at nothing else. 0 is a step that must not be remembered.

    The first of `tokens` is `UNKNOWN` if the step before this one chooses it. `follows` is then the place of that token
    among all samples of the plan launched last, counted through its sequences and their `samples`: the runner takes it
    from there on the device. It never follows a sample with `candidates`.

    `prompt_logprobs` asks for log-probabilities of the tokens that follow each computed position inside the prompt
    (`targets[i]` is the token after position `start + i`). `row_context` is what its rows have beside their hidden
    states, such as the number of an adapter: the same for all steps of a run; 0 is none.
    """

    tokens: Sequence[int]
    start: int
    block_table: Sequence[int]
    samples: Sequence[SampleSpec] = ()
    sample_rows: Sequence[int] = ()
    run_id: int = 0
    follows: int | None = None
    prompt_logprobs: int | None = None
    targets: Sequence[int] = ()
    row_context: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def drafts(self) -> Sequence[int]:
        """The tokens of a decode that its samples verify."""
        return self.tokens[1:] if self.sample_rows else ()

    @property
    def wanted(self) -> int:
        """How many drafts the runner is to guess: all of them or none."""
        return len(self.tokens) - 1 if self.sample_rows and self.tokens[-1] == UNKNOWN else 0

    @property
    def rows(self) -> Sequence[int]:
        """The place among `tokens` of each sample's row."""
        return self.sample_rows or (len(self.tokens) - 1,) * len(self.samples)

    def output_at(self, number: int) -> list[int]:
        """The output of `samples[number]` before its position, but for an unknown token."""
        spec, row = self.samples[number], self.rows[number]
        prompt_left = max(0, len(spec.prompt) - self.start)
        known = spec.output[: max(0, self.start - len(spec.prompt))]
        return [*known, *self.tokens[prompt_left + (self.follows is not None) : row + 1]]

    def sample_row(self, number: int) -> SampleRow:
        """What the sampler has to know of `samples[number]`."""
        spec, position = self.samples[number], self.start + self.rows[number] + 1
        forbidden = spec.forbidden if position < spec.allowed_from else ()
        prompt, output = (spec.prompt, self.output_at(number)) if spec.penalises else ((), [])
        return SampleRow(spec.params, spec.index, position, prompt, output, forbidden, spec.candidates, spec.masked)


class StepPlan(msgspec.Struct, frozen=True, gc=False):
    """One step of the model: swaps from the host, swaps to the host, block copies (copy-on-write), in this order, then
    all sequences in one ragged batch. There may be swaps only.

    `swap_out` lists (device block, host block), `swap_in` (host block, device block): whole blocks, all layers. Blocks
    that are swapped out are not reused before the step is committed, nor are their host blocks, so a runner may copy
    them while it computes: a sequence that goes on in such a block writes only where nothing was stored. What is
    swapped in may be read by this step already, or leave for another host block, but often is not: see
    `uses_swapped_in`.

    The first `num_decodes` of `sequences` are decodes: they sample what follows some or all of their tokens, of which
    they have one or, to be verified, several. The others are prefill chunks. No block is both source and target of
    copies. Within each layer the runner writes the keys and values of *all* sequences before any attention reads them:
    sequences may read prefix blocks that another one fills in this very step.

    For a runner with `shared_reading`: `groups[i]` is the group of sequence i (-1: none), and `prefix_lens[g]` how many
    leading tokens the sequences of group g have in the same blocks: whole units, before the tokens of this step. Both
    are empty without groups.
    """

    sequences: Sequence[SequenceStep]
    num_decodes: int
    copies: Sequence[tuple[int, int]] = ()  # (source block, target block)
    swap_out: Sequence[tuple[int, int]] = ()
    swap_in: Sequence[tuple[int, int]] = ()
    groups: Sequence[int] = ()
    prefix_lens: Sequence[int] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(s.tokens) for s in self.sequences)

    @property
    def has_masked(self) -> bool:
        """Whether some sample is chosen late. Those of one sequence all are, or none."""
        return any(s.samples and s.samples[0].masked for s in self.sequences)

    @property
    def uses_swapped_in(self) -> bool:
        """Whether this step reads a block that it swaps in, for a sequence or for a copy of any kind: else a runner may
        let it begin before those are there, and wait for them in the next."""
        if not self.swap_in:
            return False
        loaded = {block for _, block in self.swap_in}
        copied = (source for source, _ in chain(self.swap_out, self.copies))
        return not loaded.isdisjoint(chain(copied, *(s.block_table for s in self.sequences)))


def count_host_blocks(block_table: Sequence[int], first_host_block: int) -> int:
    """How many leading blocks of a table are the host's."""
    if not block_table or block_table[0] < first_host_block:
        return 0
    return bisect_left(block_table, True, key=lambda block: block < first_host_block)


@dataclass(frozen=True, slots=True)
class Masks:
    """What the masked samples of a step may be: `places[i]`, among all samples of the plan, in ascending order, those
    ids whose bit in row i is set: id t is bit t % 32 of word t // 32. No row is empty."""

    places: Sequence[int]
    words: NDArray[np.int32]

    @classmethod
    def none(cls) -> Masks:
        return cls((), np.empty((0, 0), np.int32))


@dataclass(slots=True)
class Sampled:
    """The chosen token, -1 where no logit is a number. For a spec with `candidates`: those, best first as (token,
    log-probability), `token` is moot."""

    token: int
    logprob: Logprob | None = None
    candidates: Sequence[tuple[int, float]] = ()


@dataclass(slots=True)
class SequenceResult:
    """Answers to one `SequenceStep`: one `Sampled` for each of its `samples`, in order. `drafts` are those that the
    runner guessed, if it was to: there may be fewer than wanted, and as many samples less."""

    samples: list[Sampled]
    prompt_logprobs: list[Logprob] = field(default_factory=list)
    drafts: Sequence[int] = ()


@dataclass(slots=True)
class StepResult:
    """What a step gave, and for how many seconds the device had nothing to do between the step before and this one."""

    sequences: list[SequenceResult]
    gap_s: float = 0.0


class StepError(Exception):
    """One sequence of a step cannot be computed, provably because of itself; the others may run without it.

    The engine drops the whole step, fails the request of `plan.sequences[sequence]` and recomputes the rest.
    """

    def __init__(self, sequence: int, message: str) -> None:
        super().__init__(message)
        self.sequence = sequence


class Launched(Protocol):
    """A step in flight.

    What a masked sample may be depends on the token before it, which the step launched before may still be computing.
    So a step is launched first and chooses later: its masks are filled while the device computes.
    """

    def choose(self, masks: Masks) -> None:
        """Choose the masked samples. Called once for every step that has any, after the result of the step before it
        and before the next launch. Of samples that are masked but have no mask here the answer is moot: their
        sequences have ended."""
        ...

    def result(self) -> StepResult:
        """Wait until the step is computed and all its copies are done. `StepError` if one sequence is to blame;
        anything else ends the engine process. Called once for every step, in the order of launches; what a step gave
        that was launched before the failure of another was known is dropped."""
        ...


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was over when its launch returned."""

    outcome: StepResult | StepError

    def choose(self, masks: Masks) -> None:
        """Nothing is left to choose."""

    def result(self) -> StepResult:
        if isinstance(self.outcome, StepError):
            raise self.outcome
        return self.outcome


@dataclass(frozen=True, slots=True)
class Speeds:
    """Measured when a model is loaded: bytes a block, bytes a second to the host and back, prompt tokens a second."""

    block_bytes: int
    link: float
    prefill: float


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Measured when a model is loaded that is to verify drafts: (rows, seconds) of `plain` steps, in which each decode
    computes one token, and of `ragged` ones, in which some compute several. No step may have more than `most_samples`
    then (None: as many as it has rows). `drafting` are (sequences, seconds) of a pass in which the runner guesses a
    token for each; None: it guesses nothing. `catching_up` are its seconds for a token that it missed. If ragged steps
    are `padded`, those of other sizes take as long as the next larger one."""

    plain: Sequence[tuple[int, float]]
    ragged: Sequence[tuple[int, float]]
    most_samples: int | None = None
    drafting: Sequence[tuple[int, float]] | None = None
    catching_up: float = 0.0
    padded: bool = False


@dataclass(frozen=True, slots=True)
class SharedReading:
    """A runner whose attention reads leading blocks that sequences have in common once for all of them, in units of
    `unit_blocks`, and gains by it from `least_tokens` tokens on that are not read again. Sequences are decodes and ends
    of prompts, of up to `most_queries` tokens."""

    unit_blocks: int
    least_tokens: int
    most_queries: int = 1


class ModelRunner(Protocol):
    """What the engine asks of a model. The attributes are fixed after construction.

    `num_blocks` counts the null block 0, `num_host_blocks` (0: no swapping) the block `first_host_block`: both are
    never handed out. Host blocks have the ids from `first_host_block` on, which is `num_blocks` or more. `kv_dtype`
    names the type of the KV cache, `quantization` the schemes of quantised weights (empty: none is), `numerics` what
    decides how the runner rounds. No plan has more tokens of prompts
    than `token_budget`. `window`: tokens that a query sees in every layer, 0 if some layer sees all. `reads_host`:
    whether block tables may have host blocks. `features`: names of what its kernels can, `octavo_kernels.features`;
    requests that ask for others are refused. `speeds` and `step_seconds` are None if they were not measured,
    `shared_reading` if leading blocks are read once for each sequence. `asynchronous` says that `launch` returns before
    the step is computed. Only then does the engine run one step ahead, and only such a runner meets steps that follow
    others.
    """

    num_blocks: int
    num_host_blocks: int
    first_host_block: int
    block_size: int
    kv_dtype: str
    quantization: str
    numerics: str
    max_model_len: int
    token_budget: int
    vocab_size: int
    window: int
    reads_host: bool
    features: frozenset[str]
    speeds: Speeds | None
    step_seconds: StepSeconds | None
    shared_reading: SharedReading | None
    asynchronous: bool

    def launch(self, plan: StepPlan) -> Launched:
        """Start a step. Errors of the step surface from the `result` of what this returns, `StepError` always."""
        ...
