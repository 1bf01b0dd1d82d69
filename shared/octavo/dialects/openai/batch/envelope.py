"""The structure of a batch file: its lines, and what surrounds the body of each.

It is checked for the whole file before any line runs, at a microsecond a line: of a body only the model is looked at.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

import msgspec

from octavo.terms.batches import MAX_CUSTOM_ID, MAX_LINE_BYTES, MAX_LINES, MAX_STRUCTURE_ERRORS, LineError

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
"""Endpoints that a batch may name."""


class _Body(msgspec.Struct):
    model: str


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: _Body


class Envelope(msgspec.Struct):
    """A line whose structure was found right, its body as it came."""

    custom_id: str
    url: str
    body: msgspec.Raw


_decode = msgspec.json.Decoder(_Line).decode
_decode_envelope = msgspec.json.Decoder(Envelope).decode


def open_envelope(line: bytes) -> Envelope:
    """The envelope of a line. Raises msgspec.DecodeError for one that no check has passed."""
    return _decode_envelope(line)


class Lines:
    """A file, fed in pieces, as lines: each with the offset of its first byte. Lines end at `\\n` alone; blank ones are
    left out but counted. A line beyond the limit is given cut, which no JSON survives."""

    def __init__(self) -> None:
        self.number = 1
        self._rest = bytearray()
        self._offset = 0
        self._cut = 0

    def feed(self, piece: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Number, offset and content of the lines that end in this piece."""
        *ends, rest = piece.split(b"\n")
        for end in ends:
            if self._rest or self._cut or len(end) > MAX_LINE_BYTES:
                self._keep(end)
                end = self._taken()
            number, offset = self.number, self._offset
            self._offset = offset + len(end) + self._cut + 1
            self._cut = 0
            self.number = number + 1
            if not offset:
                offset, end = _without_mark(end)
            if end and not end.isspace():
                yield number, offset, end
        self._keep(rest)

    def end(self) -> Iterator[tuple[int, int, bytes]]:
        """The last line, where nothing ends it."""
        return self.feed(b"\n")

    def _keep(self, part: bytes) -> None:
        kept = max(0, MAX_LINE_BYTES + 1 - len(self._rest))
        self._rest += part[:kept]
        self._cut += max(0, len(part) - kept)

    def _taken(self) -> bytes:
        line = bytes(self._rest)
        self._rest.clear()
        return line


def _without_mark(line: bytes) -> tuple[int, bytes]:
    """Offset and content of a file's first line behind its byte order mark."""
    mark = codecs.BOM_UTF8 if line.startswith(codecs.BOM_UTF8) else b""
    return len(mark), line[len(mark) :]


class FileCheck:
    """The check of a file whose lines are for `url`. `errors` is empty if the batch can run."""

    def __init__(self, url: str) -> None:
        self.errors: list[LineError] = []
        self.total = 0
        self.model: str | None = None
        self._url = url
        self._seen: set[str] = set()

    @property
    def is_over(self) -> bool:
        """True if no further line would change the outcome."""
        return len(self.errors) >= MAX_STRUCTURE_ERRORS or self.total > MAX_LINES

    def add(self, number: int, line: bytes) -> None:
        """Look at one line."""
        self.total += 1
        if self.total > MAX_LINES:
            self._note("too_many_tasks", f"the file has more than {MAX_LINES} lines: split it", None, None)
            return
        try:
            found = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._explain(number, line)
            return
        name = found.custom_id
        if name in self._seen:
            self._note(
                "duplicate_custom_id", "custom_id stands on an earlier line: give each its own", number, "custom_id"
            )
        elif not 0 < len(name) <= MAX_CUSTOM_ID:
            self._note("invalid_value", f"custom_id must have 1 to {MAX_CUSTOM_ID} characters", number, "custom_id")
        elif found.method != "POST":
            self._note("invalid_value", "method must be POST", number, "method")
        elif found.url != self._url:
            self._note("url_mismatch", f"url must be {self._url}, the endpoint of the batch", number, "url")
        elif found.body.model != self.model:
            if self.model is not None:
                self._note("model_mismatch", "all lines of a file must name one model", number, "body.model")
            self.model = self.model or found.body.model
        self._seen.add(name)

    def end(self) -> None:
        """No line follows."""
        if not self.total:
            self._note("empty_file", "the file has no lines: each is one request", None, None)

    def _note(self, code: str, message: str, line: int | None, param: str | None) -> None:
        if len(self.errors) < MAX_STRUCTURE_ERRORS:
            self.errors.append(LineError(code, message, line, param))

    def _explain(self, number: int, line: bytes) -> None:
        """Say what is wrong with a line that could not be decoded."""
        if len(line) > MAX_LINE_BYTES:
            self._note("invalid_json_line", f"the line has more than {MAX_LINE_BYTES} bytes", number, None)
            return
        try:
            fields = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._note("invalid_json_line", "the line is not valid JSON in UTF-8", number, None)
            return
        if not isinstance(fields, dict):
            self._note("invalid_json_line", "the line is not a JSON object", number, None)
            return
        for param, kind, word in (
            ("custom_id", str, "text"), ("method", str, "text"), ("url", str, "text"), ("body", dict, "an object"),
        ):  # fmt: skip
            if param not in fields:
                self._note("missing_required_parameter", f"{param} is required", number, param)
                return
            if not isinstance(fields[param], kind):
                self._note("invalid_value", f"{param} must be {word}", number, param)
                return
        what, code = ("must be text", "invalid_value") if "model" in fields["body"] else (
            "is required", "missing_required_parameter"
        )  # fmt: skip
        self._note(code, f"body.model {what}", number, "body.model")
