"""`/v1/files`: upload, list, retrieve, download, delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse

from octavo.dialects.openai.batch.objects import file_object
from octavo.queue.batches.keys import FILE, is_id, new_id
from octavo.service.storage.interface import NotStored
from octavo.service.storage.places import file_name
from octavo.terms.errors import InvalidRequest
from octavo_gateway.auth import CurrentTenant
from octavo_gateway.errors import ApiError
from octavo_gateway.files.kept import Kept, kept, no_file
from octavo_gateway.files.ranges import span_of
from octavo_gateway.files.upload import Upload, described_form
from octavo_gateway.state import Gateway

MOST_LISTED = 10_000

router = APIRouter(prefix="/v1/files", tags=["files"])

Files = Annotated[Kept, Depends(kept)]


@router.post("", openapi_extra=described_form())
async def create(request: Request, tenant: CurrentTenant, files: Files) -> dict[str, Any]:
    """Keep a file. It streams into the storage; nothing is left of an upload that breaks off."""
    gateway: Gateway = request.state.gateway
    storage = await files.storage()
    upload, file_id = Upload(request), new_id(FILE)
    try:
        await storage.put(file_name(file_id), upload.pieces())
        cap = gateway.settings.max_files_bytes_per_tenant
        info = await files.client.note_file(upload.file(file_id, tenant), cap=cap)
    except BaseException:
        await asyncio.shield(gateway.spawn(storage.delete(file_name(file_id))))
        raise
    return file_object(info)


@router.get("")
async def index(
    tenant: CurrentTenant,
    files: Files,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = MOST_LISTED,
    order: Literal["asc", "desc"] = "desc",
    purpose: Annotated[str | None, Query(max_length=64)] = None,
) -> dict[str, Any]:
    """The tenant's files by time; `after` is the last id of the previous page. `400` for what is none."""
    await files.storage()
    if after is not None and not is_id(FILE, after):
        raise InvalidRequest("after must be the id of a file", code="invalid_value", param="after")
    found = await files.client.files(
        tenant, limit=limit + 1, after=after, newest_first=order == "desc", purpose=purpose
    )
    return page([file_object(info) for info in found[:limit]], has_more=len(found) > limit)


def page(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A list as the API shows it."""
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **ends, "has_more": has_more}


@router.get("/{file_id}")
async def show(tenant: CurrentTenant, files: Files, file_id: str) -> dict[str, Any]:
    """The file, without its content."""
    await files.storage()
    return file_object(await files.own(file_id, tenant))


@router.delete("/{file_id}")
async def delete(tenant: CurrentTenant, files: Files, file_id: str) -> dict[str, Any]:
    """Forget a file, and remove its bytes. The input of a batch stays until the batch has ended: `409`. `404` for
    no file of the tenant."""
    storage = await files.storage()
    await files.own(file_id, tenant)
    outcome = await files.client.drop_file(file_id, tenant=tenant)
    if outcome == "used":
        message = "a batch that has not ended reads this file: cancel it, or wait for its end"
        raise ApiError(409, message, code="file_in_use", headers={"x-should-retry": "false"})
    if outcome != "ok":
        raise no_file(file_id)
    await storage.delete(file_name(file_id))
    return {"id": file_id, "object": "file", "deleted": True}


@router.get("/{file_id}/content", response_class=StreamingResponse)
async def content(request: Request, tenant: CurrentTenant, files: Files, file_id: str) -> Response:
    """The bytes of a file, or the range of them that is asked for."""
    storage = await files.storage()
    info = await files.own(file_id, tenant)
    span = span_of(request.headers.get("range"), info.size)
    start, end = span or (0, info.size)
    headers = {
        "Content-Length": str(end - start),
        "Content-Disposition": f'attachment; filename="{file_id}.jsonl"',  # its name is a tenant's text
        "Accept-Ranges": "bytes",
        "ETag": f'"{info.digest}"',
    }
    if span is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{info.size}"
    pieces = storage.read(file_name(file_id), start, end)
    try:
        first = await anext(pieces, b"")
    except NotStored:
        raise no_file(file_id) from None

    async def all_pieces() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    status = 200 if span is None else 206
    return StreamingResponse(all_pieces(), status, headers, media_type="application/octet-stream")
