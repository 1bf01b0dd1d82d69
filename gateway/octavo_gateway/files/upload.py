"""Uploads: a form whose file streams into the storage as it arrives."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from octavo.dialects.openai.batch.objects import ExpiresAfter
from octavo.queue.batches.calls import NewFile
from octavo.service.storage.interface import PIECE_BYTES
from octavo.terms.batches import MAX_FILE_BYTES
from octavo.terms.errors import InvalidRequest
from octavo_gateway.errors import ApiError

PURPOSES = ("batch", "user_data")
_BATCH_FILE_S = 30 * 86_400  # a batch's input is kept for so long unless its upload says otherwise
_MOST_OF_A_FIELD = 1024
_MOST_PARTS = 16
_AROUND = 64 * 1024  # bytes of a form besides its file
_LONGEST_NAME = 255


class Upload:
    """The form of one request. `pieces` gives its file; all else is known at its end. Raises ApiError for
    what is no form, or is declared too large."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._fields: dict[str, str] = {}
        self._hash = hashlib.sha256()
        self._size = 0
        self._file_name: str | None = None
        self._has_ended = False
        self._ready = bytearray()
        self._header: list[bytes] = [b"", b""]
        self._headers: dict[bytes, bytes] = {}
        self._parts = 0
        self._current: str | None = None  # the field that is being read, None for the file
        self._value = bytearray()
        kind, options = parse_options_header(request.headers.get("content-type", ""))
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise ApiError(415, "send the file as multipart/form-data", code="unsupported_media_type")
        declared = request.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > MAX_FILE_BYTES + _AROUND:
            raise _too_large()
        self._parser = MultipartParser(
            options[b"boundary"],
            {
                "on_part_begin": self._part_begins,
                "on_header_field": lambda data, start, end: self._add_header(0, data[start:end]),
                "on_header_value": lambda data, start, end: self._add_header(1, data[start:end]),
                "on_header_end": self._header_ends,
                "on_headers_finished": self._content_begins,
                "on_part_data": lambda data, start, end: self._content(data[start:end]),
                "on_part_end": self._part_ends,
                "on_end": self._end,
            },
        )

    async def pieces(self) -> AsyncIterator[bytes]:
        """The file, in large pieces. Raises ApiError and InvalidRequest as soon as the form is known to be wrong."""
        async for data in self._request.stream():
            try:
                self._parser.write(data)
            except FormParserError:
                raise _malformed() from None
            if self._size > MAX_FILE_BYTES:
                raise _too_large()
            if len(self._ready) >= PIECE_BYTES:
                yield self._take()
        if not self._has_ended:
            raise _malformed()
        if self._file_name is None:
            raise InvalidRequest("file is required", code="missing_required_parameter", param="file")
        if self._ready:
            yield self._take()

    def file(self, file_id: str, tenant: str) -> NewFile:
        """The file, once all of it has come. Raises InvalidRequest, ValidationError."""
        purpose = self._purpose()
        expires_s = _BATCH_FILE_S if purpose == "batch" else None
        if given := {name: self._fields[f"expires_after[{name}]"] for name in ("anchor", "seconds")
                     if f"expires_after[{name}]" in self._fields}:  # fmt: skip
            expires_s = ExpiresAfter.model_validate(given).seconds
        name = self._file_name or "upload"
        return NewFile(file_id, tenant, name, purpose, self._size, self._hash.hexdigest(), expires_s)

    def _purpose(self) -> str:
        purpose = self._fields.get("purpose")
        if purpose is None:
            raise InvalidRequest("purpose is required", code="missing_required_parameter", param="purpose")
        if purpose not in PURPOSES:
            raise InvalidRequest(f"purpose must be {' or '.join(PURPOSES)}", code="invalid_purpose", param="purpose")
        return purpose

    def _take(self) -> bytes:
        piece = bytes(self._ready)
        self._ready.clear()
        self._hash.update(piece)
        return piece

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise InvalidRequest(f"the form has more than {_MOST_PARTS} parts", code="invalid_form")
        self._headers = {}

    def _add_header(self, which: int, data: bytes) -> None:
        self._header[which] += data

    def _header_ends(self) -> None:
        name, value = self._header
        self._headers[name.lower()] = value
        self._header = [b"", b""]

    def _content_begins(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"").decode(errors="replace")
        self._value.clear()
        self._current = name
        if name != "file":
            return
        if self._file_name is not None:
            raise InvalidRequest("the form has two files: send one", code="invalid_form", param="file")
        if "purpose" in self._fields:
            self._purpose()
        given = options.get(b"filename", b"upload").decode(errors="replace")
        self._file_name = given.replace("\0", "")[:_LONGEST_NAME]
        self._current = None

    def _content(self, data: bytes) -> None:
        if self._current is None:
            self._ready += data
            self._size += len(data)
        elif len(self._value) + len(data) > _MOST_OF_A_FIELD:
            raise InvalidRequest("a field of the form is too long", code="invalid_form")
        else:
            self._value += data

    def _part_ends(self) -> None:
        if self._current is not None:
            self._fields[self._current] = self._value.decode(errors="replace")
        self._current = ""

    def _end(self) -> None:
        self._has_ended = True


def described_form() -> dict[str, Any]:
    """`openapi_extra` of the route."""
    text = {"type": "string"}
    properties = {
        "purpose": {"type": "string", "enum": list(PURPOSES)},
        "expires_after[anchor]": text,
        "expires_after[seconds]": {"type": "integer"},
        "file": {"type": "string", "format": "binary"},
    }
    schema = {"type": "object", "required": ["purpose", "file"], "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def _too_large() -> ApiError:
    return ApiError(
        413, f"the file is larger than {MAX_FILE_BYTES} bytes: split it", code="file_too_large", param="file"
    )


def _malformed() -> InvalidRequest:
    return InvalidRequest("the form is cut off or is no multipart/form-data", code="invalid_form")
