"""Logging of an agent's process."""

from __future__ import annotations

import logging
import sys

from octavo.terms.logs import LogFormat, formatter


def configure_logging(level: str, log_format: LogFormat = "auto") -> None:
    """Send this process's logs to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(log_format))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # other libraries
    logging.getLogger("octavo_worker").setLevel(level.upper())
