"""The gateway as the `openai` package sees it."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest
import redis
from scripted_worker import CONTEXT, MODEL, ScriptedWorker, whole_text
from waiting import STALL_S, until

from octavo.dialects.openai.logprobs import CompletionLogprobs
from octavo.queue.calls import run_sync
from octavo.queue.protocol import Cell
from octavo.terms.messages import JobStatus, TokenLogprob
from octavo.terms.workers import ModelCard

HELLO = [{"role": "user", "content": "hello"}]


async def test_models(ai, worker):
    assert [model.id async for model in ai.models.list()] == [MODEL]
    assert (await ai.models.retrieve(MODEL)).owned_by == "octavo"
    with pytest.raises(openai.NotFoundError) as caught:
        await ai.models.retrieve("org/absent")
    assert caught.value.code == "model_not_found"
    assert MODEL in caught.value.message


async def test_models_name_how_their_weights_are_quantised(http, worker, redis_url):
    card = ModelCard(
        name="small", max_model_len=9, vocab_size=9, has_tokenizer=True, created_at=1, quantization="fp8 by fp8"
    )
    with redis.Redis.from_url(redis_url) as connection:
        run_sync(connection, Cell().register_model(card))
    listed = (await http.get("/v1/models")).json()["data"]
    assert {model["id"]: model["quantization"] for model in listed} == {MODEL: None, "small": "fp8 by fp8"}


async def test_chat_answers_in_one_piece(ai, worker):
    reply = await ai.chat.completions.create(model=MODEL, messages=HELLO, max_completion_tokens=5)
    (choice,) = reply.choices
    assert choice.message.content == whole_text(5)
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (5, 5, 10)
    assert reply.usage.prompt_tokens_details.cached_tokens == 1
    assert reply.id.startswith("chatcmpl-g00_")


async def test_chat_streams_the_same_text(ai, worker):
    stream = await ai.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=5, n=2, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    *content, last = chunks
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 10)
    assert all(chunk.usage is None for chunk in content)
    for index in (0, 1):
        choices = [choice for chunk in content for choice in chunk.choices if choice.index == index]
        assert [choice.delta.role for choice in choices].count("assistant") == 1
        assert choices[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in choices) == whole_text(5, index)
        assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]
        assert choices[-1].finish_reason == "length"


async def test_a_stream_without_options_has_no_usage(ai, worker):
    stream = await ai.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3, stream=True)
    chunks = [chunk async for chunk in stream]
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


async def test_continuous_usage_counts_up(ai, worker):
    stream = await ai.completions.create(
        model=MODEL,
        prompt="hello",
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    usages = [chunk.usage.completion_tokens async for chunk in stream]
    assert usages == [1, 2, 3, 3]


async def test_an_answer_is_part_of_the_next_request(ai, worker):
    messages = [*HELLO]
    for _ in range(2):
        reply = await ai.chat.completions.create(model=MODEL, messages=messages, max_tokens=2)
        messages += [reply.choices[0].message, {"role": "user", "content": "and then?"}]
    messages[1] = messages[1].model_dump()
    await ai.chat.completions.create(model=MODEL, messages=messages, max_tokens=2)
    roles = [turn.role for turn in worker.seen[-1].messages]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert worker.seen[-1].messages[1].content == whole_text(2)


async def test_null_is_as_good_as_absent(http, worker):
    known = (
        "n",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
        "logprobs",
        "priority",
        "ignore_eos",
        "stop",
        "seed",
    )
    nothing = dict.fromkeys((*known, "tools", "parallel_tool_calls", "of_a_later_version"))
    for path, prompt in (("chat/completions", {"messages": HELLO}), ("completions", {"prompt": "hello", "echo": None})):
        for limit in ({}, {"max_tokens": None}):
            reply = await http.post(f"/v1/{path}", json={"model": MODEL, **prompt, **nothing, **limit, "min_tokens": 1})
            assert reply.status_code == 200, reply.text
    plain, null = worker.seen[-2:]
    assert plain == null
    assert null.sampling.max_tokens == 16


async def test_an_answer_may_have_to_be_long(ai, worker):
    for limit in ({}, {"max_tokens": 400}):
        await ai.chat.completions.create(model=MODEL, messages=HELLO, extra_body={"min_tokens": 300}, **limit)
    assert [seen.sampling.min_tokens for seen in worker.seen] == [300, 300]
    assert [seen.sampling.max_tokens for seen in worker.seen] == [None, 400]


async def test_content_in_list_form(ai, worker):
    content = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    await ai.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}], max_tokens=1)
    assert [turn.content for turn in worker.seen[0].messages] == ["hello"]


async def test_every_sampling_field_reaches_the_job(ai, worker):
    await ai.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        logit_bias={"7": -100},
        stop=["a", "b"],
        seed=-1,
        user="somebody",
        metadata={"run": "1"},
        extra_body={
            "top_k": -1,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "min_tokens": 2,
            "ignore_eos": True,
            "stop_token_ids": [3],
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
            "priority": "high",
        },
    )
    (job,) = worker.seen
    assert job.sampling.model_dump(exclude_defaults=True) == {
        "max_tokens": 9,
        "min_tokens": 2,
        "temperature": 0.5,
        "top_k": 0,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "logit_bias": {7: -100.0},
        "stop": ("a", "b"),
        "stop_token_ids": (3,),
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "seed": (1 << 63) - 1,
    }
    assert (job.priority, job.add_special_tokens, job.metadata) == ("high", False, {"run": "1"})


async def test_defaults_of_the_two_endpoints(ai, worker):
    await ai.chat.completions.create(model=MODEL, messages=HELLO)
    await ai.completions.create(model=MODEL, prompt="hello")
    chat, completion = worker.seen
    assert (chat.sampling.max_tokens, completion.sampling.max_tokens) == (None, 16)
    assert (chat.priority, completion.priority) == ("normal", "normal")


async def test_chat_logprobs(ai, worker):
    ask = {"model": MODEL, "messages": HELLO, "max_tokens": 2, "logprobs": True, "top_logprobs": 2}
    (choice,) = (await ai.chat.completions.create(**ask)).choices
    first, second = choice.logprobs.content
    assert (first.token, first.logprob, bytes(first.bytes)) == (" 0.0", -1.5, b" 0.0")
    assert [bytes(top.bytes) for top in second.top_logprobs] == [b"\xe2\x80", b" 0.1"]
    stream = await ai.chat.completions.create(**ask, stream=True)
    streamed = [
        token
        async for chunk in stream
        for token in (chunk.choices[0].logprobs and chunk.choices[0].logprobs.content) or ()
    ]
    assert streamed == [first, second]


async def test_completion_logprobs(ai, worker):
    ask = {"model": MODEL, "prompt": "hello", "max_tokens": 3, "logprobs": 1}
    (choice,) = (await ai.completions.create(**ask)).choices
    assert choice.text == " 0.0 0.1 0.2"
    assert choice.logprobs.tokens == [" 0.0", " 0.1", " 0.2"]
    assert choice.logprobs.token_logprobs == [-1.5, -1.5, -1.5]
    assert choice.logprobs.text_offset == [0, 4, 8]
    assert choice.logprobs.top_logprobs[1] == {r"bytes:\xe2\x80": -0.25, " 0.1": -1.5}
    stream = await ai.completions.create(**ask, stream=True)
    parts = [chunk.choices[0].logprobs async for chunk in stream]
    assert [offset for part in parts for offset in part.text_offset] == [0, 4, 8]


async def test_many_prompts_of_either_kind(ai, worker):
    for prompts in (["one", "three"], [[1, 2, 3], [4, 5, 6, 7, 8]]):
        reply = await ai.completions.create(model=MODEL, prompt=prompts, n=2, max_tokens=2)
        assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
        assert [choice.text for choice in reply.choices] == [whole_text(2, 0), whole_text(2, 1)] * 2
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (8, 8)
    stream = await ai.completions.create(model=MODEL, prompt=["a", "b", "c"], max_tokens=2, stream=True)
    texts = {0: "", 1: "", 2: ""}
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == dict.fromkeys(range(3), whole_text(2))


async def test_echo(ai, worker):
    text = await ai.completions.create(model=MODEL, prompt="hello", max_tokens=2, echo=True)
    assert text.choices[0].text == "hello" + whole_text(2)
    ids = await ai.completions.create(model=MODEL, prompt=[8, 9], max_tokens=2, echo=True)
    assert ids.choices[0].text == "<8><9>" + whole_text(2)
    stream = await ai.completions.create(model=MODEL, prompt="hello", max_tokens=2, echo=True, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "hello" + whole_text(2)


async def test_echo_scores_a_prompt_without_generating(ai, worker):
    """lm-eval's question."""
    reply = await ai.completions.create(model=MODEL, prompt=[8, 9], max_tokens=0, echo=True, logprobs=2)
    (choice,) = reply.choices
    assert choice.text == "<8><9>"
    assert choice.logprobs.tokens == ["<8>", "<9>"]
    assert choice.logprobs.token_logprobs == [None, -1.5]
    assert choice.logprobs.top_logprobs[0] is None
    assert choice.logprobs.top_logprobs[1]["<9>"] == -1.5
    assert choice.logprobs.text_offset == [0, 3]
    assert choice.finish_reason == "length"
    both = await ai.completions.create(model=MODEL, prompt="hi", max_tokens=1, echo=True, logprobs=1)
    assert both.choices[0].logprobs.text_offset == [0, 1, 2]


