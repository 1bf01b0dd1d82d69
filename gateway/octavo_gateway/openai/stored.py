"""Stored responses: the job and what is attached to it, found by the id of the response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from octavo import AsyncClient
from octavo.dialects.openai.responses.events import ResponseLog, status_now
from octavo.dialects.openai.responses.items import Item
from octavo.dialects.openai.responses.record import Record, job_of, job_of_item, response_id
from octavo.terms.errors import InvalidRequest, JobNotFound, MalformedMessage
from octavo.terms.models import JobInfo
from octavo_gateway.errors import ApiError

_MOST_REFERRED = 256

UNREAD = 1 << 62
"""More events than there are: a log read for its final response tells none of them."""


@dataclass(frozen=True)
class StoredResponse:
    """A response that its tenant may see. `info` is how its job stood when it was read."""

    info: JobInfo
    record: Record

    async def now(self, client: AsyncClient) -> dict[str, Any]:
        """The response object. Raises JobNotFound, MalformedMessage."""
        log = ResponseLog(self.record, self.info.id, after=UNREAD)
        if not self.info.status.is_terminal:
            return log.response(status_now(self.info))
        async with aclosing(client.events(self.info.id)) as events:
            async for event in events:
                if event.chunk is not None:
                    log.add(event.chunk)
                if event.end is not None:
                    log.end(event.end, self.info.finished_at)
        return log.final


async def find(client: AsyncClient, response: str, tenant: str) -> StoredResponse:
    """Raises ApiError 404."""
    try:
        return await _of_job(client, job_of(response), tenant)
    except (JobNotFound, MalformedMessage):
        message = f"no response {response[:60]!r}: it was not stored, was deleted, or has expired"
        raise ApiError(404, message, code="response_not_found", param="response_id") from None


async def conversation(client: AsyncClient, previous: str | None, tenant: str) -> list[Item]:
    """All items up to the end of a response. Raises InvalidRequest if there is no such response, or it goes on."""
    if previous is None:
        return []
    try:
        found = await _of_job(client, job_of(previous), tenant)
    except (JobNotFound, MalformedMessage):
        message = f"no response {previous[:60]!r}: it was not stored, was deleted, or has expired"
        raise InvalidRequest(message, code="previous_response_not_found", param="previous_response_id") from None
    if not found.info.status.is_terminal:
        message = f"{response_id(found.info.id)} has not ended: wait for it, or cancel it"
        raise InvalidRequest(message, code="previous_response_unfinished", param="previous_response_id")
    answer = await found.now(client)
    return [*found.record.items, *answer["output"]]


async def referred(
    client: AsyncClient, names: Iterable[str], earlier: Mapping[str, Item], tenant: str
) -> dict[str, Item]:
    """Items of this conversation, or that other responses put out, by their ids. Raises InvalidRequest."""
    found: dict[str, Item] = {}
    outputs: dict[str, dict[str, Item]] = {}  # by the job
    for name in names:
        job_id = job_of_item(name)
        if name not in earlier and job_id not in outputs:
            if len(outputs) >= _MOST_REFERRED:
                message = f"input refers to items of more than {_MOST_REFERRED} responses: send the items themselves"
                raise InvalidRequest(message, code="too_many_references", param="input")
            outputs[job_id] = await _output(client, job_id, tenant)
        item = earlier.get(name) or outputs[job_id].get(name)
        if item is None:
            message = f"no item {name[:60]!r}: its response was not stored, was deleted, has expired or goes on"
            raise InvalidRequest(message, code="item_not_found", param="input")
        found[name] = item
    return found


async def _output(client: AsyncClient, job_id: str, tenant: str) -> dict[str, Item]:
    """The output of a response, by id; nothing for one that is not there."""
    try:
        found = await _of_job(client, job_id, tenant)
        return {item["id"]: dict(item) for item in (await found.now(client))["output"]}
    except (JobNotFound, MalformedMessage):
        return {}


async def _of_job(client: AsyncClient, job_id: str, tenant: str) -> StoredResponse:
    """Raises JobNotFound, MalformedMessage."""
    info, attachment = await client.attachment(job_id)
    if info.tenant != tenant or attachment is None:
        raise JobNotFound("no response of this tenant")
    return StoredResponse(info, Record.decode(attachment))
