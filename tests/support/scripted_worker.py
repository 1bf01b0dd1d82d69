"""A worker without a model: speaks the real protocol through `Cell`, and says what the test expects it to say.

Token i of sequence s is the text ` s.i` with id `1000 * s + i`. A text prompt is tokenised into its characters.
"""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar, Self

from octavo.queue import wire
from octavo.queue.calls import run
from octavo.queue.connection import connect
from octavo.queue.keys import Keys
from octavo.queue.protocol import Append, Cell, Claim, HeartbeatReply
from octavo.terms.messages import (
    Chunk,
    JobError,
    JobStatus,
    Progress,
    Terminal,
    TokenizerAnswer,
    TokenizerQuestion,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from octavo.terms.models import JobRequest
from octavo.terms.workers import ModelCard, PinOutcome, WorkerInfo, WorkerMemory

MODEL = "toy"
CONTEXT = 256
CALLS = [{"script": "claim", "outcome": "ok", "count": 4, "seconds": 0.5}]
STATS = {
    "free_blocks": 90,
    "used_blocks": 7,
    "cached_blocks": 3,
    "running": 2,
    "waiting": 1,
    "generated_tokens": 11,
    "script_calls": CALLS,
}
LEASE_MS = 5000
MEMORY = WorkerMemory(
    worker="scripted",
    model=MODEL,
    at=1.0,
    block_size=16,
    kv_dtype="bfloat16",
    blocks={"total": 8, "free": 3, "used": 3, "cached": 1, "quarantined": 1, "shared": 1, "pinned": 1},
    host={"total": 2, "used": 1, "free": 1},
    sharing=((3, 1),),
    cells="uscpq...",
    cell_references=(1, 3, 0, 1, 0, 0, 0, 0),
    host_cells="u.",
    tokens={"prompt": 1000, "cached": 250, "recomputed": 40, "restored": 120},
    preemptions={"swapped_out": 5, "recompute_cached": 2, "recompute_host_full": 0},
)


def text_of(sequence: int, position: int) -> str:
    return f" {sequence}.{position}"


def whole_text(tokens: int, sequence: int = 0) -> str:
    return "".join(text_of(sequence, i) for i in range(tokens))


def prompt_tokens(request: JobRequest) -> list[bytes]:
    if isinstance(request.prompt, tuple):
        return [b"<%d>" % token for token in request.prompt]
    texts = [request.prompt] if request.prompt is not None else [turn.text for turn in request.messages or ()]
    return [character.encode() for text in texts for character in text]


def tokenizer_answer(question: TokenizerQuestion) -> TokenizerAnswer:
    """Ids are positions in the alphabet of Unicode."""
    if question.token_ids is not None:
        return TokenizerAnswer(text="".join(map(chr, question.token_ids)))
    texts = [token.decode() for token in prompt_tokens(wire.decode_request(question.request or b""))]
    if "?" in texts:
        return TokenizerAnswer(error=JobError("invalid_messages", "a template asks no questions", "messages"))
    return TokenizerAnswer(tuple(map(ord, texts)), tuple(texts))


class ScriptedWorker:
    """Serves `toy`. `hold_after` tokens a sequence it waits for `go`; `pace` is the pause between tokens, seconds."""

    memory = MEMORY
    pins: ClassVar[dict[str, PinOutcome]] = {}

    def __init__(self, url: str, *, hold_after: int | None = None, pace: float = 0.0) -> None:
        self.go = asyncio.Event()
        self.seen: list[JobRequest] = []
        self.tenants: list[str] = []
        self.hold_after = hold_after
        self._pace = pace
        self._redis = connect(url)
        self._cell = Cell()
        self._owned: dict[str, str] = {}
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        card = ModelCard(name=MODEL, max_model_len=CONTEXT, vocab_size=5000, has_tokenizer=True, created_at=time.time())
        await run(self._redis, self._cell.register_model(card))
        await self._beat()
        self._tasks = [asyncio.create_task(task) for task in (self._claim(), self._beats(), self._answer())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._redis.aclose()

    async def tell_progress(self, job_id: str, progress: Progress) -> bool:
        """Reports progress, as the owner of a beam search does now and then. False while it is not ours."""
        token = self._owned.get(job_id, "")
        return await run(self._redis, self._cell.progress(job_id, token, progress))

    async def expire_stream(self, job_id: str) -> None:
        """Removes the stream, as happens an hour after a job's end."""
        await self._redis.delete(Keys().stream(job_id))

    async def _beats(self) -> None:
        while not self._stopped:
            await asyncio.sleep(1.0)
            await self._beat()

    async def _beat(self) -> HeartbeatReply:
        info = WorkerInfo(
            id="scripted", model=MODEL, host="here", pid=1, started_at=time.time(), stats=STATS, pins=self.pins
        )
        call = self._cell.heartbeat(
            "scripted", list(self._owned.items()), lease_ms=LEASE_MS, info=wire.encode_worker(info)
        )
        return await run(self._redis, call)

    async def _answer(self) -> None:
        inbox, questions = Keys().inbox("scripted"), Keys().questions(MODEL)
        while not self._stopped:
            asked = await self._redis.blpop([inbox, questions], timeout=1)
            if asked is None:
                continue
            if asked[0] == inbox.encode():
                await self._redis.rpush(Keys().answer(asked[1].decode()), wire.encode_memory(self.memory))
            else:
                question = wire.decode_question(asked[1])
                answer = wire.encode_answer(tokenizer_answer(question))
                await self._redis.rpush(Keys().answer(question.answer_id), answer)

    async def _claim(self) -> None:
        while not self._stopped:  # a cancellation may get lost inside of redis-py
            call = self._cell.claim(
                MODEL, "scripted", max_jobs=64, max_tokens=1 << 20, lease_ms=LEASE_MS, idle=not self._owned
            )
            claims = await run(self._redis, call)
            for claim in claims.jobs:
                self.seen.append(claim.request)
                self.tenants.append(claim.tenant)
                self._owned[claim.job_id] = claim.token
                self._tasks.append(asyncio.create_task(self._generate(claim)))
            if not claims.jobs:
                await self._redis.blpop(Keys().bell(MODEL), timeout=1)

    async def _generate(self, claim: Claim) -> None:
        request = claim.request
        prompt = prompt_tokens(request)
        chunks: list[Chunk] = []
        status = JobStatus.COMPLETED
        error = self._refusal(request, len(prompt))
        if error is not None:
            status = JobStatus.FAILED
        else:
            status = await self._tokens(claim, chunks)
        terminal = Terminal(
            status=status,
            usage=Usage(
                prompt_tokens=len(prompt),
                completion_tokens=sum(len(chunk.token_ids) for chunk in chunks),
                cached_tokens=1,
            ),
            error=error,
            prompt_logprobs=self._prompt_logprobs(request, prompt),
        )
        result = wire.encode_result(terminal, chunks)
        is_cut = any(chunk.finish_reason == "length" for chunk in chunks)
        await run(self._redis, self._cell.finish(claim.job_id, claim.token, terminal, result, is_cut=is_cut))
        self._owned.pop(claim.job_id, None)

    def _refusal(self, request: JobRequest, prompt: int) -> JobError | None:
        if prompt <= CONTEXT:
            return None
        param = "prompt" if request.messages is None else "messages"
        message = f"the prompt has {prompt} tokens, the context {CONTEXT}: shorten it"
        return JobError(code="context_length_exceeded", message=message, param=param)

    async def _tokens(self, claim: Claim, chunks: list[Chunk]) -> JobStatus:
        sampling = claim.request.sampling
        total = 16 if sampling.max_tokens is None else sampling.max_tokens
        offset = 0
        for position in range(total):
            if position == self.hold_after:
                await self._waiting(claim)
            if self._pace:
                await asyncio.sleep(self._pace)
            for sequence in range(sampling.n):
                chunk = self._chunk(claim.request, sequence, position, total)
                call = self._cell.append([Append(claim.job_id, claim.token, offset, chunk)])
                (reply,) = await run(self._redis, call)
                if reply.state == "fenced":
                    return JobStatus.FAILED
                chunks.append(chunk)
                offset += 1
                if reply.state == "cancel":
                    return JobStatus(reply.reason)
        return JobStatus.COMPLETED

    async def _waiting(self, claim: Claim) -> None:
        """Until the test says go, or the job is to stop."""
        while not self.go.is_set():
            if claim.job_id in dict((await self._beat()).stop):
                return
            await asyncio.sleep(0.02)

    def _chunk(self, request: JobRequest, sequence: int, position: int, total: int) -> Chunk:
        text = text_of(sequence, position)
        logprobs = None
        if request.sampling.logprobs is not None:
            logprobs = (_logprob(1000 * sequence + position, text.encode(), request.sampling.logprobs),)
        return Chunk(
            index=sequence,
            token_ids=(1000 * sequence + position,),
            texts=(text,),
            logprobs=logprobs,
            finish_reason="length" if position == total - 1 else None,
        )

    def _prompt_logprobs(self, request: JobRequest, prompt: list[bytes]) -> tuple[TokenLogprob, ...] | None:
        count = request.sampling.prompt_logprobs
        if count is None:
            return None
        first, *rest = prompt
        return (
            TokenLogprob(token_id=0, token=first, logprob=None),
            *(_logprob(i, token, count) for i, token in enumerate(rest, 1)),
        )


def _logprob(token_id: int, token: bytes, count: int) -> TokenLogprob:
    """The chosen token was the second best; half a character is the best."""
    best = (
        TopLogprob(token_id=4999, token=b"\xe2\x80", logprob=-0.25),
        TopLogprob(token_id=token_id, token=token, logprob=-1.5),
        *(TopLogprob(token_id=4000 + i, token=b"t%d" % i, logprob=-2.0 - i) for i in range(count)),
    )
    return TokenLogprob(token_id=token_id, token=token, logprob=-1.5, top=best[:count])
