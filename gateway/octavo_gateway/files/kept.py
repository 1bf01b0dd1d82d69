"""The files that this gateway keeps: their storage, once it is known to be that of all, and a tenant's own ones."""

from __future__ import annotations

import logging
import time

from fastapi import Request

from octavo.client.batches import BatchClient
from octavo.service.storage import open_storage
from octavo.service.storage.interface import Storage
from octavo.service.storage.mark import check_mark
from octavo.terms.batches import FileInfo
from octavo.terms.errors import OctavoError
from octavo_gateway.errors import ApiError

log = logging.getLogger(__name__)


class Kept:
    """One a gateway process. `place` None: it keeps no files. Raises OctavoError for a place that cannot be used."""

    def __init__(self, place: str | None, client: BatchClient) -> None:
        self.client = client
        self._storage = None if place is None else open_storage(place)
        self._is_checked = False

    async def storage(self) -> Storage:
        """Raises ApiError 501 without a storage, StorageUnavailable for one that is not that of the other gateways."""
        if self._storage is None:
            message = "this gateway keeps no files: set OCTAVO_FILES to a folder or to the address of an object store"
            raise ApiError(501, message, code="files_not_configured", headers={"x-should-retry": "false"})
        if not self._is_checked:
            try:
                await check_mark(self._storage, self.client)
            except OctavoError as error:
                log.warning("%s", error)
                raise
            self._is_checked = True
        return self._storage

    async def batches_open(self) -> tuple[int, int]:
        """How many batches a clerk owns, and how many wait for one. Without the server: none."""
        try:
            return await self.client.batches_open()
        except OctavoError:
            return 0, 0

    async def own(self, file_id: str, tenant: str, *, param: str = "file_id") -> FileInfo:
        """A file of the tenant. Raises ApiError 404."""
        info = await self.client.file(file_id)
        if info is None or info.tenant != tenant or (info.expires_at is not None and info.expires_at <= time.time()):
            raise no_file(file_id, param)
        return info


def no_file(file_id: str, param: str = "file_id") -> ApiError:
    """404 for a file: that there is one of another tenant is that tenant's business."""
    message = f"no file {file_id[:60]!r}: it was never uploaded, was deleted, or has expired"
    return ApiError(404, message, code="file_not_found", param=param)


def kept(request: Request) -> Kept:
    """A FastAPI dependency."""
    files: Kept = request.state.gateway.files
    return files
