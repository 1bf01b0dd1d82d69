"""Harvest of a batch: lines whose jobs have all ended go into a part, which is stored and then named by one call."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from octavo.dialects.openai.batch.answers import ID_PREFIX, encode, rejected, succeeded, undone
from octavo.dialects.openai.batch.envelope import open_envelope
from octavo.queue.batches.calls import Commit, Member, Part, Skipped
from octavo.queue.batches.reading import read_beyond, read_members
from octavo.queue.calls import run_many
from octavo.service.clerk.desk import MOST_WINDOW, Desk, Lost, Moved
from octavo.service.clerk.input_file import InputFile
from octavo.service.clerk.results import AT_ONCE, Outcome, read_outcomes
from octavo.service.clerk.submission import Line, Submission, read_line, too_large
from octavo.service.storage.interface import in_pieces
from octavo.service.storage.places import part_names
from octavo.terms.batches import BatchInfo, BatchStatus, BatchUsage
from octavo.terms.errors import InvalidRequest, OctavoError
from octavo.terms.messages import JobStatus

PART_LINES = 512
_PART_BYTES = 8 << 20
_SKIPPED_AT_ONCE = 4096
_MOST_MEMBERS = 4 * MOST_WINDOW  # lines of many prompts go beyond the window
_NO_JOB = "-"


@dataclass
class _Draft:
    """A part that is being written."""

    out: list[bytes] = field(default_factory=list)
    err: list[bytes] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    usage: BatchUsage = field(default_factory=BatchUsage)
    completed: int = 0
    failed: int = 0
    size: int = 0

    def add(self, line: dict[str, object], *, to_out: bool = False) -> None:
        data = encode(line).encode("utf-8", "backslashreplace")
        (self.out if to_out else self.err).append(data)
        self.size += len(data)


class Harvest:
    """Harvest of one batch."""

    def __init__(self, desk: Desk, batch: BatchInfo, token: str, source: InputFile, submission: Submission) -> None:
        self._desk = desk
        self._batch = batch
        self._token = token
        self._source = source
        self._jobs_of = submission.jobs_of

    async def harvest(self, cursor: int, parts: int, undone_as: str | None) -> int:
        """Put what has ended into one part. How many lines it has. `undone_as`: the state of the batch that leaves jobs
        undone, if it is to end. Raises Lost, Moved."""
        ended = await self._ended(cursor)
        places, draft, done = list(ended), _Draft(), 0
        for start in range(0, len(places), AT_ONCE):
            lines = await self._complete(places[start : start + AT_ONCE], ended)
            ids = [member.job_id for place in lines for member in ended[place] if member.job_id != _NO_JOB]
            outcomes = await read_outcomes(self._desk.client, ids)
            for place, line in lines.items():
                self._add(draft, line, ended[place], outcomes, undone_as)
            done += len(lines)
            if draft.size >= _PART_BYTES or done >= PART_LINES:
                break
        if done:
            await self._commit(draft, parts, None)
        return done

    async def leave_out(self, cursor: int, parts: int, state: str) -> None:
        """Put the next lines from the cursor on into a part as never executed, but for those that an owner submitted
        without moving the cursor. Raises Lost, Moved."""
        end = min(cursor + _SKIPPED_AT_ONCE, self._batch.total)
        submitted = await self._submitted(cursor, end)
        draft, kept, dropped, place = _Draft(), 0, list[Member](), cursor
        while place < end:
            group = self._source.group(place, end)
            texts = await self._source.lines(group)
            for one in group:
                members = submitted.get(one, [])
                if members and len(members) == await self._jobs_at(texts[one]):
                    kept += len(members)
                    continue
                draft.add(undone(self._line_id(one), open_envelope(texts[one]).custom_id, state))
                dropped += members
            place = group.stop
        with self._desk.client.errors():
            await run_many(self._desk.client.redis, [self._desk.cell.cancel(member.job_id) for member in dropped])
        await self._commit(draft, parts, Skipped(cursor, end, kept, dropped))

    async def _submitted(self, start: int, end: int) -> dict[int, list[Member]]:
        """Jobs at places beyond the cursor."""
        client = self._desk.client
        with client.errors():
            members = await read_beyond(client.redis, client.keys, self._batch.id, start)
        by_place: dict[int, list[Member]] = {}
        for member in members:
            if member.place < end:
                by_place.setdefault(member.place, []).append(member)
        return by_place

    async def _jobs_at(self, text: bytes) -> int:
        line = await read_line(self._desk, self._batch, text)
        return len(line.request.jobs) if line.request is not None else 0

    async def _ended(self, cursor: int) -> dict[int, list[Member]]:
        """Jobs that have ended, of lines before the cursor that may be complete, in order."""
        name = self._desk.client.keys.ended_jobs(self._batch.id)
        with self._desk.client.errors():
            members = await read_members(self._desk.client.redis, name, _MOST_MEMBERS)
        by_place: dict[int, list[Member]] = {}
        for member in members:
            if member.place < min(cursor, self._batch.total):
                by_place.setdefault(member.place, []).append(member)
        return {p: sorted(found) for p, found in by_place.items() if len(found) >= self._jobs_of.get(p, 1)}

    async def _complete(self, places: Sequence[int], ended: Mapping[int, Sequence[Member]]) -> dict[int, Line]:
        """The content of those lines whose jobs have all ended."""
        found = {}
        for place, text in (await self._source.lines(places)).items():
            line = await read_line(self._desk, self._batch, text)
            wanted = 1 if ended[place][0].job_id == _NO_JOB or line.request is None else len(line.request.jobs)
            if len(ended[place]) < wanted:
                self._jobs_of[place] = wanted
            else:
                found[place] = line
        return found

    def _add(
        self,
        draft: _Draft,
        line: Line,
        members: Sequence[Member],
        outcomes: Mapping[str, Outcome],
        undone_as: str | None,
    ) -> None:
        """Write one line, and count it."""
        line_id, job_id = self._line_id(members[0].place), members[0].job_id
        ended = [outcomes[member.job_id] for member in members if member.job_id in outcomes]
        failure = self._failure(line, ended)
        draft.members += members
        if failure is None:
            assert line.request is not None
            jobs = [outcome.completed for outcome in ended if outcome.completed is not None]
            body, usage = line.request.answer(jobs, ended[0].created)
            draft.add(succeeded(line_id, line.custom_id, job_id, body, line.ignored), to_out=True)
            draft.usage += usage
            draft.completed += 1
        elif state := _undone(line, ended, undone_as):
            draft.add(undone(line_id, line.custom_id, state))
        else:
            request_id = line_id if job_id == _NO_JOB else job_id
            draft.add(rejected(line_id, line.custom_id, request_id, failure))
            draft.failed += 1

    def _failure(self, line: Line, ended: Sequence[Outcome]) -> OctavoError | None:
        if line.error is not None:
            return line.error
        assert line.request is not None
        if not ended:
            other = InvalidRequest(
                "the tenant's limits never let this request in: lower max_tokens, or shorten the prompt"
            )
            return too_large(self._desk, self._batch, line.request) or other
        return next((outcome.error for outcome in ended if outcome.error is not None), None)

    async def _commit(self, draft: _Draft, parts: int, skipped: Skipped | None) -> None:
        """Store the part, then name it. Raises Lost, Moved."""
        part = Part(f"{parts:06d}-{secrets.token_hex(8)}", sum(map(len, draft.out)), sum(map(len, draft.err)))
        for name, lines in zip(part_names(self._batch.id, part.name), (draft.out, draft.err), strict=True):
            if lines:
                await self._desk.storage.put(name, in_pieces(b"".join(lines)))
        commit = Commit(part, parts, draft.members, draft.completed, draft.failed, draft.usage, skipped)
        reply = await self._desk.client.run(self._desk.client.cell.commit(self._batch.id, self._token, commit))
        if reply.state == "fenced":
            raise Lost
        if reply.state != "ok":
            raise Moved(f"a part was not taken ({reply.state}): what the server holds is read again")
        metrics = self._desk.metrics
        metrics.parts.inc()
        metrics.lines.labels("completed").inc(draft.completed)
        metrics.lines.labels("failed").inc(draft.failed)
        metrics.lines.labels("undone").inc(len(draft.out) + len(draft.err) - draft.completed - draft.failed)

    def _line_id(self, place: int) -> str:
        return f"{ID_PREFIX}{self._batch.id.removeprefix('batch_').lower()}_{place}"


def _undone(line: Line, ended: Sequence[Outcome], undone_as: str | None) -> str | None:
    """The state of the batch that left a line undone, where that is why it has no answer. The batch's deadline is its
    jobs', by the server's clock, which may be some milliseconds ahead."""
    statuses = {outcome.status for outcome in ended}
    if undone_as == "cancelled" and JobStatus.CANCELLED in statuses:
        return "cancelled"
    if JobStatus.EXPIRED not in statuses:
        return None
    jobs = line.request.jobs if line.request is not None else ()
    has_own_limit = any(job.timeout_s is not None or job.queue_timeout_s is not None for job in jobs)
    return None if has_own_limit and undone_as != "expired" else "expired"


def end_of(batch: BatchInfo, now: float) -> str | None:
    """The state in which a batch is to end before its lines are all done, if it is."""
    if batch.status is BatchStatus.CANCELLING:
        return "cancelled"
    return "expired" if now >= batch.expires_at else None
