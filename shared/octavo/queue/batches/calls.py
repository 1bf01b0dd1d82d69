"""Every state change of a file or a batch as one script call, which may be repeated.

An owner has a batch by a lease and a random token, as a worker has a job. All that it does is refused once the token is
another one's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgpack
import msgspec

from octavo.queue.batches.keys import BatchKeys
from octavo.queue.calls import Call, Watch
from octavo.terms.batches import BatchStatus, BatchUsage, FileInfo, LineError
from octavo.terms.errors import IdempotencyConflict, InvalidRequest, QueueFull

KNOWN_S = 30 * 86_400
"""Seconds for which a batch is known after its end."""

_KEY_S = 86_400

T = TypeVar("T")


@dataclass(frozen=True)
class NewFile:
    """A file whose bytes are stored."""

    id: str
    tenant: str
    name: str
    purpose: str
    size: int
    digest: str
    expires_s: int | None = None

    def named(self) -> dict[str, Any]:
        """The arguments of a script."""
        named = {
            "id": self.id,
            "tenant": self.tenant,
            "name": self.name,
            "purpose": self.purpose,
            "bytes": self.size,
            "sha": self.digest,
            "expires_s": self.expires_s,
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class NewBatch:
    """A batch as it was asked for."""

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    window: str
    window_s: int
    metadata: dict[str, str] | None = None
    output_expires_s: int | None = None
    key_id: str = ""
    trace: str = ""


@dataclass(frozen=True, order=True)
class Member:
    """A job of a batch: the place of its line, which of the line's jobs it is, and its id, `-` for none."""

    place: int
    index: int
    job_id: str

    @classmethod
    def of(cls, text: bytes) -> Member | None:
        """None for what is no member."""
        try:
            place, index, job_id = text.decode().split(" ")
            return cls(int(place), int(index), job_id)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.place} {self.index} {self.job_id}"


@dataclass(frozen=True)
class Part:
    """A part of a batch's files: its name in the storage without the kind, and the sizes of both kinds."""

    name: str
    out: int
    err: int

    def encode(self) -> str:
        return f"{self.name} {self.out} {self.err}"

    @classmethod
    def decode(cls, text: bytes) -> Part:
        """Raises ValueError."""
        name, out, err = text.decode().split(" ")
        return cls(name, int(out), int(err))


@dataclass(frozen=True)
class Skipped:
    """Places from the cursor on that are never submitted. An owner may have submitted jobs there without moving the
    cursor: `kept` is the number of those whose lines count as submitted from now on, `dropped` are those of lines that
    are in the part."""

    start: int
    end: int
    kept: int = 0
    dropped: Sequence[Member] = ()


@dataclass(frozen=True)
class Commit:
    """A part and what it stands for: members whose lines are in it, and lines from the cursor on that are left out."""

    part: Part
    number: int
    members: Sequence[Member]
    completed: int = 0
    failed: int = 0
    usage: BatchUsage = field(default_factory=BatchUsage)
    skipped: Skipped | None = None


class Reply(NamedTuple):
    """`state`: ok, fenced (another owner's: drop it), or what stands in the way; `at`: the cursor, or the number of
    parts."""

    state: str
    at: int


