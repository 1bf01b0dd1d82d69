"""Lines of batch files mean what the endpoint that they name would make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.dialects.openai.answers import CompletedJob
from octavo.service.batches.files import BatchFileError, kept_answers
from octavo.service.batches.lines import BatchLine, completed, parse_line
from octavo.service.batches.target import open_target
from octavo.terms.messages import JobStatus, Terminal
from octavo.terms.structured import Grammar

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = {"role": "user", "content": "hello"}


def line(url: str, **body: Any) -> BatchLine:
    prompt = {"messages": [HELLO]} if url == CHAT else {"prompt": "hello"}
    return parse_line(json.dumps({"url": url, "body": {**prompt, **body}}), 1, "demo")


def test_limits_are_those_of_the_endpoints() -> None:
    found = [line(url).requests for url in (CHAT, TEXT)]
    assert [request.sampling.max_tokens for (request,) in found] == [None, 16]
    (plain,) = parse_line('{"prompt": "hello"}', 1, "demo").requests
    assert plain.sampling.max_tokens == 256


def test_seeds_may_be_negative() -> None:
    (request,) = line(TEXT, seed=-1).requests
    assert request.sampling.seed == (1 << 63) - 1


def test_an_answer_is_part_of_the_next_request() -> None:
    answer = {"role": "assistant", "content": [{"type": "text", "text": "ha"}, {"type": "text", "text": "il"}]}
    (request,) = line(CHAT, messages=[HELLO, {**answer, "refusal": None, "tool_calls": None}, HELLO]).requests
    assert request.messages is not None
    assert [message.content for message in request.messages] == ["hello", "hail", "hello"]


def test_a_line_may_ask_for_a_form() -> None:
    for url in (CHAT, TEXT):
        (request,) = line(url, response_format={"type": "json_object"}).requests
        assert request.grammar == Grammar("json_object")
    error = line(CHAT, response_format={"type": "yaml"}).error
    assert error is not None
    assert error.param == "response_format.type"
    (request,) = parse_line('{"prompt": "x", "choice": ["b", "a"]}', 1, "demo").requests
    assert request.grammar == Grammar("choice", '["b", "a"]')


@pytest.mark.parametrize("part", [{"type": "image_url", "image_url": {"url": "x"}}, "text", None])
def test_what_is_no_text_is_refused_and_not_left_out(part: object) -> None:
    found = line(CHAT, messages=[{"role": "user", "content": [{"type": "text", "text": "see:"}, part]}])
    assert found.requests == ()
    assert found.error is not None
    assert found.error.param is not None
    assert found.error.param.startswith("messages.0.content")


@pytest.mark.parametrize("text", ['{"prompt": "q\\ud800"}', '{"custom_id": "\\ud800", "prompt": "x"}', "[" * 100_000])
def test_no_line_ends_the_others(text: str) -> None:
    assert parse_line(text, 1, "demo").error is not None


def test_a_line_ends_at_its_end_alone(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    answers = [
        {"id": f"batch_req_{name}", "custom_id": name, "error": None, "response": {"body": f"one{end}two"}}
        for name, end in (("a", "\u2028"), ("b", "\x85"))
    ]
    target.write_text("".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers), encoding="utf-8")
    done, text = kept_answers(target, [])  # of a file as an earlier version wrote it
    assert done == {"batch_req_a", "batch_req_b"}
    assert [json.loads(line) for line in text.splitlines()] == answers


@pytest.mark.parametrize(
    "text", ["notes\n", '{"prompt": "x"}\n', '{"custom_id": "a", "url": "/v1/completions"}\n{"id": "b']
)
def test_a_file_that_holds_no_answers_is_left_alone(tmp_path: Path, text: str) -> None:
    target = tmp_path / "in.jsonl"
    target.write_text(text)
    with pytest.raises(BatchFileError, match="something else"), open_target(target, []):
        pass
    assert target.read_text() == text


def test_lines_are_of_the_class_batch_unless_they_say_otherwise() -> None:
    def classes(text: str) -> list[str]:
        return [parse_line(text, 1, "demo", *given).requests[0].priority for given in ((), ("normal",))]

    body = {"url": TEXT, "body": {"prompt": "hello"}}
    assert classes('{"prompt": "hello"}') == ["batch", "normal"]
    assert classes(json.dumps(body)) == ["batch", "normal"]
    body["body"]["priority"] = None  # type: ignore[index]
    assert classes(json.dumps(body)) == ["batch", "normal"]
    body["body"]["priority"] = "high"  # type: ignore[index]
    assert classes(json.dumps(body)) == ["high", "high"]
    assert classes('{"prompt": "hello", "priority": "high"}') == ["high", "high"]


def test_unknown_fields_of_a_body_are_named_or_refused():
    body = {"prompt": "x", "invented": 1, "user": "u"}
    text = json.dumps({"url": "/v1/completions", "body": body})
    line = parse_line(text, 1, "demo")
    assert (line.error, line.ignored.header()) == (None, "invented, user")
    end = Terminal(status=JobStatus.COMPLETED)
    assert completed(line, [CompletedJob("j", [], end)])["response"]["ignored"] == "invented, user"
    strict = parse_line(text, 1, "demo", strict=True)
    assert strict.error is not None
    assert strict.error.param == "invented"
    plain = parse_line('{"prompt": "x", "invented": 1}', 1, "demo")
    assert plain.error is not None
