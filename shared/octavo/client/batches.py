"""The client of files and batches, for gateways and clerks."""

from __future__ import annotations

import secrets
import time
from typing import Any

from octavo.client.connection import QueueConnection
from octavo.queue.batches import reading
from octavo.queue.batches.calls import BatchCell, NewBatch, NewFile
from octavo.queue.batches.keys import BatchKeys
from octavo.queue.calls import Watch
from octavo.terms.batches import BatchInfo, BatchStatus, FileInfo


class BatchClient(QueueConnection):
    """Files and batches. Every method raises ServerUnavailable, and those that write raise QueueFull where the server's
    memory is."""

    def __init__(self, url: str | None = None, *, watch: Watch | None = None) -> None:
        super().__init__(url)
        self.keys = BatchKeys()
        self.cell = BatchCell(self.keys, watch)

    async def mark(self, mark: str) -> str:
        """The mark of the storage that all use; `mark`, if there was none."""
        async with self.asking() as connection:
            await connection.set(self.keys.mark, mark, nx=True)
            found: Any = await connection.get(self.keys.mark)
        return (found or b"").decode(errors="replace")

    async def note_file(self, file: NewFile, *, cap: int) -> FileInfo:
        """Make a file known whose bytes are stored. Raises QueueFull beyond `cap` bytes of its tenant."""
        return await self.run(self.cell.note_file(file, cap=cap))

    async def drop_file(self, file_id: str, *, tenant: str = "", expired: bool = False) -> str:
        """Forget a file: ok, used, or '' if there is none."""
        return await self.run(self.cell.drop_file(file_id, tenant=tenant, expired=expired))

    async def file(self, file_id: str) -> FileInfo | None:
        """A file, or None."""
        async with self.asking() as connection:
            return await reading.read_file(connection, self.keys, file_id)

    async def files(
        self,
        tenant: str,
        *,
        limit: int,
        after: str | None = None,
        newest_first: bool = True,
        purpose: str | None = None,
    ) -> list[FileInfo]:
        """Files of a tenant by time, beyond the file `after`."""
        with self.errors():
            return await reading.list_files(
                self.redis, self.keys, tenant, limit=limit, after=after, newest_first=newest_first, purpose=purpose
            )

    async def create(self, new: NewBatch, *, idempotency_key: str | None = None) -> BatchInfo | None:
        """Accept a batch. None: it was removed meanwhile. Raises InvalidRequest, IdempotencyConflict."""
        return await self.batch(await self.run(self.cell.create(new, idempotency_key=idempotency_key)))

    async def batch(self, batch_id: str) -> BatchInfo | None:
        """A batch, or None."""
        async with self.asking() as connection:
            return await reading.read_batch(connection, self.keys, batch_id)

    async def batches(self, tenant: str, *, limit: int, after: str | None = None) -> list[BatchInfo]:
        """Batches of a tenant, newest first, older than the batch `after`."""
        with self.errors():
            return await reading.list_batches(self.redis, self.keys, tenant, limit=limit, after=after)

    async def batches_open(self) -> tuple[int, int]:
        """How many batches that have not ended a clerk owns, and how many wait for one."""
        async with self.asking() as connection:
            owned: Any = await connection.zcard(self.keys.leases)
            waiting: Any = await connection.zcount(self.keys.due, "-inf", int(time.time() * 1000))
        return owned, waiting

    async def cancel(self, batch_id: str, *, tenant: str) -> BatchStatus | None:
        """Ask for a batch's end. Its state now, None for no batch of the tenant's."""
        state = await self.run(self.cell.cancel(batch_id, tenant=tenant))
        return BatchStatus(state) if state else None


def new_token() -> str:
    """A random token of an owner."""
    return secrets.token_hex(16)
