"""A call whose arguments are no JSON is told as what it is, in every dialect; a cut call is no call that was made."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.dialects.answer_parser import AnswerParser
from octavo.dialects.anthropic.arguments import INVALID, ArgumentPieces
from octavo.dialects.anthropic.events import MessageEvents, whole_message
from octavo.dialects.openai.answers import CompletedJob, answer
from octavo.dialects.openai.requests import ChatCompletionRequest
from octavo.dialects.openai.responses.events import ResponseLog
from octavo.dialects.openai.responses.requests import ResponseRequest
from octavo.dialects.ui.parts import UiParts
from octavo.terms.messages import AnswerFormat, Chunk, FinishReason, JobStatus, Terminal, Usage
from octavo.terms.models import Event
from octavo.terms.tools import as_object, as_plain_object

DEEP = '{"a": ' * 70 + "1" + "}" * 70
NO_JSON = [
    '{"s": "x", }',
    '{"n": 1e999}',
    '{"n": [1, -Infinity]}',
    '{"n": NaN}',
    '{"s": "\\ud800"}',
    '{"s": "\\udc00\\ud800"}',
    '{"\\ud83d": 1}',
    "{'s': 'x'}",
    '{"s": True}',
    '{"s": "a\nb"}',
    '{"s": "\\x"}',
    '{"a": 1 "b": 2}',
    '{"a": {"b": [1, {}]}, 2}',
    '{"a": [1, 2}',
    '{"a": 01}',
    '{"a": 1}{}',
    '{"a": "b"',
    '{"a": "b\\',
    '{"a": [nul',
    '{"a"',
    "{",
    "[1]",
    '"x"',
    DEEP,
]
objects = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


def told(text: str, cuts: set[int] | None = None, *, cut: bool = False) -> str:
    pieces = ArgumentPieces()
    bounds = sorted({0, len(text), *(range(len(text)) if cuts is None else cuts)})
    return "".join(pieces.add(text[a:b]) for a, b in pairwise(bounds)) + pieces.end(cut=cut)


def strictly(text: str) -> Any:
    """As JSON.parse reads it, and as a body in UTF-8 carries it."""
    value = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    return value


@given(value=objects, ascii_only=st.booleans(), indent=st.sampled_from([None, 0, 2]), data=st.data())
def test_arguments_that_are_json_are_told_to_the_letter(
    value: Any, ascii_only: bool, indent: int | None, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert told(text, data.draw(st.sets(st.integers(0, len(text))))) == text
    assert told(text) == text


@given(value=objects, data=st.data())
def test_whatever_is_written_an_object_is_told(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
    at = data.draw(st.integers(0, len(text)))
    spoilt = (
        text[:at] + data.draw(st.sampled_from(["", "}", "]", ",", '"', "\\", "1", "N", "\\ud800"])) + text[at + 1 :]
    )
    whole = told(spoilt, data.draw(st.sets(st.integers(0, len(spoilt)))))
    assert whole == told(spoilt)
    plain = as_plain_object(spoilt)
    if spoilt.strip():
        found = strictly(whole)
        assert found == plain if plain is not None else found[INVALID] == spoilt


@pytest.mark.parametrize("text", NO_JSON)
def test_what_is_no_json_is_told_with_its_text(text: str) -> None:
    assert as_plain_object(text) is None
    assert strictly(told(text))[INVALID] == text


def test_values_are_told_as_they_come() -> None:
    pieces = ArgumentPieces()
    parts = [
        '{"path": "a',
        '.py", "text',
        '": "def f(',
        "):\\",
        "n",
        ' 1", "n": 1',
        "2",
        ', "deep": [tr',
        "ue, {",
        "}]}",
    ]
    out = [pieces.add(part) for part in parts]
    assert out == [
        '{"path": "a',
        '.py"',
        ', "text": "def f(',
        "):",
        "\\n",
        ' 1"',
        "",
        ', "n": 12, "deep": [',
        "true, {",
        "}]",
    ]
    assert pieces.end(cut=False) == "}"


@pytest.mark.parametrize(("cut", "expected"), [(False, ""), (True, '{"INVALID_JSON": ""}')])
def test_no_arguments_are_an_empty_object_unless_they_were_cut_off(cut: bool, expected: str) -> None:
    assert told("", cut=cut) == expected


def call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "look", "arguments": {arguments}'


def chunks(text: str, reason: FinishReason) -> list[Chunk]:
    last = len(text) - 1
    form = AnswerFormat("hermes", "none")
    return [
        Chunk(0, (i,), (letter,), None, reason if i == last else None, None if i else form)
        for i, letter in enumerate(text)
    ]


def in_messages(text: str, reason: FinishReason) -> tuple[Any, str]:
    events = MessageEvents("g00_0", "m", AnswerParser("g00_0"))
    found = [event for chunk in chunks(text, reason) for event in events.add(chunk)]
    found += events.end(Usage(1, len(text)))
    strictly(json.dumps(found))
    message = whole_message(found)
    (use,) = [block for block in message["content"] if block["type"] == "tool_use"]
    pieces = [event["delta"].get("partial_json", "") for event in found if event["type"] == "content_block_delta"]
    assert strictly("".join(pieces)) == use["input"], "a stream tells the same"
    return use["input"], message["stop_reason"]


def in_chat(text: str, reason: FinishReason) -> tuple[Any, str]:
    body = ChatCompletionRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "?"}]})
    job = CompletedJob("g00_0", chunks(text, reason), Terminal(JobStatus.COMPLETED))
    (choice,) = strictly(json.dumps(answer(body, [job], 1)))["choices"]
    return choice["message"]["tool_calls"][0]["function"]["arguments"], choice["finish_reason"]


def in_ui(text: str, reason: FinishReason) -> tuple[Any, str]:
    parts = UiParts("g00_0", AnswerParser("g00_0"))
    found = [
        part for i, chunk in enumerate(chunks(text, reason), 1) for part in parts.add(Event(offset=i, chunk=chunk))
    ]
    found += parts.add(Event(offset=len(text), end=Terminal(JobStatus.COMPLETED)))
    strictly(json.dumps(found))
    (given,) = [part for part in found if part["type"].startswith("tool-input-") and "input" in part]
    return (given["type"], given["input"]), found[-1]["finishReason"]


@pytest.mark.parametrize("text", [text for text in NO_JSON if text.endswith("}") and text != '{"a": 1}{}'])
def test_each_dialect_tells_what_is_no_json_in_its_own_form(text: str) -> None:
    whole = call(text) + "}\n</tool_call>"
    written, reason = in_chat(whole, "stop")
    assert reason == "tool_calls"
    assert text.startswith(written), "a bracket that closes another one ends the arguments"
    assert in_ui(whole, "stop") == (("tool-input-error", written), "tool-calls")
    found, reason = in_messages(whole, "stop")
    assert (found[INVALID], reason) == (written, "tool_use")


@pytest.mark.parametrize("arguments", ["{", '{"city": "Bo', '{"city": "Bonn"'])
def test_a_cut_call_is_length_everywhere(arguments: str) -> None:
    whole = call(arguments)
    assert in_chat(whole, "length") == (arguments, "length")
    assert in_ui(whole, "length") == (("tool-input-error", arguments), "length")
    found, reason = in_messages(whole, "length")
    assert (found[INVALID], reason) == (arguments, "max_tokens")


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_cut_call_is_an_incomplete_item_of_an_incomplete_response(reason: FinishReason) -> None:
    text = call('{"city": "Bo') if reason == "length" else call('{"city": "Bonn"}') + "}\n</tool_call>"
    record = ResponseRequest.model_validate({"model": "m", "input": "?"}).record([], 1)
    log = ResponseLog(record, "g00_" + 26 * "0")
    log.begin()
    for chunk in chunks(text, reason):
        log.add(chunk)
    log.end(Terminal(JobStatus.COMPLETED), 2.0)
    (item,) = log.final["output"]
    status = "incomplete" if reason == "length" else "completed"
    assert (item["type"], item["status"], log.final["status"]) == ("function_call", status, status)
    assert text.find(item["arguments"]) > 0


def test_a_message_that_only_calls_has_no_content() -> None:
    body = ChatCompletionRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "?"}]})
    for before, content in (("", None), ("I look. ", "I look.")):
        job = CompletedJob("g00_0", chunks(before + call("{}}"), "stop"), Terminal(JobStatus.COMPLETED))
        (choice,) = answer(body, [job], 1)["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (content, "tool_calls")


def test_a_call_that_is_whole_before_its_answer_is_cut_keeps_its_input() -> None:
    whole = call('{"city": "Bonn"}')
    assert in_messages(whole, "length") == ({"city": "Bonn"}, "max_tokens")
    assert in_ui(whole, "length") == (("tool-input-available", {"city": "Bonn"}), "length")


@pytest.mark.parametrize(
    "text", ['{"name": "lo\\ud800ok", "arguments": {}}', '{"name": "x", "arguments": "{\\ud800}"}']
)
def test_half_a_surrogate_pair_gets_into_no_name_and_no_arguments(text: str) -> None:
    parsed = AnswerParser("g00_0").parse(chunks(f"<tool_call>{text}</tool_call>", "stop"))
    json.dumps([parsed.content, [(made.name, made.arguments) for made in parsed.calls]], ensure_ascii=False).encode()
    assert "\\ud800" in parsed.content + "".join(made.arguments for made in parsed.calls)


def test_an_object_with_half_a_surrogate_pair_is_none_that_a_template_could_print() -> None:
    assert as_object('{"a": "\\ud83d\\ude00"}') == {"a": "😀"}
    assert as_object('{"a": "\\uD83d"}') is None
