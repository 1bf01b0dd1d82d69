"""A clerk that runs beside a test, and files of lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
from scripted_worker import MODEL
from waiting import STALL_S

from octavo.client.batches import BatchClient
from octavo.service.clerk.clerk import Clerk
from octavo.service.clerk.desk import Desk
from octavo.service.storage import open_storage

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


@asynccontextmanager
async def working(url: str, folder: Path) -> AsyncIterator[Desk]:
    """A clerk in this event loop."""
    async with BatchClient(url) as client:
        desk = Desk(client, open_storage(str(folder)))
        task = asyncio.create_task(Clerk(desk, 15.0).run())
        try:
            yield desk
        finally:
            task.cancel()
            await asyncio.wait([task])


def body_of(url: str, text: str, **fields: Any) -> dict[str, Any]:
    match url:
        case "/v1/chat/completions":
            body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": 3}
        case "/v1/completions":
            body = {"prompt": text, "max_tokens": 3}
        case _:
            body = {"input": text, "max_output_tokens": 3}
    return {"model": MODEL, **body, **fields}


def line(custom_id: str, text: str = "hello", *, url: str = TEXT, **fields: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body_of(url, text, **fields)}


def encoded(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


async def begin(ai: openai.AsyncOpenAI, data: bytes, *, url: str = TEXT, window: str = "24h", **fields: Any) -> Any:
    """A batch of a file."""
    file = await ai.files.create(file=("in.jsonl", data), purpose="batch")
    return await ai.batches.create(
        input_file_id=file.id, endpoint=url, completion_window=window, **fields  # type: ignore[arg-type]
    )  # fmt: skip


async def reach(ai: openai.AsyncOpenAI, batch_id: str, *states: str) -> Any:
    """The batch, once it is in one of the states."""
    async with asyncio.timeout(STALL_S):
        while True:
            batch = await ai.batches.retrieve(batch_id)
            if batch.status in states:
                return batch
            assert batch.status not in ("completed", "failed", "expired", "cancelled"), batch
            await asyncio.sleep(0.05)


async def lines_of(ai: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of an output or error file, none of no file."""
    if file_id is None:
        return []
    return [json.loads(text) for text in (await ai.files.content(file_id)).content.splitlines()]
