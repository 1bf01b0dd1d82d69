"""The structure of a batch file, and the content of its lines: OpenAI's codes, and each fault in its place."""

from __future__ import annotations

import codecs
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.dialects.ignored import Ignored
from octavo.dialects.openai.answers import CompletedJob
from octavo.dialects.openai.batch.answers import is_success, rejected, succeeded, undone
from octavo.dialects.openai.batch.envelope import FileCheck, Lines, open_envelope
from octavo.dialects.openai.batch.requests import line_request
from octavo.terms.batches import MAX_LINE_BYTES, MAX_LINES
from octavo.terms.errors import InvalidRequest, JobFailed, OctavoError, UnknownModel
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


def line(custom_id: Any = "a", *, model: Any = "m", **fields: Any) -> bytes:
    body = {"model": model, "messages": HELLO}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **fields}).encode()


def checked(data: bytes, pieces: int = 7) -> FileCheck:
    check, lines = FileCheck(CHAT), Lines()
    for start in range(0, len(data), pieces):
        for number, _, content in lines.feed(data[start : start + pieces]):
            check.add(number, content)
    for number, _, content in lines.end():
        check.add(number, content)
    check.end()
    return check


def faults(data: bytes) -> list[tuple[str, int | None, str | None]]:
    return [(error.code, error.line, error.param) for error in checked(data).errors]


def test_a_right_file_has_its_lines_and_its_model() -> None:
    check = checked(b"\n".join([line("a"), b"", line("b\u2028\u0000"), b" \t\r", line("c") + b"\r"]))
    assert (check.errors, check.total, check.model) == ([], 3, "m")


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (b"{", ("invalid_json_line", None)),
        (b"[]", ("invalid_json_line", None)),
        (b"\xff", ("invalid_json_line", None)),
        (b"[" * 100_000, ("invalid_json_line", None)),
        (line("a"), ("duplicate_custom_id", "custom_id")),
        (line(7), ("invalid_value", "custom_id")),
        (line(""), ("invalid_value", "custom_id")),
        (line("x" * 513), ("invalid_value", "custom_id")),
        (line("b", url="/v1/completions"), ("url_mismatch", "url")),
        (line("b", method="GET"), ("invalid_value", "method")),
        (line("b", model="other"), ("model_mismatch", "body.model")),
        (line("b", model=None), ("invalid_value", "body.model")),
        (line("b", body={}), ("missing_required_parameter", "body.model")),
        (line("b", body=[]), ("invalid_value", "body")),
        (b'{"custom_id": "b"}', ("missing_required_parameter", "method")),
    ],
)
def test_structure_is_told_with_line_and_param(bad: bytes, fault: tuple[str, str | None]) -> None:
    code, param = fault
    assert faults(line("a") + b"\n\n" + bad + b"\n" + line("z")) == [(code, 3, param)]


def test_the_longest_custom_id_counts_characters() -> None:
    assert faults(line("ü" * 512)) == []


def test_no_more_than_a_hundred_errors_are_told() -> None:
    check = FileCheck(CHAT)
    for number in range(1, 200):
        check.add(number, b"{")
    assert len(check.errors) == 100
    assert check.is_over


def test_an_empty_file_and_one_of_too_many_lines() -> None:
    assert faults(b"\n \n") == [("empty_file", None, None)]
    check = FileCheck(CHAT)
    for number in range(1, MAX_LINES + 2):
        check.add(number, line(str(number)))
    assert [(error.code, error.line) for error in check.errors] == [("too_many_tasks", None)]
    assert check.is_over


def test_a_line_beyond_the_limit_is_no_json_and_the_next_one_is_read() -> None:
    data = b'{"' + b"x" * MAX_LINE_BYTES + b"\n"
    lines = Lines()
    found = [*lines.feed(data), *lines.feed(line("b")), *lines.end()]
    assert [(number, offset) for number, offset, _ in found] == [(1, 0), (2, len(data))]
    check = FileCheck(CHAT)
    check.add(1, found[0][2])
    assert [error.code for error in check.errors] == ["invalid_json_line"]
    assert found[1][2] == line("b")


