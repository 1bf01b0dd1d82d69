"""`/v1/jobs/{job_id}/log`: a job's log as a durable stream, whole, by long polling, or as server-sent events."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from octavo.queue.pages import Page
from octavo.terms.errors import JobNotFound
from octavo_gateway.durable.answers import (
    CURSOR,
    NOT_CACHED,
    batch_events,
    batch_headers,
    cache_headers,
    headers_of,
    next_cursor,
)
from octavo_gateway.durable.log import Batch, Offset, batch_of_events, batch_of_page
from octavo_gateway.errors import ApiError
from octavo_gateway.http.streams import EventStream, Mailbox, unless_disconnected, unless_draining
from octavo_gateway.jobs.readers import CurrentReader, Reader
from octavo_gateway.state import Gateway

MOST_MESSAGES = 4096
"""Most messages of one answer: a reader asks again for more."""

CONNECTION_S = 60.0
"""Longest time of a live stream's connection, as the protocol recommends; its reader connects again."""

_JSON = {"Content-Type": "application/json"}

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.head("/{job_id}/log", include_in_schema=False)
async def tail(request: Request, job_id: str, reader: CurrentReader) -> Response:
    """Where the log ends now, and whether it ends for good."""
    end = await JobLog(request, job_id, reader).tail()
    headers = headers_of(end, up_to_date=False, closed=end.ended)
    return Response(headers={**_JSON, **NOT_CACHED, **headers})


@router.get(
    "/{job_id}/log",
    response_class=JSONResponse,
    responses={
        204: {"description": "Nothing came while a long poll waited, or nothing will: `Stream-Closed`."},
        200: {"content": {"text/event-stream": {}}},
    },
)
async def read(
    request: Request,
    job_id: str,
    reader: CurrentReader,
    offset: Annotated[
        str | None, Query(description="`Stream-Next-Offset` of an earlier answer; `-1`: the beginning; `now`: the end.")
    ] = None,
    live: Annotated[
        Literal["long-poll", "sse"] | None, Query(description="Wait for what is not there yet; needs an offset.")
    ] = None,
    cursor: Annotated[str | None, Query(description="`Stream-Cursor` of an earlier answer.")] = None,
) -> Response:
    """A job's log by the read protocol of Durable Streams: JSON messages, one a token and one at the end, like the data
    of the events of `/stream`. `400` for an offset without a meaning."""
    if len(request.query_params.getlist("offset")) > 1:
        raise _invalid_offset("several offsets: send one")
    if live is not None and offset is None:
        raise _invalid_offset(f"live={live} needs an offset: -1 is the beginning, now the end")
    log = JobLog(request, job_id, reader)
    if offset == "now":
        start = await log.tail()
    else:
        start = _parsed(offset)
    cursor = next_cursor(cursor)
    if live == "sse":
        return await log.streamed(start, cursor)
    if live == "long-poll":
        return await log.polled(start, cursor)
    if offset == "now":
        headers = headers_of(start, up_to_date=True, closed=start.ended)
        return Response("[]", headers={**_JSON, **NOT_CACHED, **headers})
    return log.answer(await log.batch(start), start)


class JobLog:
    """One request for the log of a job."""

    def __init__(self, request: Request, job_id: str, reader: Reader) -> None:
        self._request = request
        self._gateway: Gateway = request.state.gateway
        self._job_id = job_id
        self._reader = reader

    async def tail(self) -> Offset:
        """Raises JobNotFound."""
        info, end = await self._gateway.client.tail(self._job_id)
        self._reader.check(info)
        return Offset(end.offset, info.status.is_terminal, end.epoch)

    async def batch(self, start: Offset) -> Batch:
        """Messages that are stored beyond `start`. Raises JobNotFound, and ApiError for an offset without a meaning."""
        page = await self._gateway.client.page(self._job_id, start.position)
        self._reader.check(page.info)
        _check_offset(page, start)
        return batch_of_page(page, start, MOST_MESSAGES)

    def answer(self, batch: Batch, start: Offset, cursor: str | None = None) -> Response:
        """Messages as they are, or 304 for a client that has them."""
        headers = {**batch_headers(batch), **cache_headers(batch, self._job_id, start)}
        if cursor is not None:
            headers[CURSOR] = cursor
        if self._request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(batch.body, headers={**_JSON, **headers})

    async def polled(self, start: Offset, cursor: str) -> Response:
        """Messages as soon as there are any; 204 when there were none for `keep_alive` seconds, or will be none."""
        batch = await self.batch(start)
        if not batch.messages and not batch.closed:
            waiting = unless_draining(self._gateway, self._wait(batch.next))
            await unless_disconnected(self._request, waiting)
            batch = await self.batch(start)
        if batch.messages:
            return self.answer(batch, start, cursor)
        headers = {**batch_headers(batch), **NOT_CACHED, CURSOR: cursor}
        return Response(status_code=204, headers=headers)

    async def _wait(self, after: Offset) -> None:
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(self._gateway.settings.keep_alive),
                aclosing(self._gateway.client.events(self._job_id, after.position)) as events,
            ):
                async for event in events:
                    if event.progress is None:
                        return

    async def streamed(self, start: Offset, cursor: str) -> EventStream:
        """Messages as they come. The stream ends with the log, after a while, or when the gateway is to stop."""
        first = await self.batch(start)

        async def pump(mailbox: Mailbox) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(CONNECTION_S, self._reader.until - time.time())):
                    await unless_draining(self._gateway, self._follow(first, cursor, mailbox))

        return EventStream(self._request, pump)

    async def _follow(self, batch: Batch, cursor: str, mailbox: Mailbox) -> None:
        await mailbox.put(batch_events(batch, cursor))
        while not batch.up_to_date:
            batch = await self.batch(batch.next)
            await mailbox.put(batch_events(batch, cursor))
        if batch.closed:
            return
        with suppress(JobNotFound):  # the reader comes back, and is told
            async with aclosing(self._gateway.client.events(self._job_id, batch.next.position)) as events:
                async for event in events:
                    if event.reset:
                        return
                    if event.progress is None:
                        batch = batch_of_events([event], batch.next)
                        await mailbox.put(batch_events(batch, cursor))


def _parsed(offset: str | None) -> Offset:
    if offset is None or offset == "-1":
        return Offset()
    try:
        return Offset.parse(offset)
    except ValueError as error:
        raise _invalid_offset(f"{error}: send a Stream-Next-Offset, -1 or now") from None


def _check_offset(page: Page, start: Offset) -> None:
    if not page.holds:
        raise ApiError(
            410,
            "the server has forgotten tokens of this job since, and its sequences may be in another order: "
            "drop what was read, begin again at offset -1",
            code="offset_gone",
            param="offset",
        )
    last = Offset(page.info.tokens, ended=True)
    if page.info.status.is_terminal and (start > last or (start.ended and start != last)):
        raise _invalid_offset(f"the job ended after {page.info.tokens} tokens")


def _invalid_offset(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param="offset")
