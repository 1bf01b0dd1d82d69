"""Text files as editors and shells write them: UTF-8, or what a byte order mark says."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

_BYTE_ORDER_MARKS = (  # that of UTF-32 begins like that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_lines(path: Path) -> list[str]:
    """The lines of a file. Raises ValueError, with its path and the next step, for one that cannot be read or is no
    text; nothing of its content is repeated."""
    try:
        data = path.read_bytes()
        encoding = next((name for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), "utf-8")
        text = data.decode(encoding)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    # U+2028 ends no line. Files that were joined have a byte order mark in the middle.
    return [line.strip("\ufeff \t") for line in re.split("\r\n|\r|\n", text)]
