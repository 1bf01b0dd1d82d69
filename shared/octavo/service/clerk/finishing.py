"""The end of a batch: its parts become its files."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

from octavo.queue.batches.calls import NewFile, Part
from octavo.queue.batches.keys import FILE, new_id
from octavo.queue.batches.reading import read_parts
from octavo.service.clerk.desk import Desk, Lost
from octavo.service.storage.places import file_name, part_names, parts_folder
from octavo.terms.batches import BatchInfo, BatchStatus

_PURPOSE = "batch_output"


async def finish(desk: Desk, batch: BatchInfo, token: str) -> None:
    """Put the files together and end the batch. Raises Lost."""
    with desk.client.errors():
        parts = await read_parts(desk.client.redis, desk.client.keys, batch.id)
    out = await _joined(desk, batch, parts, 0, "output")
    err = await _joined(desk, batch, parts, 1, "error")
    state = _final(batch)
    outcome = await desk.client.run(desk.client.cell.finish(batch.id, token, state, out=out, err=err))
    if outcome != "ok":
        for file in (out, err):
            if file is not None:
                await desk.storage.delete(file_name(file.id))
    if outcome == "fenced":
        raise Lost
    if outcome == "ok":
        desk.metrics.ended.labels(state.value).inc()
        await remove_parts(desk, batch.id)


async def remove_parts(desk: Desk, batch_id: str) -> int:
    """Remove all parts of a batch that has ended, also those that never counted. How many files they were."""
    names = await desk.storage.names(parts_folder(batch_id))
    for name in names:
        await desk.storage.delete(name)
    return len(names)


def _final(batch: BatchInfo) -> BatchStatus:
    if batch.status is BatchStatus.CANCELLING:
        return BatchStatus.CANCELLED
    executed = batch.completed + batch.failed
    return BatchStatus.COMPLETED if executed == batch.total else BatchStatus.EXPIRED


async def _joined(desk: Desk, batch: BatchInfo, parts: list[Part], kind: int, word: str) -> NewFile | None:
    """The concatenation of the named parts, or None if it would be empty."""
    size = sum(part.err if kind else part.out for part in parts)
    if not size:
        return None
    file_id, digest = new_id(FILE), hashlib.sha256()

    async def pieces() -> AsyncIterator[bytes]:
        for part in parts:
            if part.err if kind else part.out:
                async for piece in desk.storage.read(part_names(batch.id, part.name)[kind]):
                    digest.update(piece)
                    yield piece

    await desk.storage.put(file_name(file_id), pieces())
    name = f"{batch.id}_{word}.jsonl"
    return NewFile(file_id, batch.tenant, name, _PURPOSE, size, digest.hexdigest(), batch.output_expires_s)
