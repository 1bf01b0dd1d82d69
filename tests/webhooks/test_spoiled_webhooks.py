"""A stranger's hand in the keys of webhooks: deliveries of the other tenant are all made, and jobs end."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from spoiling import Case, cases
from webhook_bench import HOOK_KEYS, HOOKS, HookBench

from octavo.client.webhooks import WebhookClient
from octavo.queue.webhooks.failing import list_failing
from octavo.terms.errors import OctavoError

SHARES = 4
_OURS = re.compile(rb"\{c00\}:(he|hs|hd|hq|hl|hf|hr|ht|ho|hx|hc|endpoints)(:|'|$)")


class Live:
    """An endpoint of each of two tenants, with deliveries that wait, are tried, and have failed. One may be spoiled."""

    def __init__(self, url: str) -> None:
        self.bench = HookBench(url)
        self.redis = self.bench.redis
        self.spoiled, self.whole = self.bench.endpoint("acme"), self.bench.endpoint("zoo")
        for tenant in ("acme", "zoo"):
            for _ in range(3):
                self.bench.event(tenant)
        one, other, *_ = self.bench.claim(4)
        self.bench.run(HOOKS.commit(one, "failed", answer="500"))
        self.bench.run(HOOKS.commit(other, "again", pause_ms=0, answer="500"))
        self.redis.delete("{c00}:mended")
        self.wanted = set(self.redis.zrange(HOOK_KEYS.waiting(self.whole), 0, -1))
        self.wanted |= set(self.redis.zrange(HOOK_KEYS.tried(self.whole), 0, -1))
        assert self.wanted
        self._kept = [(n, self.redis.dump(n), self.redis.pttl(n)) for n in self.redis.scan_iter(count=1000)]

    def restore(self) -> None:
        pipeline = self.redis.pipeline()
        pipeline.flushall()
        for name, value, ttl in self._kept:
            pipeline.restore(name, max(0, ttl), value)
        pipeline.execute()

    def cases(self) -> Iterator[Case]:
        """Every way to spoil what is not the whole tenant's alone."""
        for case in cases(self.redis):
            name = case.name.encode()
            if _OURS.search(name) and self.whole.encode() not in name and b"zoo" not in name:
                yield case

    def run_out(self) -> list[bytes]:
        """A worker ends another job of the whole tenant, and a courier delivers all that it gets. Events of the whole
        endpoint that it got."""
        last = self.bench.event("zoo")
        delivered = []
        for _ in range(8):
            for tried in self.bench.claim():
                self.bench.run(HOOKS.commit(tried, "ok"))
                if tried.endpoint_id == self.whole:
                    delivered.append(tried.event_id.encode())
            for kind in ("hl", "hq"):  # leases run out, pauses are over
                name = f"{{c00}}:{kind}:{self.whole}"
                for event in self.redis.zrange(name, 0, -1):
                    self.redis.zadd(name, {event: 1})
                    self.redis.zadd("{c00}:hr:zoo", {self.whole: 1})
            if self.redis.type("{c00}:ht") == b"zset" and self.redis.zscore("{c00}:ht", "zoo"):
                self.redis.zadd("{c00}:ht", {"zoo": 1})
            self.redis.delete("{c00}:mended")
        assert last.encode() in delivered
        return delivered


@pytest.mark.full(but=1)
@pytest.mark.parametrize("share", range(SHARES))
def test_whatever_is_spoiled_the_other_tenants_events_are_delivered(redis_url: str, share: int) -> None:
    live = Live(redis_url)
    every = list(live.cases())
    assert len(every) > 200
    failures = []
    for case in every[share::SHARES]:
        live.restore()
        case.spoil(live.redis)
        try:
            delivered = live.run_out()
            if not live.wanted <= set(delivered):
                failures.append(f"{case.name[:140]}: {len(live.wanted - set(delivered))} lost")
        except Exception as error:
            failures.append(f"{case.name[:140]}: {type(error).__name__}: {str(error)[:200]}")
    assert not failures, f"{len(failures)} of {len(every[share::SHARES])}:\n" + "\n".join(failures[:30])


@pytest.mark.full(but=1)
@pytest.mark.parametrize("share", range(2))
async def test_whatever_is_spoiled_readers_get_answers_or_clear_errors(redis_url: str, share: int) -> None:
    live = Live(redis_url)
    async with WebhookClient(redis_url) as client:
        for case in list(live.cases())[share :: 2 * 3]:
            live.restore()
            case.spoil(live.redis)
            for ask in (
                lambda: client.endpoint(live.spoiled),
                lambda: client.endpoints("acme", limit=10),
                lambda: client.deliveries(live.spoiled, limit=10),
                client.backlog,
                lambda: list_failing(client.redis, client.keys, 10),  # as readers of the fleet ask
            ):
                try:
                    with client.errors():
                        await ask()
                except OctavoError:
                    pass
                except Exception as error:
                    raise AssertionError(case.name) from error
            assert (await client.endpoint(live.whole)) is not None, case.name


def test_what_is_lost_is_told_again_from_endpoints_and_deliveries(redis_url: str) -> None:
    live = Live(redis_url)
    names = ("hs", "hq", "hl", "hf", "hr", "ht", "ho", "hx", "hc", "endpoints")
    before = {name for kind in names for name in live.redis.scan_iter(f"{{c00}}:{kind}*")}
    waiting = live.redis.hget("{c00}:hc", "waiting")
    live.redis.delete(*(before - {b"{c00}:hs:zoo"}))
    live.redis.set("{c00}:hc", "somebody else's")
    live.bench.event("zoo")
    after = {name for kind in names for name in live.redis.scan_iter(f"{{c00}}:{kind}*")}
    assert after == before
    assert int(live.redis.hget("{c00}:hc", "waiting") or 0) in (int(waiting), int(waiting) + 1)
    assert live.redis.zcard("{c00}:endpoints") == 4


def test_deliveries_that_stand_in_no_line_are_found(redis_url: str) -> None:
    bench = HookBench(redis_url)
    bench.endpoint()
    event = bench.event()
    bench.redis.delete("{c00}:ht")
    assert [tried.event_id for tried in bench.claim()] == [event]


def test_an_endpoint_under_another_tenants_name_stops_no_delivery(redis_url: str) -> None:
    bench = HookBench(redis_url)
    spoiled, whole = bench.endpoint("acme"), bench.endpoint("zoo")
    bench.event("acme")
    event = bench.event("zoo")
    bench.redis.hset(HOOK_KEYS.endpoint(spoiled), "tn", "another")
    assert event in {tried.event_id for tried in bench.claim() if tried.endpoint_id == whole}
