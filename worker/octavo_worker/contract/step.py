"""The contract between the scheduler and the model runner: a `StepPlan` goes in, a `StepResult` comes out.

A plan is immutable, so it may be kept, replayed or sent to other ranks. Two kinds of lists in it belong to the
scheduler and go on growing: block tables and outputs. They are append-only: a plan means the prefix that it names, and
any other change is made to a copy.

At most two steps are in flight: the engine may launch a step while the one before it runs. Effects are those of running
them in the order of their launches: all swaps, copies and writes of a step follow all reads and writes of the one
before it. That order allows a block to be reused while a step that reads it still runs.

Blocks have one id space: those of the device, then from `ModelRunner.first_host_block` on those in CPU memory. Those
of layers with a window have one of their own where there are two groups, see `contract.windows`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo_worker.contract.messages import EngineSampling, Logprob
from octavo_worker.contract.state import StateMove
from octavo_worker.contract.windows import NO_MOVES, BlockMoves, WindowBlocks

UNKNOWN = -1
"""Placeholder of a token that is still being sampled, see `SequenceStep.follows`, or of a draft that the runner fills
in."""


class SampleSpec(msgspec.Struct, frozen=True, gc=False):
    """Sampling options of sequence `index`, the same from step to step.

    The noise is a pure function of (`params.seed`, `index`, position, token id). Penalties look at `prompt` and
    `output`. `forbidden` ids get a logit of minus infinity at positions below `allowed_from` (stop ids before
    `min_tokens`).

    With `candidates`, that many of the most likely tokens are listed and none is sampled, as transformers does in a
    beam search: natural log-probabilities of the raw logits, to which bias, penalties and `forbidden` are applied
    afterwards. Ids at minus infinity are left out.

    A `masked` sample is drawn late, among the ids that `Launched.choose` allows.
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
    """One row of logits to sample, with all that its token depends on: a `SampleSpec` at one absolute `position`.

    `output` are the tokens before `position`, without one that is still being sampled. Without penalties it is empty.
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
    """One sequence's part of a step: `tokens` at positions `start`, `start + 1`, ...

    `samples[i]` reads the logits of `tokens[sample_rows[i]]` and is the token of the next position. Rows ascend;
    without `sample_rows` all samples read the last token. There is no sample for a chunk that ends inside the prompt,
    one for a decode, and several where parallel sequences leave a prompt together or drafts are verified.

    A decode with drafts has them behind its token, and one sample for each of its rows. Draft tokens may be `UNKNOWN`:
    the runner then fills in up to that many, drawn with the noise and options of the samples that verify them, and
    reports them in `SequenceResult.drafts`. Such a decode has no `follows`, and the tokens before `start` are `prompt`
    and `output` of its samples.

    The sequence's blocks are the entries of `block_table` that `start + len(tokens)` tokens take. Leading entries may
    be the null block (left of the sliding window, never read) or host blocks (a runner that `reads_host` attends to
    them like any other). A block that this step swaps out may still be read in its device block.

    `run_id` numbers one run of the sequence in the batch, from its admission to its end or preemption, and is never
    reused. Between two steps of a run only these change: table entries from the block that is written next on, and how
    many leading entries are null or host blocks; the first of `samples` is the same. A runner may cache everything else
    under `run_id`. 0: do not cache.

    With `follows`, the first of `tokens` is `UNKNOWN`: the plan launched last samples it, as number `follows` of all
    its samples, counted through its sequences. The runner takes it from there on the device. It is never a sample with
    `candidates`.

    `prompt_logprobs` asks for log-probabilities of the tokens that follow each computed position inside the prompt
    (`targets[i]` is the token after position `start + i`). `row_context` is what its rows have beside their hidden
    states, such as the number of an adapter: the same for all steps of a run; 0 is none. `state` is what the step does
    with the states of recurrent layers, in every step of a model that has any; None for other models. Where there are
    two groups of blocks, `block_table` is that of layers that see all, `window_table` that of layers with a window: as
    long, and null before it.
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
    state: StateMove | None = None
    window_table: Sequence[int] = ()

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def moving(self, state: StateMove) -> SequenceStep:
        """The same step with this move of its state."""
        return msgspec.structs.replace(self, state=state)

    def windowed(self, window_table: Sequence[int]) -> SequenceStep:
        """The same step with this table of layers with a window."""
        return msgspec.structs.replace(self, window_table=window_table)

    @property
    def drafts(self) -> Sequence[int]:
        """Draft tokens of a decode, which its samples verify."""
        return self.tokens[1:] if self.sample_rows else ()

    @property
    def wanted(self) -> int:
        """Number of drafts that the runner fills in: all of them or none."""
        return len(self.tokens) - 1 if self.sample_rows and self.tokens[-1] == UNKNOWN else 0

    @property
    def rows(self) -> Sequence[int]:
        """Index into `tokens` of each sample's row."""
        return self.sample_rows or (len(self.tokens) - 1,) * len(self.samples)

    def output_at(self, number: int) -> list[int]:
        """Output of `samples[number]` before its position, without an unknown token."""
        spec, row = self.samples[number], self.rows[number]
        prompt_left = max(0, len(spec.prompt) - self.start)
        known = spec.output[: max(0, self.start - len(spec.prompt))]
        return [*known, *self.tokens[prompt_left + (self.follows is not None) : row + 1]]

    def sample_row(self, number: int) -> SampleRow:
        """The sampler's view of `samples[number]`."""
        spec, position = self.samples[number], self.start + self.rows[number] + 1
        forbidden = spec.forbidden if position < spec.allowed_from else ()
        prompt, output = (spec.prompt, self.output_at(number)) if spec.penalises else ((), [])
        return SampleRow(spec.params, spec.index, position, prompt, output, forbidden, spec.candidates, spec.masked)


