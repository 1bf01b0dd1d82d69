"""A request means the same over HTTP and as a line of a batch file."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import suppress

import pytest
import typer
from scripted_worker import MODEL, ScriptedWorker, whole_text
from waiting import until

from octavo.cli.batch import run as run_batch

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WINDOW = 4
HELLO = {"role": "user", "content": "hello"}
CACHED = {"cache_control": {"type": "ephemeral"}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "f", "description": "it", "parameters": SCHEMA, "strict": False}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"name": "x"}'}}


async def over_http(http, path, body):
    reply = (await http.post(path, json=body)).json()
    return ("error", reply["error"]) if "error" in reply else ("answer", reply)


async def in_a_batch(redis_url, folder, path, body):
    source, target = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": path, "body": body}))
    target.unlink(missing_ok=True)

    def batch():
        with suppress(typer.Exit):  # the answer says what is wrong
            run_batch(
                source,
                target,
                model="other",
                priority="normal",
                window=WINDOW,
                tenant="default",
                redis_url=redis_url,
                as_json=False,
            )

    await asyncio.to_thread(batch)
    answer = json.loads(target.read_text())
    assert answer["error"] is None
    body = answer["response"]["body"]
    assert ("error" in body) == (answer["response"]["status_code"] >= 400)
    return ("error", body["error"]) if "error" in body else ("answer", body)


def comparable(answer):
    """Without what differs between any two requests."""
    return {name: value for name, value in answer.items() if name not in ("id", "created", "type")}


def as_json(jobs):
    """In an order of their own: jobs of one request may be claimed in any."""
    return sorted(job.model_dump_json() for job in jobs)


def chat(**fields):
    return {"model": MODEL, "messages": [HELLO], "max_tokens": 3, **fields}


def text(**fields):
    return {"model": MODEL, "prompt": "hello", "max_tokens": 3, **fields}


BOTH_ACCEPT = [
    (CHAT, chat()),
    (TEXT, text()),
    (TEXT, {"model": MODEL, "prompt": "hello"}),
    (CHAT, chat(top_k=-1)),
    (CHAT, chat(logprobs=True, top_logprobs=2)),
    (TEXT, text(logprobs=1)),
    (TEXT, text(logprobs=0, stop=[" 0.1x"])),
    (TEXT, text(echo=True)),
    (TEXT, text(prompt=[8, 9], echo=True, logprobs=1, max_tokens=0)),
    (TEXT, text(prompt=["one", "three"], n=2)),
    (TEXT, text(prompt=[[1, 2, 3], [4, 5]], echo=True)),
    (CHAT, chat(best_of=2)),
    (CHAT, chat(timeout_s=60, queue_timeout_s=30.5)),
    (TEXT, text(timeout_s=60)),
    (TEXT, text(seed=-1)),
    (CHAT, chat(user="u", invented={"deep": [1]}, store=True, tools=[{**TOOL, "eager": True}, {"type": "web_search"}])),
    (TEXT, text(invented=1, max_tokens=3)),
    (CHAT, chat(seed=None, max_tokens=None, n=None, tools=None)),
    (CHAT, chat(max_completion_tokens=2, n=2)),
    (CHAT, chat(logit_bias={"7": -100}, stop="x", priority="high", metadata={"run": "1"})),
    (CHAT, chat(response_format={"type": "text"})),
    (CHAT, chat(response_format={"type": "json_object"})),
    (CHAT, chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}})),
    (CHAT, chat(structured_outputs={"json": SCHEMA, "disable_any_whitespace": True})),
    (TEXT, text(structured_outputs={"choice": ["yes", "no"]})),
    (TEXT, text(guided_regex="a+b")),
    (CHAT, chat(user="u", safety_identifier="s", prompt_cache_key="k", service_tier="auto", store=False)),
    (CHAT, chat(reasoning_effort="low", verbosity="low", modalities=["text"], chat_template_kwargs={})),
    (CHAT, chat(tools=[], tool_choice="none", parallel_tool_calls=True)),
    (CHAT, chat(tools=[TOOL], tool_choice="none", parallel_tool_calls=False)),
    (CHAT, chat(tools=[TOOL, {"type": "function", "function": {"name": "g"}}], tool_choice="auto")),
    (CHAT, chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}})),
    (CHAT, chat(chat_template_kwargs={"enable_thinking": False, "depth": [1, {"a": None}]}, reasoning_effort="none")),
    (CHAT, chat(thinking_token_budget=100, include_reasoning=False)),
    (TEXT, text(tools=[], tool_choice="none", parallel_tool_calls=True, reasoning_effort="low")),
    (CHAT, chat(functions=[], function_call="none", prompt_cache_retention="24h")),
    (CHAT, chat(messages=[{**HELLO, "name": "ann"}])),
    (CHAT, chat(messages=[{**HELLO, **CACHED}], tools=[{**TOOL, **CACHED}])),
    (CHAT, chat(messages=[{"role": "user", "content": [{"type": "text", "text": "hello", **CACHED}]}])),
    (
        CHAT,
        chat(messages=[HELLO, {"role": "assistant", "content": None, "annotations": [], "tool_calls": []}, HELLO]),
    ),
    (
        CHAT,
        chat(messages=[{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]),
    ),
]

BOTH_REFUSE = [
    (CHAT, chat(prompt_logprobs=1), "prompt_logprobs"),
    (TEXT, text(prompt_logprobs=1), "prompt_logprobs"),
    (TEXT, text(max_completion_tokens=2), "max_completion_tokens"),
    (TEXT, text(suffix="x"), "suffix"),
    (CHAT, chat(tools=[{"type": "function"}]), "tools.0.function"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "a b"}}]), "tools.0.function.name"),
    (CHAT, chat(tools=[{"type": "web_search", "function": {"name": "f"}}]), "tools.0.type"),
    (CHAT, chat(tools=[{"type": "custom", "custom": {"name": "f"}}]), "tools.0.type"),
    (CHAT, chat(tools=[{"type": "web_search"}], tool_choice="required"), "tool_choice"),
    (CHAT, chat(tools=[TOOL, TOOL], tool_choice="auto"), "tool_choice"),
    (CHAT, chat(tool_choice="required"), "tool_choice"),
    (CHAT, chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}), "tool_choice"),
    (CHAT, chat(tools=[TOOL], tool_choice="always"), "tool_choice"),
    (CHAT, chat(chat_template_kwargs={"messages": []}), "chat_template_kwargs"),
    (CHAT, chat(chat_template_kwargs={"a": [[[[1]]]]}), "chat_template_kwargs"),
    (CHAT, chat(thinking_token_budget=-1), "thinking_token_budget"),
    (TEXT, text(thinking_token_budget=1), "thinking_token_budget"),
    (TEXT, text(tools=[TOOL]), "tools"),
    (CHAT, chat(messages=[{"role": "critic", "content": "bad"}]), "messages.0.role"),
    (CHAT, chat(messages=[{"role": "user"}]), "messages.0.content"),
    (CHAT, chat(messages=[{**HELLO, "tool_calls": [CALL]}]), "messages.0"),
    (CHAT, chat(functions=[{"name": "f"}]), "functions"),
    (CHAT, chat(echo=True), "echo"),
    (CHAT, chat(modalities=["text", "audio"]), "modalities"),
    (CHAT, chat(response_format={"type": "yaml"}), "response_format.type"),
    (CHAT, chat(structured_outputs={"json": {}, "regex": "a"}), "structured_outputs"),
    (TEXT, text(guided_choice=[1]), "guided_choice.0"),
    (CHAT, chat(messages=[{"role": "user", "content": None}]), "messages.0.content"),
    (CHAT, chat(messages=[HELLO, {**HELLO, "tool_calls": [{}]}]), "messages.1.tool_calls.0.function"),
    (CHAT, chat(temperature=9), "temperature"),
    (CHAT, chat(logit_processors=["x"]), "logit_processors"),
    (TEXT, text(grammar='root ::= "a"'), "grammar"),
    (CHAT, chat(response_format={"type": "json_object", "schema": SCHEMA}), "response_format.schema"),
    (CHAT, chat(max_tokens=0), "max_tokens"),
    (TEXT, text(prompt=[]), "prompt"),
    (TEXT, text(best_of=1, n=2), None),
    (TEXT, text(model="absent"), "model"),
]


@pytest.mark.parametrize(("path", "body"), BOTH_ACCEPT, ids=str)
async def test_what_one_accepts_the_other_does(http, worker, redis_url, tmp_path, path, body):
    kind, answer = await over_http(http, path, body)
    jobs = list(worker.seen)
    assert kind == "answer", answer
    worker.seen.clear()
    kind, batched = await in_a_batch(redis_url, tmp_path, path, body)
    assert kind == "answer", batched
    assert as_json(worker.seen) == as_json(jobs)
    assert comparable(batched) == comparable(answer)


@pytest.mark.parametrize(("path", "body", "param"), BOTH_REFUSE, ids=str)
async def test_what_one_refuses_the_other_does_in_the_same_words(http, worker, redis_url, tmp_path, path, body, param):
    kind, error = await over_http(http, path, body)
    assert kind == "error", error
    assert error["param"] == param
    kind, batched = await in_a_batch(redis_url, tmp_path, path, body)
    assert kind == "error", batched
    assert batched == error
    assert worker.seen == []


async def test_fields_without_effect_change_nothing(http, worker):
    harmless = {"user": "u", "store": False, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
    for fields in ({}, harmless):
        assert (await over_http(http, CHAT, chat(**fields)))[0] == "answer"
    plain, with_fields = worker.seen
    assert plain == with_fields


async def test_an_assistant_may_have_said_nothing(http, worker):
    silent = {"role": "assistant", "content": None}
    assert (await over_http(http, CHAT, chat(messages=[HELLO, silent, HELLO])))[0] == "answer"
    assert [turn.content for turn in worker.seen[0].messages] == ["hello", "", "hello"]


async def test_the_prompts_of_a_line_are_answered_in_their_order(worker, redis_url, tmp_path):
    body = text(prompt=["a", "b" * 300, "c"])
    kind, error = await in_a_batch(redis_url, tmp_path, TEXT, body)
    assert (kind, error["code"]) == ("error", "context_length_exceeded")
    kind, answer = await in_a_batch(redis_url, tmp_path, TEXT, text(prompt=["abc", "d", "ef"], echo=True))
    assert [choice["text"] for choice in answer["choices"]] == [said + whole_text(3) for said in ("abc", "d", "ef")]
    assert answer["usage"]["prompt_tokens"] == 6


async def test_the_window_bounds_jobs_and_not_lines(http, redis_url, tmp_path):
    async with ScriptedWorker(redis_url, hold_after=0) as worker:
        batch = asyncio.create_task(in_a_batch(redis_url, tmp_path, TEXT, text(prompt=["a"] * 9)))
        await until(lambda: len(worker.seen) == WINDOW)
        assert len((await http.get("/v1/jobs")).json()["data"]) == WINDOW
        worker.go.set()
        kind, answer = await batch
    assert (kind, len(answer["choices"])) == ("answer", 9)


async def test_equal_prompts_of_a_line_are_jobs_of_their_own(worker, redis_url, tmp_path):
    kind, answer = await in_a_batch(redis_url, tmp_path, TEXT, text(prompt=["a", "a"]))
    assert (kind, len(answer["choices"])) == ("answer", 2)
    assert len(worker.seen) == 2


def test_the_client_starts_without_the_dialect():
    program = (
        "import sys, octavo; print(sorted(name for name in sys.modules if name.startswith('octavo.dialects.openai')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
