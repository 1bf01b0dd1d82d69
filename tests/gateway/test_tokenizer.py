"""`/tokenize` and `/detokenize`: a worker answers what the gateway cannot know, also while it generates."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
import redis
from scripted_worker import CONTEXT, MODEL
from tokenizers import Tokenizer
from waiting import STALL_S, until
from worker_process import WorkerProcess

import octavo_worker
from octavo import AsyncClient, Client
from octavo.queue.calls import run_sync
from octavo.queue.keys import Keys
from octavo.queue.protocol import Cell
from octavo.queue.questions import QUESTIONS_KEPT
from octavo.terms.errors import InvalidRequest
from octavo.terms.models import JobRequest
from octavo.terms.workers import ModelCard

DEMO = Tokenizer.from_file(str(Path(octavo_worker.__file__).parent / "bundled" / "demo" / "tokenizer.json"))


async def test_tokens_of_a_prompt_and_back(http, worker):
    reply = await http.post("/tokenize", json={"model": MODEL, "prompt": "hé", "return_token_strs": True})
    assert reply.json() == {"count": 2, "max_model_len": CONTEXT, "tokens": [104, 233], "token_strs": ["h", "é"]}
    reply = await http.post("/tokenize", json={"prompt": "h"})  # there is but one model
    assert reply.json() == {"count": 1, "max_model_len": CONTEXT, "tokens": [104], "token_strs": None}
    assert (await http.post("/detokenize", json={"tokens": [104, 233]})).json() == {"prompt": "hé"}
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    reply = await http.post("/tokenize", json={"messages": messages, "add_generation_prompt": True})
    assert reply.json()["tokens"] == [104, 105]
    assert worker.seen == []


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, None),
        ("/tokenize", {"prompt": "a", "messages": []}, 400, None),
        ("/tokenize", {"model": "absent", "prompt": "a"}, 404, "model"),
        ("/tokenize", {"prompt": "a", "invented": 1}, 400, "invented"),
        ("/tokenize", {"prompt": ""}, 400, None),
        ("/tokenize", {"messages": [{"role": "user"}]}, 400, "messages.0.content"),
        ("/tokenize", {"messages": [{"role": "user", "content": "?"}]}, 400, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True}, 400, None),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "continue_final_message": True}, 400, None),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens.0"),
        ("/detokenize", {"tokens": "a"}, 400, "tokens"),
    ],
)
async def test_what_cannot_be_tokenized_is_told(http, worker, path, body, status, param):
    reply = await http.post(path, json=body)
    assert reply.status_code == status, reply.text
    assert param is None or reply.json()["error"]["param"] == param


async def test_without_a_worker_it_is_a_503(http, redis_url, redis_sync):
    card = ModelCard(name=MODEL, max_model_len=9, vocab_size=9, has_tokenizer=True, created_at=1.0)
    run_sync(redis_sync, Cell().register_model(card))
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        reply = await http.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "worker_not_found")
        assert reply.headers["retry-after"] == "1"
    counted = await http.post(
        "/v1/messages/count_tokens", json={"model": MODEL, "messages": [{"role": "user", "content": "a"}]}
    )
    assert (counted.status_code, counted.json()["error"]["type"]) == (503, "overloaded_error")


async def test_a_question_that_a_dying_worker_took_is_asked_again(http, worker, redis_sync, monkeypatch):
    monkeypatch.setattr("octavo.queue.questions._TOKENIZER_ANSWER_S", (0.05, 60.0))
    taken = asyncio.create_task(asyncio.to_thread(redis_sync.blpop, [Keys().questions(MODEL)], 60))
    for task in worker._tasks[2:3]:  # the scripted worker's own answers
        task.cancel()
    asking = asyncio.create_task(http.post("/tokenize", json={"prompt": "a"}))
    await taken
    await until(lambda: redis_sync.llen(Keys().questions(MODEL)))
    worker._tasks[2] = asyncio.create_task(worker._answer())
    assert (await asking).json()["tokens"] == [97]


async def test_questions_without_a_worker_are_bounded(worker, redis_url, redis_sync):
    for task in worker._tasks[2:3]:
        task.cancel()
    name = Keys().questions(MODEL)
    redis_sync.rpush(name, *(b"x" for _ in range(QUESTIONS_KEPT + 50)))
    async with AsyncClient(redis_url) as client:
        asking = asyncio.create_task(client.tokenize(JobRequest(model=MODEL, prompt="a")))
        await until(lambda: redis_sync.llen(name) == QUESTIONS_KEPT)
        assert redis_sync.ttl(name) > 0
        asking.cancel()
        with pytest.raises(InvalidRequest, match="shorten it"):
            await client.tokenize(JobRequest(model=MODEL, prompt="a" * (1 << 20)))


async def test_a_real_worker_answers_while_it_loads_generates_and_gets_nonsense(own_gateway, redis_url, tmp_path):
    url = own_gateway()
    flags = {"model": "demo", "lease": 1.0}
    with (
        WorkerProcess(redis_url, tmp_path / "log", fake="step_seconds=0.01", **flags) as real,
        redis.Redis.from_url(redis_url) as connection,
    ):
        real.wait_ready()
        async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
            job = {"model": "demo", "prompt": "a", "sampling": {"max_tokens": 900, "ignore_eos": True}}
            path = (await http.post("/v1/jobs", json=job)).json()["links"]["self"]

            async def running() -> bool:
                return (await http.get(path)).json()["tokens"] > 3

            await until(running)
            connection.rpush(Keys().questions("demo"), b"\xff", b"\x93\x01\xa3ask\x01")
            text = "Wherefore art thou <|endoftext|> Romeo? 😀"
            asked = [http.post("/tokenize", json={"prompt": text, "return_token_strs": True}) for _ in range(40)]
            replies = [reply.json() for reply in await asyncio.gather(*asked)]
            assert all(reply == replies[0] for reply in replies)
            ids = replies[0]["tokens"]
            assert (replies[0]["count"], len(replies[0]["token_strs"])) == (len(ids), len(ids))
            assert [DEMO.id_to_token(token) for token in ids] == replies[0]["token_strs"]
            assert (await http.post("/detokenize", json={"tokens": ids})).json()["prompt"] == DEMO.decode(
                ids, skip_special_tokens=False
            )
            messages = [{"role": "user", "content": "hello"}]
            counted = (await http.post("/tokenize", json={"messages": messages})).json()["count"]
            chat = {"model": "demo", "messages": messages, "max_tokens": 1}
            usage = (await http.post("/v1/chat/completions", json=chat)).json()["usage"]
            assert usage["prompt_tokens"] == counted
            assert (await http.get(path)).json()["status"] == "running"
            assert (await http.delete(path)).status_code == 202
            with Client(redis_url) as client:
                asked = JobRequest(model="demo", prompt=text)
                answer = await asyncio.to_thread(client.tokenize, asked)
                assert (list(answer.token_ids), list(answer.names)) == (ids, replies[0]["token_strs"])
                assert await asyncio.to_thread(client.detokenize, "demo", ids) == DEMO.decode(
                    ids, skip_special_tokens=False
                )
        assert text not in real.log
        assert "cannot be read" in real.log
        assert json.dumps(text)[1:-1] not in real.log
