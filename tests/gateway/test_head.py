"""HEAD is answered wherever GET is."""

from __future__ import annotations

import re

import httpx
import pytest
from exposition import sample
from scripted_worker import MODEL, ScriptedWorker
from waiting import STALL_S, until

from octavo_gateway.operations import OPERATIONS

PATHS = sorted({"/", "/docs", "/openapi.json", *(path for method, path in OPERATIONS if method == "get")})


@pytest.mark.parametrize("path", PATHS)
async def test_head_has_the_headers_of_get_and_no_body(http, redis_url, path):
    async with ScriptedWorker(redis_url):
        job = (await http.post("/v1/jobs", json={"model": MODEL, "prompt": "a", "sampling": {"max_tokens": 2}})).json()

        async def ended() -> bool:
            return (await http.get(job["links"]["self"])).json()["status"] == "completed"

        await until(ended)
        response = (await http.post("/v1/responses", json={"model": MODEL, "input": "a"})).json()
        values = {
            "response_id": response["id"],
            "job_id": job["id"],
            "name": MODEL,
            "worker_id": "scripted",
            "chat_id": "none",
            "file_id": "file-none",
            "batch_id": "batch_none",
        }
        path = re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], "none"), path)
        head = await http.head(path)
        async with http.stream("GET", path) as get:  # of which some never end
            pass
        assert head.content == b""
        assert head.status_code == get.status_code
        assert head.headers.get("content-type") == get.headers.get("content-type")
        assert head.headers["x-content-type-options"] == "nosniff"


async def test_head_of_a_live_stream_ends_at_once(http, redis_url):
    async with ScriptedWorker(redis_url, hold_after=1):
        job = (await http.post("/v1/jobs", json={"model": MODEL, "prompt": "a"})).json()
        head = await http.head(job["links"]["stream"])
        assert (head.status_code, head.headers["content-type"], head.content) == (200, "text/event-stream", b"")

        async def over() -> bool:  # while the job's own stream has not ended
            return sample((await http.get("/metrics")).text, "octavo_sse_connections") == 0

        await until(over)


async def test_head_needs_the_key_that_get_needs(own_gateway):
    async with httpx.AsyncClient(base_url=own_gateway(api_keys="acme:a-key"), timeout=STALL_S) as http:
        for path in ("/v1/jobs", "/v1/models", "/metrics", "/docs"):
            assert (await http.head(path)).status_code == 401
        assert (await http.head("/metrics", headers={"Authorization": "Bearer a-key"})).status_code == 403
