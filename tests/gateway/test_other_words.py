"""Other servers' and newer words for what octavo does: thinking, its budget, and the form of an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
import redis
from scripted_worker import MODEL, ScriptedWorker

from octavo.queue.calls import run_sync
from octavo.queue.protocol import Cell
from octavo.terms.workers import ModelCard

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [USER], "max_tokens": 2},
    RESPONSES: {"model": MODEL, "input": [USER], "max_output_tokens": 2},
    MESSAGES: {"model": MODEL, "messages": [USER], "max_tokens": 2},
}
OFF = {"enable_thinking": False, "thinking": False}
ON = {"enable_thinking": True, "thinking": True}
SWITCHES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((path, {"enable_thinking": False}, OFF) for path in (CHAT, RESPONSES, MESSAGES)),
    *((path, {"think": "low"}, {"reasoning_effort": "low"}) for path in (CHAT, RESPONSES, MESSAGES)),
    *((path, {"reasoning_effort": "none", "think": True}, OFF) for path in (CHAT, RESPONSES, MESSAGES)),
    *(
        (path, {"think": True, "chat_template_kwargs": {"thinking": 1}}, ON | {"thinking": 1})
        for path in (CHAT, MESSAGES)
    ),
    (CHAT, {"thinking": {"type": "disabled"}}, OFF),
    (CHAT, {"thinking": True}, ON),
    (CHAT, {"reasoning": {"effort": "high", "enabled": True}}, ON | {"reasoning_effort": "high"}),
    (RESPONSES, {"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),
    (MESSAGES, {"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}),
    (
        MESSAGES,
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
        ON | {"reasoning_effort": "low"},
    ),
]


@pytest.mark.parametrize(("path", "fields", "arguments"), SWITCHES, ids=str)
async def test_switches_of_thinking_reach_the_template(
    http: httpx.AsyncClient, worker: ScriptedWorker, path: str, fields: dict[str, Any], arguments: Mapping[str, Any]
) -> None:
    reply = await http.post(path, json=ASKED[path] | fields)
    assert reply.status_code == 200, reply.text
    assert worker.seen[0].chat_template_kwargs == arguments


BUDGETS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"thinking_budget": 7}),
    (CHAT, {"thinking": {"type": "enabled", "budget_tokens": 7}}),
    (CHAT, {"reasoning": {"max_tokens": 7}, "thinking_budget": None}),
    (CHAT, {"thinking_token_budget": 7, "thinking_budget": 9}),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 7}}),
]


@pytest.mark.parametrize(("path", "fields"), BUDGETS, ids=str)
async def test_budgets_of_thoughts_have_several_names(
    http: httpx.AsyncClient, worker: ScriptedWorker, path: str, fields: dict[str, Any]
) -> None:
    assert (await http.post(path, json=ASKED[path] | fields)).status_code == 200
    assert worker.seen[0].sampling.thinking_token_budget == 7


@pytest.mark.parametrize("place", ["output_config.format", "output_format"])
async def test_a_format_of_messages_is_a_grammar(http: httpx.AsyncClient, worker: ScriptedWorker, place: str) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    asked = {"output_config": {"format": form}} if "." in place else {place: form}
    assert (await http.post(MESSAGES, json=ASKED[MESSAGES] | asked)).status_code == 200
    grammar = worker.seen[0].grammar
    assert grammar is not None
    assert (grammar.kind, json.loads(grammar.text)) == ("json_schema", SCHEMA)
    form["schema"] = {"type": "no such type"}
    refused = await http.post(MESSAGES, json=ASKED[MESSAGES] | asked)
    assert (refused.status_code, refused.json()["type"]) == (400, "error")
    both = {"output_config": {"format": form}, "output_format": form}
    assert (await http.post(MESSAGES, json=ASKED[MESSAGES] | both)).status_code == 400


READ: list[tuple[str, dict[str, Any], tuple[str, ...], str | None]] = [
    (CHAT, {"reasoning_effort": "high", "enable_thinking": True}, ("reasoning_effort",), "enable_thinking"),
    (CHAT, {"reasoning_effort": "none", "think": "low"}, ("thinking",), "think"),
    (
        CHAT,
        {"reasoning": {"effort": "high", "enabled": True}, "think": True},
        (),
        "think, reasoning.enabled, reasoning.effort",
    ),
    (
        MESSAGES,
        {"output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}},
        ("thinking",),
        "output_config.effort",
    ),
    (MESSAGES, {"thinking": {"type": "disabled"}}, ("enable_thinking",), None),
    (RESPONSES, {"reasoning": {"effort": "high"}}, (), "reasoning.effort"),
    (RESPONSES, {"reasoning": {"effort": "high"}, "invented": 1}, ("reasoning_effort",), "invented"),
]


@pytest.mark.parametrize(("path", "fields", "switches", "named"), READ, ids=str)
async def test_a_switch_that_the_template_lacks_is_a_hint(
    http: httpx.AsyncClient,
    redis_sync: redis.Redis,
    path: str,
    fields: dict[str, Any],
    switches: tuple[str, ...],
    named: str | None,
) -> None:
    """No worker is there: the key, which is too long, spares the wait for one."""
    name = "-".join(("of", *switches))
    card = ModelCard(name=name, max_model_len=9, vocab_size=9, has_tokenizer=True, created_at=1.0, switches=switches)
    run_sync(redis_sync, Cell().register_model(card))
    reply = await http.post(path, json=ASKED[path] | fields | {"model": name}, headers={"Idempotency-Key": "x" * 300})
    assert (reply.status_code, reply.headers.get("octavo-ignored")) == (400, named)
