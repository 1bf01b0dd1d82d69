"""The messages of a log, apart from HTTP: however it is stored and read, they are the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from octavo.queue.pages import Page
from octavo.queue.streams import events_of_result
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage
from octavo.terms.models import Event, JobInfo
from octavo_gateway.durable.answers import next_cursor
from octavo_gateway.durable.log import Batch, Offset, batch_of_page

CHUNKS = st.lists(
    st.tuples(st.integers(0, 1), st.lists(st.text(max_size=3), min_size=1, max_size=5)), min_size=1, max_size=8
)
INFO = JobInfo(
    id="g00_01ARZ3NDEKTSV4RRFFQ69G5FAV",
    status=JobStatus.COMPLETED,
    model="m",
    tenant="t",
    priority="normal",
    created_at=0.0,
)


def events_of(chunks: list[tuple[int, list[str]]], after: int = 0) -> list[Event]:
    made = [Chunk(index, tuple(range(len(texts))), tuple(texts)) for index, texts in chunks]
    return events_of_result(Terminal(JobStatus.COMPLETED, Usage(1, 2)), made, after)


def batches(read_at: Any, limits: Iterator[int]) -> list[Batch]:
    found, at = [], Offset()
    while not (found and found[-1].closed):
        found.append(batch_of_page(Page(INFO, read_at(at.tokens), is_last=True), at, next(limits)))
        at = found[-1].next
    return found


@given(chunks=CHUNKS, data=st.data())
def test_every_split_of_a_log_into_reads_gives_the_same_bytes(chunks: Any, data: st.DataObject) -> None:
    """However many messages each read takes, and however the tokens are grouped into chunks."""
    one_by_one = [(index, [item]) for index, texts in chunks for item in texts]
    whole = batch_of_page(Page(INFO, events_of(chunks), is_last=True), Offset(), 1000)

    def limits() -> Iterator[int]:
        while True:
            yield data.draw(st.integers(1, 5))

    for grouped in (chunks, one_by_one):
        # Ids depend on the group in this test only: compare what reads give of one log.
        log = batch_of_page(Page(INFO, events_of(grouped), is_last=True), Offset(), 1000)
        parts = batches(lambda after, grouped=grouped: events_of(grouped, after), limits())
        assert [message for part in parts for message in part.messages] == list(log.messages)
        assert [part.up_to_date for part in parts][:-1] == [False] * (len(parts) - 1)
        assert [str(part.next) for part in parts] == sorted(str(part.next) for part in parts)
        assert [json.loads(m).get("text") for m in log.messages] == [json.loads(m).get("text") for m in whole.messages]


@given(first=st.builds(Offset, st.integers(0, 10**11), st.booleans()), tokens=st.integers(0, 10**11))
def test_offsets_sort_as_text_and_come_back(first: Offset, tokens: int) -> None:
    second = Offset(tokens)
    assert (str(first) < str(second)) == (first < second)
    assert Offset.parse(str(first)) == first


def test_cursors_only_grow() -> None:
    now = 1_800_000_000.0
    plain = int(next_cursor(None, now))
    assert int(next_cursor(str(plain - 1), now)) == plain
    assert all(int(next_cursor(str(given), now)) > given for given in (plain, plain + 1, plain + 10**6))
    for nonsense in ("", "-1", "x", "9" * 30, "²"):
        assert int(next_cursor(nonsense, now)) == plain
