"""Batches of a gateway, over HTTP, for the command line."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import quote

from octavo.queue import local
from octavo.terms.errors import OctavoError, ServerUnavailable

_TIMEOUT_S = 60.0
_BOUNDARY = "octavo-7d5c1f0e9b"
_PIECE_BYTES = 1 << 20


class Refused(OctavoError):
    """The gateway said no; the message is its own."""

    code = "refused"


class _Form:
    """A form with one file, read as it is sent."""

    def __init__(self, source: BinaryIO, size: int, purpose: str) -> None:
        field = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{{}}"'
        head = f'{field.format("purpose")}\r\n\r\n{purpose}\r\n{field.format("file")}; filename="lines.jsonl"\r\n\r\n'
        self._head, self._tail = head.encode(), f"\r\n--{_BOUNDARY}--\r\n".encode()
        self._source = source
        self.size = len(self._head) + size + len(self._tail)

    def __iter__(self) -> Iterator[bytes]:
        yield self._head
        while piece := self._source.read(_PIECE_BYTES):
            yield piece
        yield self._tail


class Gateway:
    """A gateway. Every method raises Refused, and ServerUnavailable for one that cannot be reached."""

    def __init__(self, url: str, key: str = "") -> None:
        self._url = url.rstrip("/")
        self._key = key

    @classmethod
    def found(cls, url: str | None) -> Self:
        """The one at `url`; by default at OCTAVO_URL, else that of `octavo up`. Its key is OCTAVO_API_KEY."""
        service = local.running()
        place = url or os.environ.get("OCTAVO_URL") or (service.api_url if service else "http://127.0.0.1:8000")
        return cls(place, os.environ.get("OCTAVO_API_KEY", ""))

    def upload(self, source: Path) -> str:
        """The id of a file of lines, once the gateway has it."""
        with source.open("rb") as file:
            form = _Form(file, source.stat().st_size, "batch")
            headers = {
                "Content-Type": f"multipart/form-data; boundary={_BOUNDARY}",
                "Content-Length": str(form.size),
            }
            return str(self._json("POST", "/v1/files", form, headers)["id"])

    def create(self, file_id: str, endpoint: str, window: str) -> dict[str, Any]:
        """A batch of a file."""
        asked = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window}
        headers = {"Content-Type": "application/json", "Idempotency-Key": file_id}
        return self._json("POST", "/v1/batches", json.dumps(asked).encode(), headers)

    def batch(self, batch_id: str) -> dict[str, Any]:
        """How a batch stands."""
        return self._json("GET", f"/v1/batches/{quote(batch_id, safe='')}")

    def cancel(self, batch_id: str) -> dict[str, Any]:
        """Ask for its end."""
        return self._json("POST", f"/v1/batches/{quote(batch_id, safe='')}/cancel")

    def content(self, file_id: str) -> Iterator[bytes]:
        """The bytes of a file, in pieces."""
        with self._open("GET", f"/v1/files/{quote(file_id, safe='')}/content", None, {}) as answer:
            while piece := answer.read(_PIECE_BYTES):
                yield piece

    def ask(self, method: str, path: str, name: str = "", rest: str = "", body: Any = None) -> dict[str, Any]:
        """The answer to any request with a body of JSON or none, of what has a `name` below `path`."""
        whole = path + (f"/{quote(name, safe='')}" if name else "") + (f"/{rest}" if rest else "")
        if body is None:
            return self._json(method, whole)
        return self._json(method, whole, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _json(self, method: str, path: str, data: Any = None, headers: dict[str, str] | None = None) -> dict[str, Any]:
        with self._open(method, path, data, headers or {}) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _open(self, method: str, path: str, data: Any, headers: dict[str, str]) -> Any:
        if self._key:
            headers = {**headers, "Authorization": f"Bearer {self._key}"}
        try:
            request = urllib.request.Request(self._url + path, data, headers, method=method)
            return urllib.request.urlopen(request, timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            raise Refused(_message(error)) from None
        except ValueError:
            raise ServerUnavailable(f"{self._url[:100]!r} is no address of a gateway: give --url http://...") from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise ServerUnavailable(
                f"cannot reach the gateway at {self._url} ({reason}): start one with `octavo up`, or give --url"
            ) from None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered {error.code}"
