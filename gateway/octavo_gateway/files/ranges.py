"""The part of a file that a request asks for."""

from __future__ import annotations

import re

from octavo_gateway.errors import ApiError

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def span_of(header: str | None, size: int) -> tuple[int, int] | None:
    """First byte and the one behind the last; None for all, as for several ranges, which a server may ignore. Raises
    ApiError 416."""
    found = _RANGE.fullmatch((header or "").strip().replace(" ", ""))
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        start, end = max(0, size - int(found[2])), size
    else:
        start, end = int(found[1]), min(size, int(found[2]) + 1) if found[2] else size
        if found[2] and int(found[2]) < start:
            return None
    if start >= size or start >= end:
        message = f"the file has {size} bytes: ask for less"
        raise ApiError(416, message, code="range_not_satisfiable", headers={"Content-Range": f"bytes */{size}"})
    return start, end
