"""`octavo jobs` for scripts."""

from __future__ import annotations

import redis
from queue_client import known_queue
from typer.testing import CliRunner

from octavo.cli.app import build_app
from octavo.queue.calls import run_sync


def test_tail_fails_unless_the_job_completed(redis_url: str, redis_sync: redis.Redis) -> None:
    queue = known_queue(redis_sync)
    job_id = queue.submit()
    run_sync(redis_sync, queue.cell.cancel(job_id))
    result = CliRunner().invoke(build_app(), ["jobs", "tail", job_id, "--redis-url", redis_url])
    assert result.exit_code == 1
    assert f"job {job_id} is cancelled" in result.stderr


def test_tail_goes_on_behind_an_offset_or_a_position(redis_url: str, redis_sync: redis.Redis) -> None:
    queue = known_queue(redis_sync)
    job_id = queue.submit()
    run_sync(redis_sync, queue.cell.cancel(job_id))

    def tail(after: str) -> tuple[int, str]:
        result = CliRunner().invoke(build_app(), ["jobs", "tail", job_id, "--after", after, "--redis-url", redis_url])
        return result.exit_code, result.stderr

    assert tail("0.0123abcd")[0] == 1
    assert tail("-1")[0] == 2
    code, said = tail("1.2")
    assert (code, "no position in a stream" in said) == (2, True)
