"""The mark that a storage and the queue share."""

from __future__ import annotations

import secrets

from octavo.client.batches import BatchClient
from octavo.service.storage.interface import Storage
from octavo.terms.errors import StorageUnavailable


async def check_mark(storage: Storage, client: BatchClient) -> None:
    """Raises StorageUnavailable for a storage that is not the one of the other processes on this queue: half of all
    files would be missing there."""
    own = (await storage.first("mark", secrets.token_hex(16).encode())).decode(errors="replace")
    if await client.mark(own) != own:
        raise StorageUnavailable(
            "the files here are not those of the other gateways on this server: give all the same OCTAVO_FILES",
            code="files_elsewhere",
        )