async def test_errors_are_typed(ai, worker):
    with pytest.raises(openai.NotFoundError) as caught:
        await ai.chat.completions.create(model="absent", messages=HELLO)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert MODEL in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.chat.completions.create(model=MODEL, messages=HELLO, temperature=3)
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_the_worker_refuses_is_a_400(own_gateway, worker, stream):
    url = own_gateway(keep_alive=60)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as ai:
        with pytest.raises(openai.BadRequestError) as caught:
            await ai.completions.create(model=MODEL, prompt="x" * (CONTEXT + 1), stream=stream)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
        with pytest.raises(openai.BadRequestError) as caught:
            await ai.completions.create(model=MODEL, prompt=["fine", "x" * (CONTEXT + 1)], stream=False)
        assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_a_stream_that_waits_for_a_worker_is_kept_alive(http, redis_url, path):
    async with ScriptedWorker(redis_url):
        pass  # the model is known, its worker is gone
    prompt = {"messages": HELLO} if path.startswith("chat") else {"prompt": "hello"}
    body = {"model": MODEL, **prompt, "max_tokens": 2, "stream": True}
    async with http.stream("POST", f"/v1/{path}", json=body) as reply:
        assert reply.status_code == 200
        lines = reply.aiter_lines()
        assert [await anext(lines) for _ in range(4)] == [": keep-alive", ""] * 2
        async with ScriptedWorker(redis_url):
            rest = [line async for line in lines]
    assert rest[-2:] == ["data: [DONE]", ""]
    assert sum(line.startswith("data: {") for line in rest) >= 2


