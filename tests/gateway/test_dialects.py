"""One log, several dialects: the gateway that serves a stream is killed in its midst, another one goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from gateway_process import GatewayProcess
from scripted_worker import MODEL, ScriptedWorker, whole_text
from sse import read_events
from waiting import STALL_S

TOKENS = 400
JOB = {"model": MODEL, "prompt": "hello", "sampling": {"max_tokens": TOKENS}}
CHAT = {
    "id": "chat",
    "messages": [{"role": "user", "parts": [{"type": "text", "text": "hi"}]}],
    "model": MODEL,
    "max_tokens": TOKENS,
}


class Resumed:
    """A reader in one dialect. `read` gives texts until the stream ends or breaks; read again it goes on."""

    ended = False

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def start(self, http: httpx.AsyncClient) -> None:
        self.links = (await http.post("/v1/jobs", json=JOB)).json()["links"]

    def read(self, http: httpx.AsyncClient) -> AsyncIterator[str]:
        raise NotImplementedError

    async def read_until_killed(self, http: httpx.AsyncClient, gateway: GatewayProcess) -> None:
        async for text in self.read(http):
            self.texts.append(text)
            if sum(map(len, self.texts)) > len(whole_text(TOKENS)) // 4:
                gateway.kill()

    async def read_on(self, http: httpx.AsyncClient) -> None:
        while not self.ended:
            async for text in self.read(http):
                self.texts.append(text)

    def whole(self) -> str:
        return "".join(self.texts)


class ServerSentEvents(Resumed):
    last_id = "0"

    async def read(self, http: httpx.AsyncClient) -> AsyncIterator[str]:
        async with http.stream("GET", self.links["stream"], headers={"Last-Event-ID": self.last_id}) as reply:
            async for event in read_events(reply):
                self.last_id = event.id or self.last_id
                self.ended |= event.event == "done"
                if event.event == "token":
                    yield event.data["text"]


class DurableEvents(Resumed):
    offset = "-1"

    async def read(self, http: httpx.AsyncClient) -> AsyncIterator[str]:
        messages: list[Any] = []
        async with http.stream("GET", self.links["log"], params={"offset": self.offset, "live": "sse"}) as reply:
            name = ""
            async for line in reply.aiter_lines():
                name = line.removeprefix("event: ") if line.startswith("event: ") else name
                if line.startswith("data:") and name == "data":
                    messages = json.loads(line.removeprefix("data:"))
                elif line.startswith("data:"):  # with the offset behind them the messages count as read
                    control = json.loads(line.removeprefix("data:"))
                    self.offset, self.ended = control["streamNextOffset"], control.get("streamClosed", False)
                    yield "".join(message.get("text", "") for message in messages)
                    messages = []


class DurablePolls(Resumed):
    offset = "-1"

    async def read(self, http: httpx.AsyncClient) -> AsyncIterator[str]:
        while not self.ended:
            reply = await http.get(self.links["log"], params={"offset": self.offset, "live": "long-poll"})
            text = "".join(message.get("text", "") for message in reply.json()) if reply.content else ""
            self.offset, self.ended = reply.headers["stream-next-offset"], "stream-closed" in reply.headers
            yield text


class Chat(Resumed):
    """Gets its answer from the beginning again."""

    started = False

    async def start(self, http: httpx.AsyncClient) -> None:
        pass

    async def read(self, http: httpx.AsyncClient) -> AsyncIterator[str]:
        asked = ("GET", "/v1/chat/chat/stream") if self.started else ("POST", "/v1/chat")
        async with http.stream(*asked, json=None if self.started else CHAT) as reply:
            assert reply.status_code == 200
            self.started = True
            yield "\0"
            async for line in reply.aiter_lines():
                self.ended |= line == "data: [DONE]"
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: ")).get("delta", "")

    def whole(self) -> str:
        _, *broken, last = "".join(self.texts).split("\0")
        assert broken
        assert all(last.startswith(text) for text in broken)
        return last


@pytest.mark.full(but=1)
@pytest.mark.parametrize("dialect", [ServerSentEvents, DurableEvents, DurablePolls, Chat])
async def test_a_stream_goes_on_at_another_gateway(redis_url, tmp_path, dialect):
    reader = dialect()
    async with ScriptedWorker(redis_url, pace=0.002) as worker:
        with GatewayProcess(redis_url, tmp_path / "1") as first, GatewayProcess(redis_url, tmp_path / "2") as second:
            async with (
                httpx.AsyncClient(base_url=await first.url(), timeout=STALL_S) as http,
                httpx.AsyncClient(base_url=await second.url(), timeout=STALL_S) as other,
            ):
                await reader.start(http)
                with pytest.raises(httpx.TransportError):
                    await reader.read_until_killed(http, first)
                await reader.read_on(other)
        assert len(worker.seen) == 1
    assert reader.whole() == whole_text(TOKENS)
