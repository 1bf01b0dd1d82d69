"""A model under several names, as clients of the gateway meet it."""

from __future__ import annotations

import time
from typing import Any

import anthropic
import httpx
import pytest
from scripted_worker import CONTEXT, MODEL, STATS, ScriptedWorker
from waiting import STALL_S

from octavo.queue import wire
from octavo.queue.calls import run
from octavo.queue.connection import connect
from octavo.queue.protocol import Cell
from octavo.terms.sampling import SamplingDefaults
from octavo.terms.workers import ModelCard, WorkerInfo

ALIAS = "gpt-4o"
ASKED: dict[str, Any] = {"model": ALIAS, "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def named(worker: ScriptedWorker, redis_url: str) -> ScriptedWorker:
    """A worker with an alias, and a model with sampling of its own."""
    card = ModelCard(
        name=MODEL,
        max_model_len=CONTEXT,
        vocab_size=5000,
        has_tokenizer=True,
        created_at=time.time(),
        sampling=SamplingDefaults(temperature=0.6, top_k=20),
        aliases=(ALIAS,),
    )
    info = wire.encode_worker(WorkerInfo(id="scripted", model=MODEL, host="h", pid=1, started_at=1.0, stats=STATS))
    async with connect(redis_url) as connection:
        await run(connection, Cell().register_model(card, worker_id="scripted", lease_ms=60_000, info=info))
    return worker


async def test_every_route_takes_an_alias_and_answers_with_it(named, http: httpx.AsyncClient, ai, gateway_url):
    chat = await ai.chat.completions.create(**ASKED)
    completion = await ai.completions.create(model=ALIAS, prompt="hi", max_tokens=2)
    response = await ai.responses.create(model=ALIAS, input="hi", max_output_tokens=2)
    kept = await ai.responses.retrieve(response.id)
    assert {chat.model, completion.model, response.model, kept.model} == {ALIAS}
    chunks = [chunk async for chunk in await ai.chat.completions.create(**ASKED, stream=True)]
    assert {chunk.model for chunk in chunks} == {ALIAS}
    async with anthropic.AsyncAnthropic(base_url=gateway_url, api_key="none", timeout=STALL_S) as claude:
        assert (await claude.messages.create(**ASKED)).model == ALIAS
        assert (await claude.messages.count_tokens(model=ALIAS, messages=ASKED["messages"])).input_tokens == 2
    job = (await http.post("/v1/jobs", json={"model": ALIAS, "prompt": "hi"})).json()
    assert job["model"] == ALIAS
    assert (await http.get(job["links"]["self"])).json()["model"] == ALIAS
    tokens = (await http.post("/tokenize", json={"model": ALIAS, "prompt": "hi"})).json()["tokens"]
    assert (await http.post("/detokenize", json={"model": ALIAS, "tokens": tokens})).json() == {"prompt": "hi"}
    assert (await http.post("/tokenize", json={"prompt": "hi"})).status_code == 200  # still one model
    assert {request.model for request in named.seen} == {ALIAS}


async def test_models_are_listed_by_all_of_their_names(named, http, ai):
    listed = {model["id"]: model for model in (await http.get("/v1/models")).json()["data"]}
    assert listed.keys() == {ALIAS, MODEL}
    for name, model in listed.items():
        assert (model["id"], model["root"], model["aliases"]) == (name, MODEL, [ALIAS])
        assert model["sampling_defaults"] == {"temperature": 0.6, "top_k": 20}
        assert (await http.get(f"/v1/models/{name}")).json() == model
    assert {model.id async for model in ai.models.list()} == {ALIAS, MODEL}


async def test_a_response_says_by_which_sampling_it_was_made(named, ai):
    asked = {"model": ALIAS, "input": "hi", "max_output_tokens": 2}
    silent = await ai.responses.create(**asked)
    said = await ai.responses.create(**asked, temperature=1.0)
    assert (silent.temperature, silent.top_p) == (0.6, 1.0)
    assert said.temperature == 1.0
    assert [request.sampling.temperature for request in named.seen] == [None, 1.0]


async def test_without_its_worker_an_alias_is_unknown(named, http, redis_sync):
    named._tasks[1].cancel()  # its heartbeats
    redis_sync.delete(Cell().keys.worker("scripted"))
    reply = await http.post("/v1/chat/completions", json=ASKED)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert [model["id"] for model in (await http.get("/v1/models")).json()["data"]] == [MODEL]
    for path in (f"/v1/models/{ALIAS}", "/tokenize"):
        asked = http.get(path) if path.startswith("/v1") else http.post(path, json={"model": ALIAS, "prompt": "a"})
        assert (await asked).status_code == 404
