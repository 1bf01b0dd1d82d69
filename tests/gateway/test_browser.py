"""A real browser: a page of another origin reads one job with a token and resumes; a stranger's page does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx
import pytest
from browser import STRANGER, page
from gateway_process import GatewayProcess
from scripted_worker import MODEL, ScriptedWorker, whole_text
from waiting import STALL_S

from octavo import AsyncClient
from octavo.service.server import free_port

pytestmark = [pytest.mark.browser, pytest.mark.full]

TOKENS = 120
SECRET = "a secret of the tests, long enough for one"
KEY = {"Authorization": "Bearer a-key"}

READ = """
let text = "";
const events = new EventSource(given.stream);
events.addEventListener("token", (event) => {
  text += JSON.parse(event.data).text;
  if (event.lastEventId === "20") told({ step: "streaming" });
});
await new Promise((resolve) => events.addEventListener("done", resolve));
events.close();
const log = await (await fetch(given.log)).json();
const status = async (url, options) => {
  try { return (await fetch(url, options)).status; } catch { return "refused"; }
};
await told({
  step: "done", text, log: log.map((message) => message.text ?? "").join(""),
  other: await status(given.other),
  wrong: await status(given.stream + "x"),
  open: await status(given.job),
  erase: await status(given.job + "?" + given.stream.split("?")[1], { method: "DELETE" }),
  submit: await status(given.jobs, { method: "POST", body: given.body }),
});
"""

PRESS = """
const found = {};
const attempt = async (name, options) => {
  try {
    const reply = await fetch(given.jobs, options);
    found[name] = reply.status;
  } catch { found[name] = "refused"; }
};
const body = given.body, json = { "Content-Type": "application/json" };
await attempt("get", {});
await attempt("post", { method: "POST", headers: json, body });
await attempt("plain", { method: "POST", body });
await attempt("blind", { method: "POST", mode: "no-cors", body });
await told(found);
"""


async def next_of(told: SimpleQueue[Any]) -> Any:
    return await asyncio.to_thread(told.get, timeout=STALL_S)


async def test_a_page_reads_one_job_with_a_token_and_resumes_after_a_kill(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_SECRET", SECRET)
    port = free_port()
    flags = ("--api-keys", "acme:a-key", "--port", str(port))
    gateway = GatewayProcess(redis_url, tmp_path / "1", *flags)
    worker = ScriptedWorker(redis_url, hold_after=TOKENS // 2)
    async with worker, httpx.AsyncClient(timeout=STALL_S) as http:
        jobs = f"{await gateway.url()}/v1/jobs"
        asked = {"model": MODEL, "prompt": "x", "sampling": {"max_tokens": TOKENS}}
        one, other = [(await http.post(jobs, json=asked, headers=KEY)).json()["id"] for _ in range(2)]
        made = (await http.post(f"{jobs}/{one}/token", headers=KEY)).json()
        stream, log = (f"http://127.0.0.1:{port}{made['links'][name]}" for name in ("stream", "log"))
        given = {"stream": stream, "log": log, "job": f"{jobs}/{one}", "jobs": jobs, "body": '{"model": "toy"}'}
        with page(READ, tmp_path / "profile", other=stream.replace(one, other), **given) as told:
            assert await next_of(told) == {"step": "streaming"}
            gateway.kill()
            with GatewayProcess(redis_url, tmp_path / "2", *flags) as second:
                await second.url()
                worker.go.set()
                done = await next_of(told)
    assert done == {
        "step": "done",
        "text": whole_text(TOKENS),
        "log": whole_text(TOKENS),
        "other": 401,
        "wrong": 401,
        "open": "refused",
        "erase": "refused",
        "submit": "refused",
    }


@pytest.mark.parametrize(
    ("host", "found", "jobs"),
    [
        (STRANGER, {"get": "refused", "post": "refused", "plain": "refused", "blind": "refused"}, 0),
        ("localhost", {"get": 200, "post": 202, "plain": 415, "blind": "refused"}, 1),
    ],
)
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_pages_of_this_machine_alone_press_buttons(
    own_gateway: Callable[..., str],
    redis_url: str,
    tmp_path: Path,
    host: str,
    found: dict[str, Any],
    jobs: int,
    name: str,
) -> None:
    url = own_gateway().replace("127.0.0.1", name)
    async with ScriptedWorker(redis_url), AsyncClient(redis_url) as client:
        given = {"jobs": f"{url}/v1/jobs", "body": '{"model": "toy", "prompt": "x"}'}
        with page(PRESS, tmp_path / "profile", host=host, **given) as told:
            assert await next_of(told) == found
        assert len(await client.jobs()) == jobs, "what the page may not read counts as well"


async def test_a_name_that_was_made_to_point_here_is_not_answered(
    own_gateway: Callable[..., str], redis_url: str, tmp_path: Path
) -> None:
    """A page of a name that points here asks its own origin."""
    url = own_gateway().replace("127.0.0.1", STRANGER)
    frame = """
    const frame = document.body.appendChild(Object.assign(document.createElement("iframe"), { src: given.url }));
    await new Promise((resolve) => frame.addEventListener("load", resolve));
    await told({ loaded: true });
    """
    async with ScriptedWorker(redis_url), httpx.AsyncClient(timeout=STALL_S) as http:
        with page(frame, tmp_path / "profile", host=STRANGER, url=f"{url}/v1/jobs") as told:
            assert await next_of(told) == {"loaded": True}
        metrics = (await http.get(f"{url.replace(STRANGER, '127.0.0.1')}/metrics")).text
    assert [line for line in metrics.splitlines() if "http_requests" in line and 'status="403"' in line]
    assert not [line for line in metrics.splitlines() if "http_requests" in line and 'path="/v1/jobs"' in line]
