"""The contract between the scheduler and the model runner: a `StepPlan` goes in, a `StepResult` comes out.

Everything in a plan is borrowed: token lists and block tables are references to the scheduler's own, and the step
objects are reused. A runner reads them during `execute` and keeps nothing of them afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from octavo_worker.messages import EngineSampling, Logprob


@dataclass(slots=True)
class SampleSpec:
    """Choose the token at absolute `position` (prompt included) of sequence `index`.

    The noise is a pure function of (`params.seed`, `index`, `position`, token id). `prompt` and `output` are the
    tokens that penalties look at; both are references, not copies. `forbidden` ids (stop ids before `min_tokens`)
    get a logit of minus infinity.
    """

    params: EngineSampling
    index: int
    position: int
    prompt: Sequence[int]
    output: Sequence[int]
    forbidden: Sequence[int] = ()


@dataclass(slots=True)
class SequenceStep:
    """Compute `tokens` of one sequence at positions `start`, `start + 1`, ...

    `block_table` covers at least `start + len(tokens)` tokens. `samples` lists what to sample from the last
    token's logits: nothing for a chunk that does not reach the end of the prompt, one for an ordinary step, several
    when parallel sequences leave a prompt together. `prompt_logprobs` asks for log-probabilities of the tokens that
    follow each computed position inside the prompt (`targets[i]` is the token after position `start + i`).
    """

    tokens: Sequence[int]
    start: int
    block_table: Sequence[int]
    samples: list[SampleSpec] = field(default_factory=list)
    prompt_logprobs: int | None = None
    targets: Sequence[int] = ()


@dataclass(slots=True)
class StepPlan:
    """One step of the model: block copies first (copy-on-write), then all sequences in one ragged batch.

    The first `num_decodes` of `sequences` are decodes of exactly one token, the others are prefill chunks. No block is
    both source and target of copies. Within each layer the runner writes the keys and values of *all* sequences before
    any attention reads them: sequences may read prefix blocks that another one fills in this very step.
    """

    sequences: list[SequenceStep]
    num_decodes: int
    copies: list[tuple[int, int]] = field(default_factory=list)  # (source block, target block)

    @property
    def num_tokens(self) -> int:
        return sum(len(s.tokens) for s in self.sequences)


@dataclass(slots=True)
class Sampled:
    token: int
    logprob: Logprob | None = None


@dataclass(slots=True)
class SequenceResult:
    """Answers to one `SequenceStep`: one `Sampled` for each of its `samples`, in order."""

    samples: list[Sampled]
    prompt_logprobs: list[Logprob] = field(default_factory=list)


@dataclass(slots=True)
class StepResult:
    sequences: list[SequenceResult]


class StepError(Exception):
    """One sequence of a step cannot be computed, provably because of itself; the others may run without it.

    The engine drops the whole step, fails the request of `plan.sequences[sequence]` and recomputes the rest.
    """

    def __init__(self, sequence: int, message: str) -> None:
        super().__init__(message)
        self.sequence = sequence


class ModelRunner(Protocol):
    """What the engine asks of a model. The attributes are fixed after construction.

    `num_blocks` counts the null block 0, which is never handed out. `execute` raises `StepError` if one sequence is to
    blame, anything else ends the engine process.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int

    def execute(self, plan: StepPlan) -> StepResult: ...
