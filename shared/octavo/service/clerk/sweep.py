"""Removal of what has expired, and of what no record names any more; the account of usage, folded."""

from __future__ import annotations

import asyncio
import logging
import time

from octavo.queue.batches.keys import BATCH, FILE, is_id, made_at
from octavo.queue.batches.reading import read_expired
from octavo.queue.tenants.usage import UsageCell
from octavo.service.clerk.desk import Desk
from octavo.service.clerk.finishing import remove_parts
from octavo.service.storage.places import FILES, PARTS, file_name

log = logging.getLogger(__name__)

_AT_ONCE = 1000
_PAUSE_S = 0.01  # for others to be served
_NOT_YET_NAMED_S = 86_400  # an upload has its record at its end


async def remove_expired(desk: Desk) -> None:
    """Files whose time is over, unless a batch reads them."""
    with desk.client.errors():
        due = await read_expired(desk.client.redis, desk.client.keys, desk.now(), _AT_ONCE)
    for file_id in due:
        if await desk.client.drop_file(file_id, expired=True) == "ok":
            await desk.storage.delete(file_name(file_id))
            desk.metrics.expired_files.inc()


async def fold_usage(desk: Desk) -> None:
    """Minutes that are over become hours, hours days."""
    folded = 1
    while folded:
        folded = await desk.client.run(UsageCell(desk.client.keys.keys).fold())
        await asyncio.sleep(_PAUSE_S)


async def remove_unnamed(desk: Desk) -> None:
    """Bytes of files without a record, and parts of batches that have ended."""
    removed = 0
    for name in await desk.storage.names(FILES):
        file_id = name.rpartition("/")[2]
        if _is_old(FILE, file_id) and await desk.client.file(file_id) is None:
            await desk.storage.delete(name)
            removed += 1
    for batch_id in {name.split("/")[1] for name in await desk.storage.names(PARTS)}:
        batch = await desk.client.batch(batch_id)
        if batch.status.is_terminal if batch is not None else _is_old(BATCH, batch_id):
            removed += await remove_parts(desk, batch_id)
    if removed:
        log.info("removed %d objects that nothing names", removed)


def _is_old(kind: str, name: str) -> bool:
    return is_id(kind, name) and made_at(name) < time.time() - _NOT_YET_NAMED_S