async def test_a_refusal_that_comes_late_is_an_error_event(http, redis_url):
    async with ScriptedWorker(redis_url):
        pass
    body = {"model": MODEL, "prompt": "x" * (CONTEXT + 1), "stream": True}
    async with http.stream("POST", "/v1/completions", json=body) as reply:
        lines = reply.aiter_lines()
        assert await anext(lines) == ": keep-alive"
        async with ScriptedWorker(redis_url):
            (event,) = [line async for line in lines if line.startswith("data: ")]
    assert json.loads(event.removeprefix("data: "))["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_its_job(ai, http, redis_url, stream):
    async with ScriptedWorker(redis_url, hold_after=2) as worker:
        request = asyncio.create_task(_read_all(ai, stream))
        await until(lambda: worker.seen)
        await asyncio.sleep(0.1)
        assert not request.done()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        (job,) = (await http.get("/v1/jobs")).json()["data"]
        await until(lambda: _has_status(http, job["id"], JobStatus.CANCELLED))


async def _has_status(http, job_id: str, status: JobStatus) -> bool:
    return (await http.get(f"/v1/jobs/{job_id}")).json()["status"] == status


async def _read_all(ai, stream: bool) -> None:
    reply = await ai.completions.create(model=MODEL, prompt="hello", max_tokens=9, stream=stream)
    if stream:
        async for _ in reply:
            pass


async def test_a_job_that_dies_in_mid_stream_is_an_error_event(ai, http, redis_url):
    async with ScriptedWorker(redis_url, hold_after=2):
        stream = await ai.completions.create(model=MODEL, prompt="hello", max_tokens=9, stream=True)
        job_id = (await anext(stream)).id.removeprefix("cmpl-")
        await http.delete(f"/v1/jobs/{job_id}")
        with pytest.raises(openai.APIError) as caught:
            async for _ in stream:
                pass
        assert caught.value.code == "cancelled"


async def test_a_full_queue_says_when_to_come_back(own_gateway, redis_url):
    url = own_gateway(max_queued_jobs=2)
    async with ScriptedWorker(redis_url):
        pass  # the model is known, no worker empties the queue
    async with (
        httpx.AsyncClient(base_url=url, timeout=STALL_S) as http,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as ai,
    ):
        for _ in range(2):
            assert (await http.post("/v1/jobs", json={"model": MODEL, "prompt": "x"})).status_code == 202
        with pytest.raises(openai.RateLimitError) as caught:
            await ai.with_options(max_retries=0).completions.create(model=MODEL, prompt="hello")
        assert caught.value.response.headers["retry-after"] == "1"
        assert caught.value.code == "queue_full"


async def test_prompts_that_fit_only_in_part_leave_nothing_behind(own_gateway, redis_url):
    url = own_gateway(max_queued_jobs=2)
    async with ScriptedWorker(redis_url):
        pass
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        reply = await http.post("/v1/completions", json={"model": MODEL, "prompt": ["a", "b", "c"]})
        assert (reply.status_code, reply.json()["error"]["type"]) == (429, "rate_limit_error")
        jobs = (await http.get("/v1/jobs")).json()["data"]
        assert [job["status"] for job in jobs] == ["cancelled", "cancelled"]


def test_a_token_in_front_of_the_prompt_has_no_place_in_its_text():
    """A model's begin token is scored with the prompt, but `echo` shows the text that was sent."""
    tokens = [
        TokenLogprob(token_id=i, token=token, logprob=None if i == 0 else -1.0)
        for i, token in enumerate([b"<|begin|>", b"T", b"\xc3", b"\xa9"])
    ]
    logprobs = CompletionLogprobs()
    logprobs.add_prompt(tokens, "Té")
    found = logprobs.take()
    assert found["text_offset"] == [0, 0, 1, 1]
    assert found["tokens"] == ["<|begin|>", "T", r"bytes:\xc3", r"bytes:\xa9"]


async def test_clients_do_not_retry_a_job_that_has_failed(http, worker):
    refused = await http.post("/v1/completions", json={"model": "toy", "prompt": "x" * 999})
    assert (refused.status_code, refused.headers["x-should-retry"]) == (400, "false")