@given(
    st.lists(st.sampled_from([b"", b"\r", b"ab", b"c\r", b"\xe2\x80\xa8", b"\x85"]), max_size=6),
    st.booleans(),
    st.integers(1, 5),
)
def test_offsets_say_where_lines_lie_however_the_file_is_cut(parts: list[bytes], marked: bool, piece: int) -> None:
    data = (codecs.BOM_UTF8 if marked else b"") + b"\n".join(parts)
    lines = Lines()
    found = [one for start in range(0, len(data), piece) for one in lines.feed(data[start : start + piece])]
    found += lines.end()
    assert [(number, content) for number, _, content in found] == [
        (number, part) for number, part in enumerate(parts, 1) if part.strip()
    ]
    assert all(data[offset : offset + len(content)] == content for _, offset, content in found)


def refusal(body: Any, url: str = CHAT) -> OctavoError:
    with pytest.raises(InvalidRequest) as found:
        line_request(url, json.dumps(body).encode() if not isinstance(body, bytes) else body, {}, Ignored())
    return found.value


def test_content_is_what_the_endpoint_would_say() -> None:
    body = {"model": "m", "messages": HELLO, "temperature": 9}
    assert (refusal(body).code, refusal(body).param) == ("invalid_value", "temperature")
    assert refusal({"model": "m"}).code == "missing_required_parameter"
    assert refusal({"model": "m", "messages": [{"role": "user", "content": "x" * (1 << 20)}]}).code == "body_too_large"
    assert refusal(b'{"model": "m", "messages": "\\ud800"}').code == "invalid_json"
    response = {"model": "m", "input": "x", "previous_response_id": "resp_1"}
    assert refusal(response, "/v1/responses").param == "previous_response_id"


@pytest.mark.parametrize(
    ("url", "fields", "jobs"),
    [
        (CHAT, {"messages": HELLO, "stream": True, "n": 8}, 1),
        ("/v1/completions", {"prompt": ["a", "b", "c"]}, 3),
        ("/v1/responses", {"input": "hello", "background": True, "stream": True}, 1),
    ],
)
def test_every_endpoint_answers_in_one_piece(url: str, fields: dict[str, Any], jobs: int) -> None:
    envelope = open_envelope(line(url=url, body={"model": "m", **fields}))
    request = line_request(envelope.url, bytes(envelope.body), {}, Ignored())
    assert len(request.jobs) == jobs
    ended = [
        CompletedJob(
            f"g00_{number}",
            [
                Chunk(index=index, token_ids=(1,), texts=("hi",), finish_reason="stop")
                for index in range(job.sampling.n)
            ],
            Terminal(status=JobStatus.COMPLETED, usage=Usage(3, job.sampling.n, 1)),
        )
        for number, job in enumerate(request.jobs)
    ]
    body, usage = request.answer(ended, 17)
    assert body.get("created", body.get("created_at")) == 17
    assert body["object"] in ("chat.completion", "text_completion", "response")
    assert len(body.get("choices", [1])) == max(jobs, request.jobs[0].sampling.n)
    assert (usage.input_tokens, usage.cached_tokens) == (3 * jobs, jobs)


def test_a_rejected_line_has_status_and_body_under_response() -> None:
    rejection = rejected("batch_req_1", "a", "r", InvalidRequest("no", param="temperature"))
    assert rejection["error"] is None
    assert rejection["response"]["status_code"] == 400
    assert rejection["response"]["body"]["error"] == {
        "message": "no", "type": "invalid_request_error", "param": "temperature", "code": "invalid_request",
    }  # fmt: skip
    statuses = {
        UnknownModel("x"): 404,
        JobFailed("x", "failed"): 500,
        JobFailed("x", "failed", param="prompt"): 400,
        JobFailed("x", "cancelled"): 409,
        JobFailed("x", "expired"): 504,
    }
    for error, status in statuses.items():
        assert rejected("i", "c", "r", error)["response"]["status_code"] == status
    assert not is_success(rejection)
    ignored = Ignored()
    assert is_success(succeeded("i", "c", "r", {}, ignored))
    ignored.add("user_hint")
    assert succeeded("i", "c", "r", {}, ignored)["response"]["ignored"] == "user_hint"
    late = undone("i", "c", "expired")
    assert (late["response"], late["error"]["code"], is_success(late)) == (None, "batch_expired", False)
