"""Names of the keys of files and batches; `lua/lib/keys.lua` says what they hold."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from octavo.queue.keys import Keys, milliseconds_of, new_ulid

_ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
FILE, BATCH = "file-", "batch_"


@dataclass(frozen=True)
class BatchKeys:
    """Key names of one cell."""

    keys: Keys = field(default_factory=Keys)

    @property
    def prefix(self) -> str:
        return self.keys.prefix

    def file(self, file_id: str) -> str:
        """HASH: one file."""
        return f"{self.prefix}:f:{file_id}"

    @property
    def files(self) -> str:
        """ZSET: all file ids, and `:<tenant>:<id>` for each, score 0: sorted by id, hence by time."""
        return f"{self.prefix}:files"

    @property
    def expiries(self) -> str:
        """ZSET: files by the time at which they expire, ms."""
        return f"{self.prefix}:fx"

    @property
    def mark(self) -> str:
        """STRING: the mark of the storage."""
        return f"{self.prefix}:mark"

    def batch(self, batch_id: str) -> str:
        """HASH: one batch."""
        return f"{self.prefix}:bt:{batch_id}"

    @property
    def batches(self) -> str:
        """ZSET: all batches, as `files` has files."""
        return f"{self.prefix}:batches"

    @property
    def due(self) -> str:
        """ZSET: batches by the time from which they may be taken, ms."""
        return f"{self.prefix}:bts"

    @property
    def leases(self) -> str:
        """ZSET: batches by the end of their owner's lease, ms."""
        return f"{self.prefix}:btL"

    def open_jobs(self, batch_id: str) -> str:
        """ZSET: jobs that have not ended, by place."""
        return f"{self.prefix}:bto:{batch_id}"

    def ended_jobs(self, batch_id: str) -> str:
        """ZSET: jobs that have ended and whose line is in no part, by place."""
        return f"{self.prefix}:bte:{batch_id}"

    def parts(self, batch_id: str) -> str:
        """LIST: parts that count."""
        return f"{self.prefix}:btp:{batch_id}"


def new_id(kind: str) -> str:
    """`FILE` or `BATCH` and a ULID."""
    return kind + new_ulid()


def is_id(kind: str, text: str) -> bool:
    """True for what can be the id of a file or a batch."""
    return text.startswith(kind) and _ULID.fullmatch(text.removeprefix(kind)) is not None


def made_at(made: str) -> float:
    """The time at which an id was made, in seconds since the epoch."""
    return milliseconds_of(made[-26:]) / 1000
