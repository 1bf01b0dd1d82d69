"""Plays the worker of `client_tokens.py`: appends a token to each of its jobs, one pipeline after the other.

python benchmarks/lab/token_feeder.py REDIS_URL JOBS TOKENS
"""

from __future__ import annotations

import sys
import time

import redis

from octavo.queue import wire
from octavo.queue.calls import run_sync
from octavo.queue.protocol import Append, Cell
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage
from octavo.terms.workers import ModelCard

MODEL = "bench"
PAUSE_S = 0.004  # a step: readers are not to fall behind, which would make them read pages instead


def main(url: str, jobs: int, tokens: int) -> None:
    cell = Cell()
    with redis.Redis.from_url(url) as connection:
        card = ModelCard(name=MODEL, max_model_len=1 << 20, vocab_size=256, has_tokenizer=False, created_at=1.0)
        run_sync(connection, cell.register_model(card))
        print("ready", flush=True)
        sys.stdin.readline()
        call = cell.claim(MODEL, "feeder", max_jobs=jobs, max_tokens=1 << 24, lease_ms=600_000, idle=True)
        claims = run_sync(connection, call).jobs
        for place in range(tokens):
            items = [Append(c.job_id, c.token, place, Chunk(token_ids=(place,), texts=(" hello",))) for c in claims]
            run_sync(connection, cell.append(items))
            time.sleep(PAUSE_S)
        for claim in claims:
            end = Terminal(status=JobStatus.COMPLETED, usage=Usage(prompt_tokens=1, completion_tokens=tokens))
            run_sync(connection, cell.finish(claim.job_id, claim.token, end, wire.encode_result(end, [])))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
