"""Log lines of every process: short on a terminal, one JSON object an event elsewhere. Never prompts or outputs."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["auto", "text", "json"]

FIELDS = ("request_id", "method", "path", "status", "dur_ms", "tenant")
"""Fields that a log call may pass in `extra`."""

_CONTROLS = re.compile(r"[^\n\t -~\u00a0-\U0010ffff]")


class JsonFormatter(logging.Formatter):
    """The fields of `json_event`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json_event(record.getMessage(), record.created, record.levelname.lower(), record.name, **fields)


def json_event(event: str, at: float, level: str, logger: str, **fields: Any) -> str:
    """One line: `ts`, `level`, `logger`, `event`, and whatever else there is."""
    ts = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return json.dumps({"ts": ts, "level": level, "logger": logger, "event": event, **fields})


class TextFormatter(logging.Formatter):
    """The time and the event; the level where it matters. What a terminal would obey is quoted."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(note)s%(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.note = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        record.message = record.message.replace("\n", "\\n")
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def printable(text: str) -> str:
    """Without characters that a terminal obeys instead of showing them."""
    return _CONTROLS.sub(lambda match: repr(match[0])[1:-1], text)


def configure_logging(package: str, level: str, log_format: LogFormat = "auto") -> None:
    """Send this process's logs to stderr: those of the package from the level on, warnings of other libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(log_format))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(package).setLevel(level.upper())


def formatter(log_format: LogFormat) -> logging.Formatter:
    """For standard error; `auto` asks whether that is a terminal."""
    is_text = sys.stderr.isatty() if log_format == "auto" else log_format == "text"
    return TextFormatter() if is_text else JsonFormatter()
