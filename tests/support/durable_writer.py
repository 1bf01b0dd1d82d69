"""A server of Durable Streams for its public tests: what is written becomes tokens of jobs, what is read comes from a
gateway.

A stream is a job, a message is a token whose text it is. Status and headers of reads are the gateway's; of its messages
the texts are passed on, in the stream's own content type.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx
import redis.asyncio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from octavo import AsyncClient
from octavo.queue.calls import run
from octavo.queue.keys import Keys
from octavo.queue.protocol import Append, Cell, Claim
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage

MODEL = "written"
CELL = Cell()
JSON = "application/json"
SECURITY = {"X-Content-Type-Options": "nosniff"}
DROPPED = ("content-length", "transfer-encoding", "connection", "date", "server")


@dataclass
class Written:
    """One stream."""

    claim: Claim
    content_type: str
    tokens: int = 0
    closed: bool = False

    @property
    def offset(self) -> str:
        return f"{self.tokens:012d}{'_1' if self.closed else ''}"

    @property
    def is_json(self) -> bool:
        return self.content_type.partition(";")[0].strip().lower() == JSON


class DurableWriter:
    """The application; `client` and `connection` go to the server of the gateway at `gateway`."""

    def __init__(self, gateway: str, client: AsyncClient, connection: redis.asyncio.Redis) -> None:
        self._http = httpx.AsyncClient(base_url=gateway, timeout=None)
        self._client = client
        self._connection = connection
        self._streams: dict[str, Written] = {}
        methods = {"PUT": self._create, "POST": self._append, "GET": self._read, "HEAD": self._read}

        async def serve(request: Request) -> Response:
            return await methods[request.method](request)

        routes = [Route("/{path:path}", serve, methods=list(methods))]
        cors = Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"])
        self.app = Starlette(routes=routes, middleware=[cors])

    async def _create(self, request: Request) -> Response:
        path = request.url.path
        content_type = request.headers.get("content-type", "application/octet-stream")
        created = path not in self._streams
        if created:
            job = await self._client.submit("x", model=MODEL)
            call = CELL.claim(MODEL, "w", max_jobs=1, max_tokens=1 << 20, lease_ms=600_000, idle=True)
            (claim,) = (await run(self._connection, call)).jobs
            assert claim.job_id == job.id
            self._streams[path] = Written(claim, content_type)
        return await self._take(request, self._streams[path], 201 if created else 200)

    async def _append(self, request: Request) -> Response:
        stream = self._streams.get(request.url.path)
        return Response(status_code=404) if stream is None else await self._take(request, stream, 204)

    async def _take(self, request: Request, stream: Written, status: int) -> Response:
        body = await request.body()
        for text in _messages(body.decode(), stream):
            await self._token(stream, text)
        if request.headers.get("stream-closed", "").lower() == "true" and not stream.closed:
            end = Terminal(status=JobStatus.COMPLETED, usage=Usage(1, stream.tokens))
            await run(self._connection, CELL.finish(stream.claim.job_id, stream.claim.token, end, b""))
            stream.closed = True
        closed = {"Stream-Closed": "true"} if stream.closed else {}
        where = {"Location": str(request.url)} if status == 201 else {}
        headers = {**SECURITY, **where, **closed, "Stream-Next-Offset": stream.offset}
        return Response(status_code=status, headers={**headers, "Content-Type": stream.content_type})

    async def _token(self, stream: Written, text: str) -> None:
        chunk = Chunk(token_ids=(1,), texts=(text,))
        call = CELL.append([Append(stream.claim.job_id, stream.claim.token, stream.tokens, chunk)])
        (reply,) = await run(self._connection, call)
        assert reply.state == "ok"
        stream.tokens += 1

    async def _read(self, request: Request) -> Response:
        stream = self._streams.get(request.url.path)
        job_id = Keys().new_job_id() if stream is None else stream.claim.job_id
        asked = self._http.build_request(
            request.method,
            f"/v1/jobs/{job_id}/log?{request.url.query}",
            headers=[(name, value) for name, value in request.headers.items() if name == "if-none-match"],
        )
        reply = await self._http.send(asked, stream=True)
        headers = {name: value for name, value in reply.headers.items() if name not in DROPPED}
        if headers.get("content-type") == "text/event-stream" and stream is not None:
            return StreamingResponse(_events(reply, stream), reply.status_code, headers)
        body = await reply.aread()
        await reply.aclose()
        if reply.is_success and stream is not None:
            if request.method == "GET" and reply.status_code == 200:
                body = _body(json.loads(body), stream)
            headers["content-type"] = stream.content_type
        return Response(body, reply.status_code, headers)


def _messages(body: str, stream: Written) -> list[str]:
    if not body:
        return []
    if not stream.is_json:
        return [body]
    value = json.loads(body)
    return [json.dumps(one) for one in (value if isinstance(value, list) else [value])]


def _body(messages: list[dict[str, Any]], stream: Written) -> bytes:
    texts = [message["text"] for message in messages if "text" in message]
    return (f"[{','.join(texts)}]" if stream.is_json else "".join(texts)).encode()


async def _events(reply: httpx.Response, stream: Written) -> Any:
    """The data events with what was written in place of tokens, each in one piece with its control event. An event of
    the end alone holds nothing of it."""
    name = data = ""
    async for line in reply.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data:") and name == "data":
            text = _body(json.loads(line.removeprefix("data:")), stream).decode()
            lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            shown = text not in ("", "[]")
            data = "event: data\n" + "".join(f"data:{part}\n" for part in lines) + "\n" if shown else ""
        elif line.startswith("data:"):
            yield f"{data}event: control\n{line}\n\n"
            data = ""
    await reply.aclose()
