"""The contract between the scheduler and the model runner: a `StepPlan` goes in, a `StepResult` comes out.

Everything in a plan is borrowed: token lists and block tables are references to the scheduler's own, and the step
objects are reused. A runner reads them during `launch` and keeps nothing of them afterwards.

The engine may launch a step while the one before it still runs: two at most are under way. Their effects are those of
running one after the other, in the order of their launch: whatever a step swaps, copies or writes comes after all that
the step before it reads or writes. That order is what allows a block to be handed on while a step that uses it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from octavo_worker.messages import EngineSampling, Logprob

UNKNOWN = -1
"""Stands for a token that is still being chosen, see `SequenceStep.follows`."""


@dataclass(slots=True)
class SampleSpec:
    """Choose the token at absolute `position` (prompt included) of sequence `index`.

    The noise is a pure function of (`params.seed`, `index`, `position`, token id). `prompt` and `output` are the
    tokens that penalties look at; both are references, not copies. `forbidden` ids (stop ids before `min_tokens`)
    get a logit of minus infinity. Where the step `follows` another, `output` lacks the token that is still under way.

    With `candidates` the answer lists that many of the most likely tokens instead of choosing one: natural
    log-probabilities of the raw logits, to which bias, penalties and `forbidden` are applied afterwards, as
    transformers does in a beam search. Ids at minus infinity are left out.
    """

    params: EngineSampling
    index: int
    position: int
    prompt: Sequence[int]
    output: Sequence[int]
    forbidden: Sequence[int] = ()
    candidates: int = 0


@dataclass(slots=True)
class SequenceStep:
    """Compute `tokens` of one sequence at positions `start`, `start + 1`, ...

    `block_table` covers at least `start + len(tokens)` tokens. `samples` lists what to sample from the last
    token's logits: nothing for a chunk that does not reach the end of the prompt, one for an ordinary step, several
    when parallel sequences leave a prompt together. `prompt_logprobs` asks for log-probabilities of the tokens that
    follow each computed position inside the prompt (`targets[i]` is the token after position `start + i`).

    The table's leading entries may be the null block. Past `len(cold)` nobody reads them: they lie left of the sliding
    window. The first `len(cold)` are blocks of a long sequence that the device does not hold: `cold` names the host
    blocks in their place, and a runner that `reads_host` attends to them as to any other. One that this step swaps
    out may be read in its device block still.

    `stay` numbers one stay of one sequence in the running batch, from the step that admits it to its end or its
    preemption; no other stay ever has that number. Between two steps of a stay the block table only grows, or gets a
    copy of the block that is written next, or loses leading entries as above: a runner that remembers the stay needs
    to look at nothing else. 0 is a step that nobody should remember.

    A decode whose token the step before this one chooses has `tokens` [`UNKNOWN`]. `follows` is then the position of
    that token among all samples of the plan launched last, counted through its sequences and their `samples`: the
    runner takes it from there on the device, and adds it to `samples[0].output` where penalties look at that. It never
    follows a sample with `candidates`.
    """

    tokens: Sequence[int]
    start: int
    block_table: Sequence[int]
    samples: list[SampleSpec] = field(default_factory=list)
    prompt_logprobs: int | None = None
    targets: Sequence[int] = ()
    run_id: int = 0
    follows: int | None = None
    cold: Sequence[int] = ()


@dataclass(slots=True)
class StepPlan:
    """One step of the model: swaps from the host, swaps to the host, block copies (copy-on-write), in this order, then
    all sequences in one ragged batch. There may be swaps only.

    `swap_out` lists (device block, host block), `swap_in` (host block, device block): whole blocks, all layers. Blocks
    that are swapped out are not reused before the step is committed, nor are their host blocks, so a runner may copy
    them while it computes: a sequence that goes on in such a block writes only where nothing was stored. What is
    swapped in may be read by this step already, or leave for another host block, but often is not: see
    `uses_swapped_in`.

    The first `num_decodes` of `sequences` are decodes of exactly one token, the others are prefill chunks. No block is
    both source and target of copies. Within each layer the runner writes the keys and values of *all* sequences before
    any attention reads them: sequences may read prefix blocks that another one fills in this very step.

    For a runner with `shared_reading`: `groups[i]` is the group of sequence i (-1: none), and `prefix_lens[g]` how many
    leading tokens the sequences of group g have in the same blocks: whole units, before the tokens of this step. Both
    are empty without groups.
    """

    sequences: list[SequenceStep]
    num_decodes: int
    copies: list[tuple[int, int]] = field(default_factory=list)  # (source block, target block)
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    groups: Sequence[int] = ()
    prefix_lens: Sequence[int] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(s.tokens) for s in self.sequences)

    @property
    def uses_swapped_in(self) -> bool:
        """Whether this step reads a block that it swaps in, for a sequence or for a copy of any kind: else a runner may
        let it begin before those are there, and wait for them in the next."""
        loaded = {block for _, block in self.swap_in}
        copied = (source for source, _ in chain(self.swap_out, self.copies))
        used = chain(copied, *(s.block_table for s in self.sequences))
        return bool(loaded) and not loaded.isdisjoint(used)


@dataclass(slots=True)
class Sampled:
    """The chosen token. For a spec with `candidates`: those, best first as (token, log-probability), `token` is
    moot."""

    token: int
    logprob: Logprob | None = None
    candidates: Sequence[tuple[int, float]] = ()


@dataclass(slots=True)
class SequenceResult:
    """Answers to one `SequenceStep`: one `Sampled` for each of its `samples`, in order."""

    samples: list[Sampled]
    prompt_logprobs: list[Logprob] = field(default_factory=list)


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
    """A step under way."""

    def result(self) -> StepResult:
        """Wait until the step is computed and all its copies are done. `StepError` if one sequence is to blame;
        anything else ends the engine process. Called once for every step, in the order of launches; what a step gave
        that was launched before the failure of another was known is dropped."""
        ...


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was over when its launch returned."""

    outcome: StepResult | StepError

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
class SharedReading:
    """A runner whose attention reads leading blocks that sequences have in common once for all of them, in units of
    `unit_blocks`, and gains by it from `least_tokens` tokens on that are not read again. Sequences are decodes and ends
    of prompts, of up to `most_queries` tokens."""

    unit_blocks: int
    least_tokens: int
    most_queries: int = 1


class ModelRunner(Protocol):
    """What the engine asks of a model. The attributes are fixed after construction.

    `num_blocks` and `num_host_blocks` (0: no swapping) count the null block 0, which is never handed out. `kv_dtype`
    names the type of the KV cache, `numerics` what decides how the runner rounds. No plan has more tokens of prompts
    than `token_budget`. `window`: tokens that a query sees in every layer, 0 if some layer sees all. `reads_host`:
    whether it takes `cold` blocks. `speeds` is None if they were not measured, `shared_reading` if leading blocks are
    read once for each sequence. `asynchronous` says that `launch` returns before the step is computed. Only then does
    the engine run one step ahead, and only such a runner meets steps that follow others.
    """

    num_blocks: int
    num_host_blocks: int
    block_size: int
    kv_dtype: str
    numerics: str
    max_model_len: int
    token_budget: int
    vocab_size: int
    window: int
    reads_host: bool
    speeds: Speeds | None
    shared_reading: SharedReading | None
    asynchronous: bool

    def launch(self, plan: StepPlan) -> Launched:
        """Start a step. Errors of the step surface from the `result` of what this returns, `StepError` always."""
        ...
