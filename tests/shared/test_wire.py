"""The envelope: what goes in comes out, and nothing that comes in can do harm."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from octavo.queue import wire
from octavo.queue.streams import assemble
from octavo.terms.conversation import Message
from octavo.terms.errors import MalformedMessage
from octavo.terms.messages import Chunk, JobError, JobStatus, Terminal, TokenLogprob, TopLogprob, Usage
from octavo.terms.models import JobRequest
from octavo.terms.sampling import SamplingParams
from octavo.terms.workers import ModelCard, WorkerInfo

DECODERS: list[Callable[[bytes], Any]] = [
    wire.decode_request,
    wire.decode_entry,
    wire.decode_result,
    wire.decode_error,
    wire.decode_metadata,
    wire.decode_usage,
    wire.decode_progress,
    wire.decode_pin,
    wire.decode_memory,
    wire.decode_model,
    wire.decode_worker,
    wire.decode_question,
    wire.decode_answer,
    wire.decode_live,
]

tokens = st.integers(0, (1 << 31) - 1)
texts = st.text(max_size=20)
reals = st.floats(-1e3, 0)
logprobs = st.builds(
    TokenLogprob,
    token_id=tokens,
    token=st.binary(max_size=8),
    logprob=st.none() | reals,
    top=st.lists(st.builds(TopLogprob, token_id=tokens, token=st.binary(max_size=8), logprob=reals), max_size=3).map(
        tuple
    ),
)


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    count = draw(st.integers(0, 6))
    several = {"min_size": count, "max_size": count}
    return Chunk(
        index=draw(st.integers(0, 3)),
        token_ids=tuple(draw(st.lists(tokens, **several))),
        texts=tuple(draw(st.lists(texts, **several))),
        logprobs=draw(st.none() | st.lists(logprobs, **several).map(tuple)),
        finish_reason=draw(st.sampled_from([None, None, "stop", "length"])),
    )


terminals = st.builds(
    Terminal,
    status=st.sampled_from([status for status in JobStatus if status.is_terminal]),
    usage=st.builds(Usage, prompt_tokens=tokens, completion_tokens=tokens, cached_tokens=tokens),
    error=st.none() | st.builds(JobError, code=texts, message=texts, param=st.none() | texts),
    prompt_logprobs=st.none() | st.lists(logprobs, max_size=3).map(tuple),
    prompt_token_ids=st.none() | st.lists(tokens, max_size=5).map(tuple),
)
sampling = st.builds(
    SamplingParams,
    n=st.integers(1, 64),
    max_tokens=st.none() | st.integers(0, 100),
    temperature=st.floats(0, 2),
    logit_bias=st.dictionaries(tokens, st.floats(-100, 100), max_size=4),
    stop=st.lists(st.text(min_size=1, max_size=9), max_size=3),
    seed=st.none() | st.integers(0, (1 << 63) - 1),
)
requests = st.one_of(
    st.builds(
        JobRequest,
        model=st.just("m"),
        prompt=st.text(min_size=1, max_size=50) | st.lists(tokens, min_size=1, max_size=20).map(tuple),
        sampling=sampling,
        priority=st.sampled_from(["high", "normal", "batch"]),
        timeout_s=st.none() | st.floats(0.1, 100),
        metadata=st.dictionaries(texts, texts, max_size=3),
    ),
    st.builds(
        JobRequest,
        model=st.just("m"),
        messages=st.lists(st.builds(Message, role=st.just("user"), content=texts), min_size=1, max_size=3),
    ),
)


@given(requests)
def test_requests_come_back_and_equal_ones_are_equal_bytes(request: JobRequest) -> None:
    data = wire.encode_request(request)
    assert wire.decode_request(data) == request
    assert wire.encode_request(wire.decode_request(data)) == data


@given(chunks())
def test_chunks_come_back(chunk: Chunk) -> None:
    assert wire.decode_entry(wire.encode_chunk(chunk)) == chunk


@given(terminals)
def test_terminals_come_back(terminal: Terminal) -> None:
    assert wire.decode_entry(wire.encode_terminal(terminal)) == terminal


def by_sequence(pieces: list[Chunk]) -> dict[int, list[tuple[Any, ...]]]:
    out: dict[int, list[tuple[Any, ...]]] = {}
    for piece in pieces:
        probabilities = piece.logprobs or (None,) * len(piece.token_ids)
        rows = out.setdefault(piece.index, [])
        rows += zip(piece.token_ids, piece.texts, probabilities, strict=True)
        if piece.finish_reason:
            rows.append((piece.finish_reason,))
    return out


@given(terminals, st.lists(chunks(), max_size=8))
def test_results_keep_every_token_in_order(terminal: Terminal, pieces: list[Chunk]) -> None:
    end, merged = wire.decode_result(wire.encode_result(terminal, pieces))
    assert end == terminal
    assert by_sequence(list(merged)) == by_sequence(pieces)
    assert [c.index for c in merged for _ in c.token_ids] == [c.index for c in pieces for _ in c.token_ids]
    assert len(merged) <= len(pieces)


def test_cards_come_back() -> None:
    card = ModelCard(name="m", max_model_len=9, vocab_size=3, has_tokenizer=True, created_at=1.5)
    worker = WorkerInfo(
        id="w", model="m", host="h", pid=1, started_at=2.5, stats={"running": 1, "step_ms": 1.5, "kv_dtype": "x"}
    )
    error = JobError(code="c", message="m", param="p")
    quantised = card.model_copy(update={"quantization": "int4g128"})
    assert wire.decode_model(wire.encode_model(card)) == card
    assert wire.decode_model(wire.encode_model(quantised)) == quantised
    assert b"quantization" not in wire.encode_model(card)  # version 0.1.0 would refuse the card
    assert wire.decode_worker(wire.encode_worker(worker)) == worker
    assert wire.decode_error(wire.encode_error(error)) == error
    assert wire.decode_metadata(wire.encode_metadata({"a": "b"})) == {"a": "b"}


def only_malformed(data: bytes) -> None:
    for decode in DECODERS:
        with suppress(MalformedMessage):
            decode(data)


@given(st.binary(max_size=200))
def test_random_bytes_are_malformed_or_fine(data: bytes) -> None:
    only_malformed(data)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | texts | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=examples(300))
@given(
    st.sampled_from(["job", "c", "e", "r", "x", "use", "p", "meta", "pin", "memory", "model", "worker"]),
    st.lists(anything, max_size=6),
)
def test_well_formed_nonsense_is_malformed_or_fine(kind: str, fields: list[Any]) -> None:
    only_malformed(msgpack.packb([wire.VERSION, kind, *fields]))


@settings(max_examples=examples(300))
@given(
    st.sampled_from([wire.encode_chunk, wire.encode_terminal]),
    chunks(),
    terminals,
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_flipped_bytes_are_malformed_or_fine(encode: Any, chunk: Chunk, end: Terminal, flips: Any) -> None:
    data = bytearray(encode(chunk if encode is wire.encode_chunk else end))
    for place, value in flips:
        data[place % len(data)] = value
    only_malformed(bytes(data))
    only_malformed(bytes(data[: len(data) // 2]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb([]),
        msgpack.packb({"version": 1}),
        msgpack.packb([2, "c", 0, [], []]),
        msgpack.packb([True, "c", 0, [], []]),
        msgpack.packb([1, "c", 0, [1], []]),
        msgpack.packb([1, "c", 0, ["1"], ["a"]]),
        msgpack.packb([1, "c", 0, [True], ["a"]]),
        msgpack.packb([1, "c", 0, [1], ["a"], None, "bored"]),
        msgpack.packb([1, "c", 0, [1], ["a"], None, None, "more"]),
        msgpack.packb([1, "c", 0, [1], [msgpack.Timestamp(1)]]),
        msgpack.packb([1, "c", 0, [1], [msgpack.ExtType(5, b"")]]),
        b"\x95\x01\xa1c\x00\x91\x01\x91\xa1\xff",  # invalid UTF-8
        b"\x93\x01\xa3job\x81\x01\x02",  # a map key that is no string
        msgpack.packb([1, "job", {"model": "m", "prompt": "x", "surprise": 1}]),
        msgpack.packb([1, "job", {"model": "m"}]),
        msgpack.packb([1, "job", {"model": "m", "prompt": "x" * (wire.MAX_STRING_BYTES + 1)}]),
        b"\xdd\xff\xff\xff\xff",  # an array that claims four billion items
        b"\xdb\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x81\xa1a" * 100_000,
        b"\x95\x01\xa1c\x00\x90" + b"\x91" * 20 + b"\x00",
    ],
)
def test_bad_messages_are_malformed_for_every_reader(data: bytes) -> None:
    for decode in DECODERS[:-1]:
        with pytest.raises(MalformedMessage):
            decode(data)


def test_bombs_cost_neither_time_nor_memory() -> None:
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    for bomb in (b"\x91" * (8 << 20), b"\xdd\x7f\xff\xff\xff" * 1000, b"\xc7\xff\x01" + b"x" * 255, bytes(65 << 20)):
        only_malformed(bomb)
    assert time.process_time() - begun < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.parametrize("prompt", ["secret", ["secret"]])
def test_an_error_quotes_no_prompt(prompt: object) -> None:
    messages = [{"role": "x", "content": "secret"}]
    data = msgpack.packb([1, "job", {"model": "m", "prompt": prompt, "messages": messages}])
    with pytest.raises(MalformedMessage) as caught:
        wire.decode_request(data)
    assert "secret" not in str(caught.value)


def test_sequences_of_a_result_are_in_their_order_whichever_came_first() -> None:
    chunks = [Chunk(index=1, token_ids=(5,), texts=("b",)), Chunk(token_ids=(4,), texts=("a",))]
    result = assemble("j", "m", Terminal(status=JobStatus.COMPLETED), chunks)
    assert [(sequence.index, sequence.text) for sequence in result.sequences] == [(0, "a"), (1, "b")]


def test_the_order_of_biases_changes_no_byte() -> None:
    requests = [
        JobRequest(model="m", prompt="p", sampling=SamplingParams(logit_bias=biases))
        for biases in ({5: 1.0, 3: 2.0}, {3: 2.0, 5: 1.0})
    ]
    assert wire.encode_request(requests[0]) == wire.encode_request(requests[1])


def test_what_is_nested_too_deeply_is_malformed_wherever_it_stands() -> None:
    nested: Any = []
    for _ in range(20):
        nested = [nested]
    fields = WorkerInfo(id="w", model="m", host="h", pid=1, started_at=1.0).model_dump()
    frame = msgpack.packb([wire.VERSION, "worker", {**fields, "of_a_later_version": nested}])
    with pytest.raises(MalformedMessage, match="nested"):
        wire.decode_worker(frame)
