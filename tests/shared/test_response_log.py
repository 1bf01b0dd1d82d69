"""The events of a response are a function of its log, at any reader, from whatever point."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from response_oracles import check_event, check_response
from tiers import examples
from tool_answers import ANSWERS, TOOLS, format_of

from octavo.dialects.openai.responses.events import ResponseLog
from octavo.dialects.openai.responses.record import Record, job_of, job_of_item, response_id
from octavo.dialects.openai.responses.requests import ResponseRequest
from octavo.queue import wire
from octavo.queue.streams import events_of_result
from octavo.terms.messages import AnswerFormat, Chunk, JobError, JobStatus, Terminal, TokenLogprob, Usage

JOB = "g00_01ARZ3NDEKTSV4RRFFQ69G5FAV"
FINISHED_AT = 1_800_000_007.5


def record_of(**fields: Any) -> Record:
    body = ResponseRequest(model="toy", input="hello", **fields)
    return body.record([], 1_800_000_000)


def tokens(
    texts: list[str], *, finish: str | None = "stop", logprobs: bool = False, form: AnswerFormat | None = None
) -> Chunk:
    ids = tuple(range(len(texts)))
    found = tuple(TokenLogprob(i, text.encode(), -0.5) for i, text in enumerate(texts))
    return Chunk(
        token_ids=ids, texts=tuple(texts), finish_reason=finish, logprobs=found if logprobs else None, format=form
    )


def cut(whole: Chunk, cuts: list[int]) -> list[Chunk]:
    """The same tokens in chunks of another grouping."""
    edges = sorted({0, len(whole.token_ids), *(point % (len(whole.token_ids) + 1) for point in cuts)})
    return [
        Chunk(
            token_ids=whole.token_ids[a:b],
            texts=whole.texts[a:b],
            logprobs=None if whole.logprobs is None else whole.logprobs[a:b],
            finish_reason=whole.finish_reason if b == len(whole.token_ids) else None,
            format=whole.format if a == 0 else None,
        )
        for a, b in pairwise(edges)
    ]


def told(record: Record, chunks: list[Chunk], end: Terminal, after: int = -1) -> list[dict[str, Any]]:
    log = ResponseLog(record, JOB, after)
    events = log.begin()
    for chunk in chunks:
        events += log.add(chunk)
    return events + log.end(end, FINISHED_AT)


ENDS = [
    Terminal(status=JobStatus.COMPLETED, usage=Usage(3, 4, 1)),
    Terminal(status=JobStatus.CANCELLED, usage=Usage(3, 4)),
    Terminal(status=JobStatus.EXPIRED, usage=Usage(3, 4), error=JobError("expired", "too late")),
    Terminal(status=JobStatus.FAILED, usage=Usage(3, 4), error=JobError("engine_failed", "it broke")),
    Terminal(status=JobStatus.FAILED),
]
TEXTS = st.lists(st.sampled_from(["", "a", " b", "é", "\n", "</think>", "<tool_call>"]), max_size=12)


@given(
    texts=TEXTS,
    end=st.sampled_from(ENDS),
    finish=st.sampled_from(["stop", "length", None]),
    background=st.booleans(),
    logprobs=st.booleans(),
    one=st.lists(st.integers(0, 12)),
    other=st.lists(st.integers(0, 12)),
    after=st.integers(-1, 30),
)
def test_events_and_numbers_are_the_same_whoever_computes_them_from_any_point(
    texts: list[str],
    end: Terminal,
    finish: str | None,
    background: bool,
    logprobs: bool,
    one: list[int],
    other: list[int],
    after: int,
) -> None:
    record = record_of(background=background, top_logprobs=0 if logprobs else None)
    whole = tokens(texts, finish=finish, logprobs=logprobs)
    events = told(record, cut(whole, one), end)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        check_event(event)

    elsewhere = Record.decode(record.encode())
    assert told(elsewhere, cut(whole, other), end) == events
    assert told(elsewhere, cut(whole, other), end, after) == events[after + 1 :]
    kept = wire.decode_result(wire.encode_result(end, cut(whole, other)))
    rebuilt = [event.chunk for event in events_of_result(*kept) if event.chunk is not None]
    assert told(elsewhere, rebuilt, end) == events


@pytest.mark.parametrize("name", ANSWERS)
@settings(max_examples=examples(20))
@given(data=st.data())
def test_so_it_is_with_thoughts_and_calls_of_every_family(name: str, data: st.DataObject) -> None:
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    record = record_of(background=data.draw(st.booleans()), tools=tools)
    text, end = ANSWERS[name].text, data.draw(st.sampled_from(ENDS))
    places = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=20)))
    pieces = [text[a:b] for a, b in pairwise([0, *places, len(text)])]
    finish = "stop" if end.status is JobStatus.COMPLETED else None
    whole = tokens(pieces, finish=finish, form=format_of(name))
    events = told(record, cut(whole, data.draw(st.lists(st.integers(0, 20)))), end)
    for event in events:
        check_event(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    again = told(
        record, cut(whole, data.draw(st.lists(st.integers(0, 20)))), end, after := data.draw(st.integers(0, 50))
    )
    assert again == events[after + 1 :]
    output = events[-1]["response"]["output"]
    said = "".join(item["content"][0]["text"] for item in output if item["type"] == "message")
    thought = "".join(item["content"][0]["text"] for item in output if item["type"] == "reasoning")
    calls = [(item["name"], json.loads(item["arguments"])) for item in output if item["type"] == "function_call"]
    assert (said.strip() or None, thought.strip() or None) == (ANSWERS[name].content, ANSWERS[name].reasoning)
    assert calls == [(tool, json.loads(arguments)) for tool, arguments in ANSWERS[name].calls]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == output
    counted = events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert bool(counted) == bool(thought)


@given(texts=TEXTS, end=st.sampled_from(ENDS), finish=st.sampled_from(["stop", "length"]))
def test_deltas_add_up_to_what_the_last_event_says(texts: list[str], end: Terminal, finish: str) -> None:
    events = told(record_of(), [tokens(texts, finish=finish)], end)
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == [text for text in texts if text]
    final = events[-1]["response"]
    text = "".join(part["text"] for item in final["output"] for part in item["content"])
    assert text == "".join(texts)
    done = [event["text"] for event in events if event["type"] == "response.output_text.done"]
    assert done == [text] * bool(final["output"])
    whole = end.status is JobStatus.COMPLETED and finish == "stop"
    assert {item["status"] for item in final["output"]} <= {"completed" if whole else "incomplete"}
    assert bool(final["output"]) == bool(deltas or whole)


@pytest.mark.parametrize(
    ("end", "finish", "status", "name"),
    [
        (ENDS[0], "stop", "completed", "completed"),
        (ENDS[0], "length", "incomplete", "incomplete"),
        (ENDS[1], None, "cancelled", "incomplete"),
        (ENDS[2], None, "failed", "failed"),
        (ENDS[3], None, "failed", "failed"),
        (ENDS[4], None, "failed", "failed"),
    ],
)
def test_how_a_job_ended_is_how_its_response_ended(end: Terminal, finish: str | None, status: str, name: str) -> None:
    last = told(record_of(background=True), [tokens(["a"], finish=finish)], end)[-1]
    assert (last["type"], last["response"]["status"]) == (f"response.{name}", status)
    response = last["response"]
    assert (response["error"] is None) == (status != "failed")
    assert (response["incomplete_details"] is None) == (status != "incomplete")
    assert response["completed_at"] == (int(FINISHED_AT) if status == "completed" else None)
    assert response["usage"]["total_tokens"] == end.usage.prompt_tokens + end.usage.completion_tokens


def test_the_events_of_a_message_in_their_order() -> None:
    events = told(record_of(background=True), [tokens(["Hel", "", "lo"])], ENDS[0])
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "queued",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert {event["item_id"] for event in events if "item_id" in event} == {f"msg_{JOB}_0"}
    assert [event["response"]["status"] for event in events if "response" in event] == [
        "queued",
        "queued",
        "in_progress",
        "completed",
    ]


def test_log_probabilities_come_with_the_text_of_their_tokens() -> None:
    events = told(record_of(top_logprobs=0), [tokens(["", "é", "!"], logprobs=True)], ENDS[0])
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [[item["token"] for item in event["logprobs"]] for event in deltas] == [["", "é"], ["!"]]
    (done,) = [event for event in events if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == [item for event in deltas for item in event["logprobs"]]


def test_a_response_and_its_items_name_their_job() -> None:
    assert job_of(response_id(JOB)) == JOB
    assert job_of_item(f"msg_{JOB}_12") == JOB
    assert [job_of(name) for name in ("", "resp", JOB)] == [""] * 3
    assert [job_of_item(name) for name in ("", "msg_1f", f"msg_{JOB}", f"msg_{JOB}_x")] == [""] * 4
    log = ResponseLog(record_of(), JOB)
    check_response(log.response("in_progress"))


@pytest.mark.parametrize(
    ("texts", "opened", "count"),
    [
        (["<think>", "h", "m", "</think>", "Yes"], False, 3),
        (["h", "m", "</", "think>", "Yes"], True, 4),
        (["Yes", "", "!"], False, 0),
    ],
)
def test_tokens_of_a_thought_are_those_up_to_its_end(texts: list[str], opened: bool, count: int) -> None:
    log = ResponseLog(ResponseRequest(model="m", input="?").record([], 1), "g00_" + 26 * "0")
    log.begin()
    log.add(Chunk(0, tuple(range(len(texts))), tuple(texts), None, "stop", AnswerFormat("none", "think", opened)))
    log.end(Terminal(JobStatus.COMPLETED), 2.0)
    assert log.final["usage"]["output_tokens_details"]["reasoning_tokens"] == count
