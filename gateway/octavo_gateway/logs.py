"""Logging of a gateway's processes: uvicorn's lines and our own in one form."""

from __future__ import annotations

import logging
from typing import Any

from octavo.terms.logs import LogFormat

_ROUTINE = ("Started server", "Started parent", "Waiting for application", "Application ", "Finished server")
_LISTENS = "Uvicorn running on "


class Telling(logging.Filter):
    """Filter of uvicorn's lines on its own start and end: only its address tells something."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = str(record.msg)
        if message.startswith(_LISTENS):
            record.msg = "listening on " + message.removeprefix(_LISTENS).removesuffix(" (Press CTRL+C to quit)")
        return record.levelno > logging.INFO or not message.startswith(_ROUTINE)


def log_config(level: str, log_format: LogFormat = "auto") -> dict[str, Any]:
    """For `logging.config.dictConfig` (and uvicorn): everything to stderr."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"ours": {"()": "octavo.terms.logs.formatter", "log_format": log_format}},
        "filters": {"telling": {"()": "octavo_gateway.logs.Telling"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "ours"}},
        "root": {"level": level.upper(), "handlers": ["stderr"]},
        "loggers": {
            "uvicorn.access": {"level": "WARNING"},  # octavo_gateway.http.requests says it, with the request's id
            "uvicorn.error": {"filters": ["telling"]},
        },
    }