@dataclass(frozen=True)
class BatchCell:
    """All calls of files and batches on one cell."""

    keys: BatchKeys = field(default_factory=BatchKeys)
    watch: Watch | None = None

    def note_file(self, file: NewFile, *, cap: int) -> Call[FileInfo]:
        """Make a file known. The reply raises QueueFull if its tenant keeps more bytes with it than its
        limits or else `cap` allow."""

        def parse(reply: list[Any]) -> FileInfo:
            if reply[0] != b"ok":
                raise QueueFull(
                    f"your files have {int(reply[1])} bytes, {int(reply[2])} are allowed: delete some", retry_after_s=60
                )
            expires = int(reply[2]) / 1000 if reply[2] else None
            return FileInfo(
                file.id, file.tenant, file.name, file.purpose, file.size, int(reply[1]) / 1000, expires, file.digest
            )

        return self._call("file_note", _packed({**file.named(), "cap": cap}), parse=parse, of=file.tenant)

    def drop_file(self, file_id: str, *, tenant: str = "", expired: bool = False) -> Call[str]:
        """Forget a file: ok, used (by a batch that has not ended), or '' (no such file of the tenant's)."""
        return self._call("file_drop", file_id, tenant, int(expired), parse=_text, of=tenant)

    def create(self, new: NewBatch, *, idempotency_key: str | None = None) -> Call[str]:
        """Accept a batch. Its id, or that of the batch that the key named before. The reply raises InvalidRequest and
        IdempotencyConflict."""
        asked = {
            "endpoint": new.endpoint,
            "input": new.input_file_id,
            "window": new.window,
            "window_s": new.window_s,
            "metadata": None if new.metadata is None else msgspec.json.encode(new.metadata),
            "output_expires_s": new.output_expires_s,
        }
        named = {"id": new.id, "tenant": new.tenant, "key": new.key_id or None, "trace": new.trace or None, **asked}
        if idempotency_key is not None:
            digest = hashlib.sha256(msgspec.json.encode({**asked, "metadata": new.metadata})).hexdigest()
            named |= {"idempotency_key": f"batch\n{idempotency_key}", "hash": digest, "seconds": _KEY_S}
        packed = _packed({name: value for name, value in named.items() if value is not None})
        return self._call("batch_create", packed, parse=lambda reply: _created(reply, new), of=new.tenant)

    def claim(self, clerk: str, token: str, *, lease_ms: int) -> Call[str]:
        """Take a batch: its id, or '' if there is none to take."""
        return self._call("batch_claim", clerk, token, lease_ms, parse=_text)

    def renew(self, owned: Sequence[tuple[str, str]], *, lease_ms: int) -> Call[tuple[float, list[str]]]:
        """Renew leases of (batch, token) pairs. The server's time in seconds, and the state of each; '': lost."""
        flat = [word for pair in owned for word in pair]
        return self._call(
            "batch_renew",
            lease_ms,
            *flat,
            parse=lambda reply: (int(reply[0]) / 1000, [_text(one) for one in reply[1:]]),
        )

    def release(self, batch_id: str, token: str) -> Call[bool]:
        """Give a batch back."""
        return self._call("batch_release", batch_id, token, parse=bool)

    def begin(self, batch_id: str, token: str, *, total: int, model: str) -> Call[str]:
        """Its structure is right. Its state now; '': lost."""
        return self._call("batch_begin", batch_id, token, total, model, parse=_text)

    def advance(self, batch_id: str, token: str, start: int, end: int, rejected: Sequence[int]) -> Call[Reply]:
        """All jobs of the lines from `start` to `end` are submitted; those at the places `rejected` ask for none."""
        asked = {"id": batch_id, "token": token, "from": start, "to": end, "rejected": list(rejected)}
        return self._call("batch_advance", _packed(asked), parse=_reply)

    def commit(self, batch_id: str, token: str, commit: Commit) -> Call[Reply]:
        """A stored part counts from now on."""
        usage = commit.usage
        asked: dict[str, Any] = {
            "id": batch_id,
            "token": token,
            "part": commit.part.encode(),
            "number": commit.number,
            "members": [str(member) for member in commit.members],
            "completed": commit.completed,
            "failed": commit.failed,
            "usage": [usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens],
        }
        if commit.skipped is not None:
            left_out = commit.skipped
            asked |= {"from": left_out.start, "to": left_out.end, "kept": left_out.kept}
            asked["dropped"] = [str(member) for member in left_out.dropped]
        return self._call("batch_commit", _packed(asked), parse=_reply)

    def close(self, batch_id: str, token: str) -> Call[str]:
        """Every line is in a part. Its state now; '': lost, open: lines are left."""
        return self._call("batch_close", batch_id, token, parse=_text)

    def cancel(self, batch_id: str, *, tenant: str = "") -> Call[str]:
        """Ask for its end. Its state now; '': no such batch of the tenant's."""
        return self._call("batch_cancel", batch_id, tenant, parse=_text, of=tenant)

    def finish(
        self,
        batch_id: str,
        token: str,
        state: BatchStatus,
        *,
        out: NewFile | None = None,
        err: NewFile | None = None,
        errors: Sequence[LineError] = (),
    ) -> Call[str]:
        """End it: ok, fenced, open (lines are left), or the state that does not end so."""
        files = [{**file.named(), "kind": kind} for kind, file in (("out", out), ("err", err)) if file is not None]
        asked: dict[str, Any] = {"id": batch_id, "token": token, "state": state.value, "known_s": KNOWN_S}
        if files:
            asked["files"] = files
        if errors:
            asked["errors"] = msgspec.json.encode(list(errors))
        return self._call("batch_finish", _packed(asked), parse=_text)

    def recheck(self, batch_id: str, token: str, members: Sequence[Member]) -> Call[int]:
        """Look at open jobs that were silent for long. How many had ended; -1: lost. Without any: remove what something
        else has put among the jobs."""
        return self._call("batch_recheck", batch_id, token, *map(str, members), parse=int)

    def _call(self, name: str, *args: bytes | str | int, parse: Callable[[Any], T], of: str = "") -> Call[T]:
        return Call(name, (self.keys.prefix,), args, parse, of, self.watch)


def _packed(arguments: object) -> bytes:
    packed: bytes = msgpack.packb(arguments, use_bin_type=False)
    return packed


def _text(value: bytes) -> str:
    return value.decode()


def _reply(value: list[Any]) -> Reply:
    return Reply(_text(value[0]), int(value[1]))


def _created(reply: list[Any], new: NewBatch) -> str:
    outcome, *rest = (_text(word) for word in reply)
    match outcome:
        case "ok":
            return rest[0]
        case "conflict":
            raise IdempotencyConflict(f"the idempotency key was used by {rest[0]} with another request: use a new key")
        case "purpose":
            message = f"{new.input_file_id} was uploaded for {rest[0]}: upload it with the purpose batch"
            raise InvalidRequest(message, code="invalid_purpose", param="input_file_id")
        case _:
            message = f"no file {new.input_file_id[:60]!r}: it was never uploaded, was deleted, or has expired"
            raise InvalidRequest(message, code="file_not_found", param="input_file_id")
