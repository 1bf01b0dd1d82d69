"""One claimed job: what it has generated, in which order that went into its stream, and what of it is stored."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from tokenizers import Tokenizer

from octavo.queue.protocol import Append, Claim
from octavo.terms.errors import MalformedMessage
from octavo.terms.messages import Chunk, JobError, JobStatus, Terminal, TokenLogprob, TopLogprob, Usage
from octavo.terms.structured import Grammar
from octavo_worker.agent.prompts.answer_form import AnswerForm, EncodedPrompt
from octavo_worker.agent.sequence import GeneratedSequence
from octavo_worker.agent.text import TextStream
from octavo_worker.contract.messages import (
    BATCH,
    HIGH,
    NORMAL,
    AddRequest,
    BeamProgress,
    DraftsVerified,
    EngineSampling,
    Logprob,
    RequestPromoted,
    RequestResumed,
    RequestStarted,
    SequenceInput,
    TokenOutput,
)

MAX_CHUNK_TOKENS = 256
"""Most tokens in one stream entry; more than one only after the server was slow or away."""

_PRIORITIES = {"high": HIGH, "normal": NORMAL, "batch": BATCH}


def _no_bytes(token: int) -> bytes:
    return b""


class ActiveJob:
    """A job between its claim and its last entry.

    Tokens of all sequences get their place in the stream when they are about to be sent, so that a slow server makes
    longer chunks and not more of them; what has its place keeps it, so that any suffix can be sent again. Offsets
    count the tokens of all sequences. `request_id` names this ownership towards the engine: late messages about an
    earlier one of the same job cannot be mistaken for it.

    A job that is held back (best_of, beam search) places nothing before all of its sequences are generated and the best
    of them are chosen. A takeover generates them again; what an earlier owner stored is not sent a second time.
    """

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.request_id = f"{claim.job_id}#{claim.token}"  # a server that forgets counts an attempt twice
        self.engine_ids = [self.request_id]
        self.prompt: list[int] = []
        self.sequences: list[GeneratedSequence] = []
        self.stored = 0  # tokens that the server holds, by its last reply
        self.is_restored = claim.offset == 0  # what earlier owners published is known here
        self.in_engine = False
        self.is_computed = False  # the engine has its prompt in memory
        self.claimed_at = time.monotonic()
        self.computed_at: float | None = None  # of the first token here
        self.preempted_at: float | None = None  # monotonic; None while the engine has memory for it
        self.rank = _PRIORITIES[claim.risen or claim.priority]  # the class that it runs as
        self._tokenizer: Tokenizer | None = None
        self._form = AnswerForm()
        self._grammar: Grammar | None = None
        self._longest: int | None = None
        self._asked: AddRequest | None = None
        self._held_back = claim.request.sampling.is_held_back
        self._earlier: list[Chunk] = []  # what an earlier owner of a job that is held back stored
        self._ending: tuple[JobStatus, JobError | None] | None = None
        self._unfinished = claim.request.sampling.width  # sequences
        self._searched = 0  # tokens of a beam, by its latest progress
        self._runs: list[tuple[int, int, int, int]] = []  # (offset, sequence, its first token, count)
        self._placed = 0
        self._token_bytes: Callable[[int], bytes] = _no_bytes
        self._cached_tokens = self._recomputed_tokens = self._restored_tokens = 0
        self._drafted_tokens = self._accepted_tokens = 0
        self._prompt_logprobs: tuple[TokenLogprob, ...] | None = None

    def begin(
        self,
        prompt: EncodedPrompt,
        *,
        tokenizer: Tokenizer | None,
        token_bytes: Callable[[int], bytes],
        longest: int | None = None,
    ) -> None:
        """The prompt is known. `tokenizer` None: all text stays empty. `longest`: tokens that the context
        leaves for a sequence."""
        self.prompt, self._form, self._grammar = prompt.ids, prompt.form, prompt.grammar
        limits = [limit for limit in (self.claim.request.sampling.max_tokens, longest) if limit is not None]
        self._longest = min(limits, default=None)
        self._token_bytes = token_bytes
        self._tokenizer = tokenizer
        self._renew()

    def _renew(self) -> None:
        self.sequences = self._new_sequences()
        self._unfinished = len(self.sequences)

    def _new_sequences(self) -> list[GeneratedSequence]:
        sampling, sequences, form = self.claim.request.sampling, [], self._form
        is_plain = form.format is None
        for index in range(sampling.n if sampling.beam_width is not None else sampling.width):
            text = TextStream(
                self._tokenizer,
                self.prompt,
                stop=() if form.is_prescribed else sampling.stop,
                include_stop=sampling.include_stop_str_in_output,
                skip_special_tokens=sampling.skip_special_tokens and is_plain,
                hidden=form.hidden if sampling.skip_special_tokens and not is_plain else frozenset(),
                min_tokens=sampling.min_tokens,
                parser=form.parser(),
            )
            budget = form.budget(sampling.thinking_token_budget)
            marks = form.call_marks() if self.claim.trace else None  # only spans tell of them
            parts: dict[str, Any] = {"format": form.format, "budget": budget, "calls": marks}
            sequences.append(GeneratedSequence(index, text, request_id=self.request_id, **parts))
        return sequences

    # What goes to the engine

    @property
    def open_sequences(self) -> int:
        """Sequences of the engine's batch that this job is."""
        sampling = self.claim.request.sampling
        return sampling.width if self._unfinished and sampling.beam_width is not None else self._unfinished

    def blocks(self, size: int, most: int) -> int:
        """Blocks of the engine's memory that it takes with all that it has, of `size` tokens. Each of its sequences
        takes `most` at most."""
        prompt, outputs = len(self.prompt), [len(s.ids) for s in self.sequences if s.finish_reason is None]
        if self.claim.request.sampling.beam_width is not None:
            outputs = [self._searched] * self.open_sequences
        if len(outputs) < 2:
            return min(-(-(prompt + sum(outputs)) // size), most)
        return min(prompt // size, most) + sum(min(-(-(prompt % size + output) // size), most) for output in outputs)

    @property
    def may_move(self) -> bool:
        """True if another worker can go on where this one is: nothing that it has would have to be made again."""
        return not self._held_back

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.claim.request.sampling.prompt_logprobs is not None and self._prompt_logprobs is None

    @property
    def is_generated(self) -> bool:
        """Nothing is left for the engine to do."""
        done = self.open_sequences == 0 or (self.sequences and self.claim.request.sampling.max_tokens == 0)
        return bool(done) and not self.wants_prompt_logprobs

    @property
    def called_at(self) -> float | None:
        """The time at which its answer began to call tools, by the monotonic clock: in what this worker saw of it."""
        seen = (sequence.calls.seen_at for sequence in self.sequences if sequence.calls is not None)
        return min((at for at in seen if at is not None), default=None)

    def restore(self, chunks: Iterable[Chunk]) -> None:
        """Continue after `chunks`, the stream as earlier owners left it. Raises MalformedMessage."""
        chunks = list(chunks)
        if (found := sum(len(chunk.token_ids) for chunk in chunks)) != self.claim.offset:
            raise MalformedMessage(f"the stream has {found} of {self.claim.offset} tokens")
        if self._held_back:
            self._earlier = chunks
            if any(chunk.index >= self.claim.request.sampling.n for chunk in self._earlier):
                raise MalformedMessage("the stream has tokens of a sequence that was not asked for")
            self.stored = sum(len(chunk.token_ids) for chunk in self._earlier)
        else:
            self._take_over(chunks)
        self.is_restored = True

    def _take_over(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            if chunk.index >= len(self.sequences):
                raise MalformedMessage(f"the stream has tokens of sequence {chunk.index} of {len(self.sequences)}")
            sequence = self.sequences[chunk.index]
            self._place(sequence, len(sequence.ids), len(chunk.token_ids))
            sequence.restore(chunk)
        self.stored = self._placed
        self._unfinished = sum(sequence.finish_reason is None for sequence in self.sequences)

    def engine_request(self, sampling: EngineSampling, *, deadline: float | None) -> AddRequest:
        """The engine's work: all open sequences, each from its next token."""
        unfinished = [s for s in self.sequences if s.finish_reason is None]
        if not unfinished:  # a takeover that only lacks the prompt's log-probabilities
            sampling.max_tokens, unfinished = 0, self.sequences[:1]
        self._asked = AddRequest(
            id=self.request_id,
            prompt=array("I", self.prompt),
            sequences=[SequenceInput(s.index, list(s.ids) if sampling.max_tokens else []) for s in unfinished],
            sampling=sampling,
            salt=self.claim.tenant.encode(),
            priority=_PRIORITIES[self.claim.priority],
            deadline=deadline,
            grammar=self._grammar if sampling.max_tokens else None,
            # A job that was taken over goes first in its class: its reader may be waiting in mid-stream.
            resumed=self.claim.offset > 0,
            risen=self.rank,
        )
        return self._asked

    def detour(self, index: int) -> AddRequest:
        """The rest of a sequence that got tokens which the engine did not choose, as a request of its own. It goes
        first in its class, like a job that is taken over."""
        assert self._asked is not None
        sequence = self.sequences[index]
        sequence.request_id = f"{self.request_id}~{len(self.engine_ids)}"
        self.engine_ids.append(sequence.request_id)
        rest = [SequenceInput(index, list(sequence.ids))]
        return msgspec.structs.replace(
            self._asked, id=sequence.request_id, sequences=rest, resumed=True, risen=self.rank
        )

    # What comes from the engine

    def started(self, message: RequestStarted) -> None:
        self.preempted_at = None
        if message.id != self.request_id:
            return
        self.is_computed = True
        self.computed_at = self.computed_at or time.monotonic()
        self._cached_tokens = message.cached_tokens
        if message.prompt_logprobs is not None:
            pairs = zip(self.prompt, message.prompt_logprobs, strict=True)
            self._prompt_logprobs = tuple(self._logprob(token, logprob) for token, logprob in pairs)

    def preempted(self) -> None:
        """The engine has taken its memory."""
        self.preempted_at = time.monotonic()

    def promoted(self, message: RequestPromoted) -> None:
        self.rank = min(self.rank, message.priority)

    def progressed(self, message: BeamProgress) -> None:
        self._searched = len(message.tokens)

    def resumed(self, message: RequestResumed) -> None:
        self.preempted_at = None
        self._recomputed_tokens += message.recomputed
        self._restored_tokens += message.restored

    def verified(self, message: DraftsVerified) -> None:
        self._drafted_tokens += message.drafted
        self._accepted_tokens += message.accepted

    def accept(self, output: TokenOutput) -> bool:
        """Take one token. True if its sequence ended here, or takes another way, without the engine knowing: abort it
        there."""
        sequence = self.sequences[output.index]
        if self._ending is not None or sequence.finish_reason is not None or output.id != sequence.request_id:
            return False  # surplus: the engine was a step ahead of a stop string, a cancel or a detour
        logprob = None
        if output.logprob is not None:
            sequence.score += output.logprob.logprob
            if self.claim.request.sampling.logprobs is not None:
                logprob = self._logprob(output.token, output.logprob)
        sequence.add(output.token, logprob, output.finish_reason)
        if sequence.owed:
            self._pay(sequence)
            return True
        if sequence.finish_reason is None:
            return False
        self._unfinished -= 1
        return output.finish_reason is None

    def pay_all(self) -> None:
        """Give every sequence the tokens that it owes before the engine computes anything."""
        for sequence in self.sequences:
            self._pay(sequence)

    def _pay(self, sequence: GeneratedSequence) -> None:
        """As far as there is room."""
        if not sequence.owed:
            return
        while sequence.owed:
            token, is_last = sequence.owed[0], len(sequence.ids) + 1 == self._longest
            certain = TokenLogprob(token, self._token_bytes(token), 0.0)
            wanted = self.claim.request.sampling.logprobs is not None
            sequence.add(token, certain if wanted else None, "length" if is_last else None)
        self._unfinished -= sequence.finish_reason is not None

    def end(self, status: JobStatus, error: JobError | None = None) -> None:
        """End the job here and now: tokens that were never sent are dropped."""
        if self._held_back and self._ending is None:
            self._held_back = False
            if self.prompt:
                self._renew()
                self._take_over(self._earlier)  # what readers may have seen stays part of the result
        self._ending = self._ending or (status, error)

    def text_of(self, tokens: list[int]) -> str:
        """The text of tokens that may yet change."""
        return "" if self._tokenizer is None else str(self._tokenizer.decode(tokens))

    # What goes to the server

    @property
    def is_over(self) -> bool:
        """The last entry may follow what `unsent` returns."""
        return self._ending is not None or self.is_generated

    def unsent(self) -> list[Append]:
        """Everything that the server is not known to hold, in stream order."""
        if self._held_back and self.is_generated:
            self._choose()
        if self._ending is None and not self._held_back:
            for sequence in self.sequences:
                if (count := len(sequence.ids) - sequence.placed) > 0:
                    self._place(sequence, sequence.placed, count)
        several = self.claim.request.sampling.n > 1
        return [
            Append(self.claim.job_id, self.claim.token, start, chunk, several)
            for start, chunk in self._chunks(self.stored, self._placed, MAX_CHUNK_TOKENS)
        ]

    def terminal(self) -> Terminal:
        """The stream's last entry, once `is_over`."""
        usage = Usage(
            prompt_tokens=len(self.prompt),
            completion_tokens=self._placed if self.is_restored else self.claim.offset,
            cached_tokens=self._cached_tokens,
            recomputed_tokens=self._recomputed_tokens,
            restored_tokens=self._restored_tokens,
            drafted_tokens=self._drafted_tokens,
            accepted_tokens=self._accepted_tokens,
        )
        if self._ending is not None:
            status, error = self._ending
            return Terminal(status=status, usage=usage, error=error)
        asked = self._prompt_logprobs is not None
        return Terminal(
            status=JobStatus.COMPLETED,
            usage=usage,
            prompt_logprobs=self._prompt_logprobs,
            prompt_token_ids=tuple(self.prompt) if asked else None,
        )

    @property
    def is_cut(self) -> bool:
        """True if a limit of tokens has ended a sequence."""
        is_empty = self.claim.request.sampling.max_tokens == 0
        return is_empty or any(sequence.finish_reason == "length" for sequence in self.sequences)

    def result_chunks(self) -> list[Chunk]:
        """All that the stream holds, runs of one sequence merged. A job that asked for no tokens says so here."""
        if self._ending is None and self.claim.request.sampling.max_tokens == 0:
            return [Chunk(index=sequence.index, finish_reason="length") for sequence in self.sequences]
        return [chunk for _, chunk in self._chunks(0, self._placed, max(1, self._placed))]

    def _choose(self) -> None:
        """Everything is generated: keep the best, in their order. Beams come in their order."""
        sampling = self.claim.request.sampling
        if sampling.beam_width is None:
            self.sequences.sort(key=lambda s: s.score / max(1, len(s.ids)), reverse=True)  # stable: equals by index
        self.sequences = self.sequences[: sampling.n]
        for index, sequence in enumerate(self.sequences):
            sequence.index = index
        self._held_back = False

    def _place(self, sequence: GeneratedSequence, first: int, count: int) -> None:
        last = self._runs[-1] if self._runs else None
        if last is not None and last[1] == sequence.index:
            self._runs[-1] = (last[0], last[1], last[2], last[3] + count)
        else:
            self._runs.append((self._placed, sequence.index, first, count))
        sequence.placed += count
        self._placed += count

    def _chunks(self, begin: int, end: int, longest: int) -> list[tuple[int, Chunk]]:
        """The tokens at offsets `begin` to `end` (excluded) as chunks of at most `longest`, each with its offset."""
        position = len(self._runs)
        while position and self._runs[position - 1][0] + self._runs[position - 1][3] > begin:
            position -= 1
        chunks = []
        for offset, index, first, count in self._runs[position:]:
            start, stop = max(begin, offset), min(end, offset + count)
            for at in range(start, stop, longest):
                until = min(stop, at + longest)
                chunks.append((at, self.sequences[index].chunk(first + at - offset, first + until - offset)))
        return chunks

    def _logprob(self, token: int, logprob: Logprob | None) -> TokenLogprob:
        if logprob is None:
            return TokenLogprob(token, self._token_bytes(token), None)
        top = tuple(TopLogprob(other, self._token_bytes(other), value) for other, value in logprob.top)
        return TokenLogprob(token, self._token_bytes(token), logprob.logprob, top)