class StepPlan(msgspec.Struct, frozen=True, gc=False):
    """One step of the model: swaps from the host, swaps to the host, block copies (copy-on-write), in this order, then
    all sequences in one ragged batch. There may be swaps only.

    `swap_out` lists (device block, host block), `swap_in` (host block, device block): whole blocks, all layers. Neither
    block of a swap-out is reused before the step is committed, so a runner may copy while it computes: a sequence that
    goes on in such a block writes only where nothing was stored. This step may read a block that it swaps in, or swap
    it out or copy it again; most steps do neither, see `uses_swapped_in`. `state_out` (device slot, host slot) and
    `state_in` (host slot, device slot) are the same for states, whole slots. No sequence of this step stores its state
    in a slot that these name, but in one that `state_in` fills and that it reads. `windows` are swaps and copies of the
    second group of blocks, if there is one, by the same rules.

    The first `num_decodes` of `sequences` are decodes, of one token or, with drafts, of several; they sample after some
    or all of these. The others are prefill chunks. No block is both source and target of copies. Within each layer the
    runner writes the keys and values of *all* sequences before any attention reads them: a sequence may read prefix
    blocks that another one fills in the same step.

    For a runner with `shared_reading`: `groups[i]` is the group of sequence i (-1: none), `prefix_lens[g]` the number
    of leading tokens that the sequences of group g have in the same blocks: whole units, before the tokens of this
    step. Both are empty without groups.
    """

    sequences: Sequence[SequenceStep]
    num_decodes: int
    copies: Sequence[tuple[int, int]] = ()  # (source block, target block)
    swap_out: Sequence[tuple[int, int]] = ()
    swap_in: Sequence[tuple[int, int]] = ()
    groups: Sequence[int] = ()
    prefix_lens: Sequence[int] = ()
    state_out: Sequence[tuple[int, int]] = ()
    state_in: Sequence[tuple[int, int]] = ()
    windows: BlockMoves = NO_MOVES

    @property
    def num_tokens(self) -> int:
        return sum(len(s.tokens) for s in self.sequences)

    @property
    def has_masked(self) -> bool:
        """True if some samples are masked, hence drawn late. Of one sequence all are, or none."""
        return any(s.samples and s.samples[0].masked for s in self.sequences)

    @property
    def uses_swapped_in(self) -> bool:
        """True if this step reads a block or a state that it swaps in, for a sequence or a copy of any kind. Otherwise
        a runner may begin it before the swap-in is done, and wait in the next step."""
        blocks = BlockMoves(self.copies, self.swap_out, self.swap_in)
        states = BlockMoves(swap_out=self.state_out, swap_in=self.state_in)
        return (
            blocks.are_read(s.block_table for s in self.sequences)
            or self.windows.are_read(s.window_table for s in self.sequences)
            or states.are_read((s.state.read,) for s in self.sequences if s.state is not None)
        )


def count_host_blocks(block_table: Sequence[int], first_host_block: int) -> int:
    """Number of leading blocks of a table that are the host's."""
    if not block_table or block_table[0] < first_host_block:
        return 0
    return bisect_left(block_table, True, key=lambda block: block < first_host_block)


@dataclass(frozen=True, slots=True)
class Masks:
    """Token masks of a step's masked samples. Sample `places[i]` (ascending, among all samples of the plan) may be the
    ids whose bits are set in `words[i]`: id t is bit t % 32 of word t // 32. No row is empty."""

    places: Sequence[int]
    words: NDArray[np.int32]

    @classmethod
    def none(cls) -> Masks:
        return cls((), np.empty((0, 0), np.int32))


@dataclass(slots=True)
class Sampled:
    """One sampled token, -1 where no logit is a number. For a spec with `candidates`: those, best first as (token,
    log-probability); `token` is then meaningless."""

    token: int
    logprob: Logprob | None = None
    candidates: Sequence[tuple[int, float]] = ()


@dataclass(slots=True)
class SequenceResult:
    """Results of one `SequenceStep`: a `Sampled` for each of its `samples`, in order. `drafts` are the tokens that the
    runner filled in for `UNKNOWN` drafts; where there are fewer than `wanted`, as many samples are missing."""

    samples: list[Sampled]
    prompt_logprobs: list[Logprob] = field(default_factory=list)
    drafts: Sequence[int] = ()


