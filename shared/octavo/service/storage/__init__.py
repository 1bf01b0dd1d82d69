"""Storage of files: one small interface, a folder or an object store behind it. It knows names and bytes; owners,
limits and expiry are the queue's business."""

from __future__ import annotations

from octavo.service.storage.folder import FolderStorage
from octavo.service.storage.interface import Storage
from octavo.terms.errors import OctavoError


def open_storage(place: str) -> Storage:
    """The storage at `place`: a folder, or the address of an object store such as `s3://bucket/prefix`. Raises
    OctavoError for one that cannot be used."""
    if "://" not in place:
        return FolderStorage(place)
    try:
        from octavo.service.storage.objects import ObjectStorage
    except ModuleNotFoundError:
        raise OctavoError("an object store needs obstore: pip install 'octavo[objects]'") from None
    return ObjectStorage.at(place)
