"""A stranger's hand in the keys of files and batches: the other batch ends whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from batch_bench import BATCH_KEYS, BATCHES, LEASE_MS, TOTAL, Bench
from spoiling import Case, cases

from octavo.client.batches import BatchClient
from octavo.queue.batches.calls import NewFile
from octavo.queue.batches.keys import FILE, new_id
from octavo.queue.protocol import Fenced
from octavo.terms.errors import OctavoError

SHARES = 6
_OURS = re.compile(rb"\{c00\}:(f|files|fx|fq|bt|bto|bte|btp|bts|btL|batches)(:|$)")


class Live:
    """Two batches on their way, and a file that expires. One batch may be spoiled."""

    def __init__(self, url: str) -> None:
        self.spoiled, self.whole = Bench(url), Bench(url, is_first=False)
        self.redis = self.spoiled.redis
        note = BATCHES.note_file(NewFile(new_id(FILE), "zoo", "x", "user_data", 5, "00", expires_s=3600), cap=1000)
        self.spoiled.run(note)
        for bench in (self.spoiled, self.whole):
            bench.run(BATCHES.claim("c", f"t{bench.batch}", lease_ms=LEASE_MS))
        # Claims are in order of time, which two batches of one millisecond have alike.
        self.tokens = {bench.batch: bench.field("tok") for bench in (self.spoiled, self.whole)}
        for bench in (self.spoiled, self.whole):
            token = self.tokens[bench.batch]
            bench.run(BATCHES.begin(bench.batch, token, total=TOTAL, model="m"))
            for place, index in ((0, 0), (1, 0), (1, 1), (3, 0)):
                bench.submit(token, place, index)
            bench.run(BATCHES.advance(bench.batch, token, 0, 4, [2]))
            bench.end_one()
            bench.harvest(token, 1)
        self.spoiled.end_one()
        self._kept = [(n, self.redis.dump(n), self.redis.pttl(n)) for n in self.redis.scan_iter(count=1000)]

    def restore(self) -> None:
        pipeline = self.redis.pipeline()
        pipeline.flushall()
        for name, value, ttl in self._kept:
            pipeline.restore(name, max(0, ttl), value)
        pipeline.execute()

    def cases(self) -> Iterator[Case]:
        """Every way to spoil what is not the whole batch's alone."""
        mine = (self.whole.batch.encode(), self.whole.file.encode())
        for case in cases(self.redis):
            name = case.name.encode()
            if _OURS.search(name) and not any(one in name for one in mine):
                yield case

    def run_out(self) -> list[int]:
        """Clerks work on every batch that they can get. Places in the parts of the whole one at its end."""
        parts: list[int] = []
        for round_ in range(3):
            for bench in (self.spoiled, self.whole):
                if self.redis.type("{c00}:btL") == b"zset":
                    bench.lapse()
            tokens = [f"new{round_}{number}" for number in range(3)]
            taken = {self.whole.run(BATCHES.claim("d", token, lease_ms=LEASE_MS)): token for token in tokens}
            for bench in (self.spoiled, self.whole):
                if bench.batch in taken:
                    parts = self._worked(bench, taken[bench.batch], parts)
        return parts

    def _worked(self, bench: Bench, token: str, parts: list[int]) -> list[int]:
        try:
            found = bench.bring_to_end(token)
        except (AssertionError, Fenced, redis.ResponseError, ValueError):
            if bench is self.whole:
                raise
            return parts
        return found if bench is self.whole else parts


@pytest.mark.full(but=2)
@pytest.mark.parametrize("share", range(SHARES))
def test_whatever_is_spoiled_the_other_batch_ends_whole(redis_url: str, share: int) -> None:
    live = Live(redis_url)
    every = list(live.cases())
    assert len(every) > 300
    failures = []
    for case in every[share::SHARES]:
        live.restore()
        case.spoil(live.redis)
        try:
            parts = live.run_out()
            if sorted(parts) != list(range(TOTAL)) or live.whole.field("st") != "completed":
                failures.append(f"{case.name[:140]}: {parts} {live.whole.field('st')}")
        except Exception as error:
            failures.append(f"{case.name[:140]}: {type(error).__name__}: {str(error)[:200]}")
    assert not failures, f"{len(failures)} of {len(every[share::SHARES])}:\n" + "\n".join(failures[:30])


@pytest.mark.full(but=1)
@pytest.mark.parametrize("share", range(2))
async def test_whatever_is_spoiled_readers_get_answers_or_clear_errors(redis_url: str, share: int) -> None:
    live = Live(redis_url)
    async with BatchClient(redis_url) as client:
        for case in list(live.cases())[share :: 2 * 3]:
            live.restore()
            case.spoil(live.redis)
            asks: list[Any] = [
                lambda: client.batch(live.spoiled.batch),
                lambda: client.file(live.spoiled.file),
                lambda: client.files("acme", limit=10),
                lambda: client.batches("acme", limit=10),
                client.batches_open,
            ]
            for ask in asks:
                try:
                    await ask()
                except OctavoError:
                    pass
                except Exception as error:
                    raise AssertionError(case.name) from error
            assert (await client.batch(live.whole.batch)) is not None, case.name


def test_what_is_lost_of_a_batch_is_told_again_from_its_jobs(redis_url: str) -> None:
    live = Live(redis_url)
    bench = live.spoiled
    names = [BATCH_KEYS.open_jobs(bench.batch), BATCH_KEYS.ended_jobs(bench.batch)]
    before = [bench.members(name) for name in names]
    assert all(before), before
    uses = bench.redis.hget(BATCH_KEYS.file(bench.file), "uses")
    bench.redis.delete(*names, "{c00}:btL", "{c00}:files", "{c00}:batches", "{c00}:fx", "{c00}:mended")
    bench.redis.set("{c00}:fq", "somebody else's")
    bench.run(BATCHES.note_file(NewFile(new_id(FILE), "acme", "x", "batch", 1, "00"), cap=1000))
    after = [bench.members(name) for name in names]
    assert after[0] == before[0]
    assert [member for member in after[1] if member.job_id != "-"] == [m for m in before[1] if m.job_id != "-"]
    assert bench.redis.hget(BATCH_KEYS.file(bench.file), "uses") == uses
    assert bench.redis.hgetall("{c00}:fq") == {b"acme": b"201", b"zoo": b"5"}
    assert bench.redis.zcard("{c00}:btL") == 2
    assert bench.redis.zcard("{c00}:fx") == 1