@dataclass(slots=True)
class StepResult:
    """Results of a step. `gap_s`: seconds for which the device was idle between the step before and this one."""

    sequences: list[SequenceResult]
    gap_s: float = 0.0


class StepError(Exception):
    """An error of one sequence of a step, provably caused by itself; the others may run without it.

    The engine drops the whole step, fails the request of `plan.sequences[sequence]` and recomputes the rest.
    """

    def __init__(self, sequence: int, message: str) -> None:
        super().__init__(message)
        self.sequence = sequence


class Launched(Protocol):
    """A step in flight.

    The mask of a sample depends on the token before it, which the previous step may still be computing. So a step is
    launched first and its masked samples are drawn later: masks are filled while the device computes.
    """

    def choose(self, masks: Masks) -> None:
        """Draws the masked samples. Called once for every step that has any, after the result of the step before it and
        before the next launch. The result of a masked sample without a mask here is ignored: its sequence has ended."""
        ...

    def result(self) -> StepResult:
        """Waits until the step is computed and all its copies are done. Called once for every step, in the order of
        launches; the result of a step that was launched before the failure of another was known is dropped. Raises
        `StepError` if one sequence is to blame; any other error ends the engine process."""
        ...


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was over when its launch returned."""

    outcome: StepResult | StepError

    def choose(self, masks: Masks) -> None:
        """Nothing to draw: the step is over."""

    def result(self) -> StepResult:
        """The outcome. Raises it if it is a `StepError`."""
        if isinstance(self.outcome, StepError):
            raise self.outcome
        return self.outcome


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds measured at loading: bytes of a block, bytes a second to the host and back, prompt tokens a second; and
    the bytes of a state (0: the model keeps none) and of a block of the second group (0: there is one group)."""

    block_bytes: int
    link: float
    prefill: float
    state_bytes: int = 0
    window_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Step times measured at loading, for a model that verifies drafts: (rows, seconds) of `plain` steps, in which each
    decode computes one token, and of `ragged` ones, in which some compute several. A step has at most `most_samples`
    samples (None: as many as rows). `drafting` are (sequences, seconds) of a draft pass of the runner, one token for
    each sequence; None: the runner makes no drafts. `catching_up` are seconds of the draft model for a token that it
    missed. If ragged steps are `padded`, those of other sizes take as long as the next larger one."""

    plain: Sequence[tuple[int, float]]
    ragged: Sequence[tuple[int, float]]
    most_samples: int | None = None
    drafting: Sequence[tuple[int, float]] | None = None
    catching_up: float = 0.0
    padded: bool = False


@dataclass(frozen=True, slots=True)
class SharedReading:
    """Attention that reads a prefix shared by several sequences once for all of them, in units of `unit_blocks` blocks.
    It pays from `least_tokens` tokens on that are not read again. Sequences are decodes and ends of prompts, of up to
    `most_queries` tokens."""

    unit_blocks: int
    least_tokens: int
    most_queries: int = 1


class ModelRunner(Protocol):
    """A model as the engine sees it. The attributes are fixed after construction.

    `num_blocks` counts the null block 0, `num_host_blocks` (0: no swapping) the block `first_host_block`: neither is
    ever allocated. Host blocks have the ids from `first_host_block` on, which is `num_blocks` or more. The same holds
    for slots of states: `num_state_slots` counts slot 0 (0: the model keeps no states), `num_host_state_slots` the slot
    `first_host_state_slot` (0: states stay on the device). `kv_dtype` names the type of the KV cache, `quantization`
    the schemes of quantised weights (empty: none), `numerics` all that decides how the runner rounds. A plan has at
    most `token_budget` prompt tokens. `window`: tokens that a query sees in every layer, 0 if some layer sees all.
    `windows`: the second group of blocks, None where all layers have one table.
    `reads_host`: block tables may have host blocks. `features` are the names of its kernels' features
    (`octavo_kernels.features`); requests that need others are refused. `speeds` and `step_seconds` are None if they
    were not measured, `shared_reading` if a shared prefix is read for each sequence. `asynchronous`: `launch` returns
    before the step is computed; only then does the engine run one step ahead, and only then do steps have `follows`.
    `abreast`: prompts that share a step's budget, if there are as many. More than one where a step takes as long as its
    longest prompt.
    """

    num_blocks: int
    num_host_blocks: int
    first_host_block: int
    num_state_slots: int
    num_host_state_slots: int
    first_host_state_slot: int
    block_size: int
    kv_dtype: str
    quantization: str
    numerics: str
    max_model_len: int
    token_budget: int
    vocab_size: int
    window: int
    windows: WindowBlocks | None
    reads_host: bool
    features: frozenset[str]
    speeds: Speeds | None
    step_seconds: StepSeconds | None
    shared_reading: SharedReading | None
    asynchronous: bool
    abreast: int

    def launch(self, plan: StepPlan) -> Launched:
        """Starts a step. Its errors surface in `Launched.result`, a `StepError` always."""
        ...
