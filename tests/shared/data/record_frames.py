"""Records frames as this version writes them, for `test_recorded_frames.py`.

    python tests/shared/data/record_frames.py tests/shared/data/frames-0.1.json

Each later version reads the frames of the versions before it, because a Redis outlives the processes around it. A file
that was recorded by a released version is never recorded again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import redis

from octavo.queue import wire
from octavo.queue.calls import run_sync
from octavo.queue.keys import Keys
from octavo.queue.protocol import Append, Cell
from octavo.service.server import EmbeddedServer
from octavo.terms.conversation import Message
from octavo.terms.limits import Limits, Retention
from octavo.terms.messages import (
    Chunk,
    JobError,
    JobStatus,
    Progress,
    Terminal,
    TokenizerAnswer,
    TokenizerQuestion,
    TokenLogprob,
    TopLogprob,
    Usage,
    WorkerMap,
)
from octavo.terms.models import JobRequest
from octavo.terms.sampling import SamplingParams
from octavo.terms.structs import Record, as_dict
from octavo.terms.workers import ModelCard, PinOutcome, PrefixPin, WorkerInfo, WorkerMemory

STATS = {
    "running": 3, "waiting": 1, "free_blocks": 40, "used_blocks": 50, "cached_blocks": 9, "steps": 1234,
    "preemptions": 7, "prompt_tokens": 5000, "cached_tokens": 1200, "recomputed_tokens": 64, "generated_tokens": 9000,
    "step_ms": 3.25, "swapped": 1, "shared_blocks": 4, "pinned_blocks": 2, "quarantined_blocks": 1, "host_blocks": 20,
    "host_free_blocks": 15, "cold_blocks": 1, "restored_tokens": 32, "swapped_out": 2, "recompute_cheaper": 1,
    "recompute_cached": 1, "recompute_host_full": 1, "recompute_no_swap": 1, "recompute_no_choice": 1, "plan_s": 0.5,
    "launch_s": 0.25, "wait_s": 12.5, "commit_s": 0.75, "idle_s": 100.5, "decoded_tokens": 8000,
    "prefilled_tokens": 3800, "jobs": 4, "num_blocks": 100, "max_running": 256, "kv_dtype": "bfloat16",
    "engine_pid": 4321, "drafted_tokens": 600, "accepted_tokens": 450,
}  # fmt: skip
LOGPROB = TokenLogprob(
    token_id=5, token=b"\xe2\x82", logprob=-0.5, top=(TopLogprob(token_id=6, token=b" a", logprob=-1.25),)
)
FIRST = TokenLogprob(token_id=1, token=b"<s>", logprob=None)
USAGE = Usage(prompt_tokens=3, completion_tokens=5, cached_tokens=2, recomputed_tokens=1, restored_tokens=4)
WITH_DRAFTS = Usage(3, 5, 2, 1, 4, drafted_tokens=9, accepted_tokens=0)
ERROR = JobError(code="invalid_token_id", message="token id 9 is not in the vocabulary", param="prompt")
CHUNKS = (
    Chunk(token_ids=(7,), texts=(" one",)),
    Chunk(index=1, token_ids=(5, 70000), texts=("", "€"), logprobs=(LOGPROB, FIRST)),
    Chunk(index=2, token_ids=(9,), texts=("end",), finish_reason="stop"),
    Chunk(index=3, finish_reason="length"),
)
TERMINALS = (
    Terminal(status=JobStatus.COMPLETED, usage=USAGE),
    Terminal(status=JobStatus.FAILED, error=ERROR),
    Terminal(status=JobStatus.COMPLETED, usage=USAGE, prompt_logprobs=(FIRST, LOGPROB), prompt_token_ids=(1, 5)),
    Terminal(status=JobStatus.COMPLETED, usage=WITH_DRAFTS),
)
REQUESTS = (
    JobRequest(model="demo", prompt="Once upon a time"),
    JobRequest(
        model="org/model-8b",
        prompt=(1, 2, 1 << 30),
        sampling=SamplingParams(
            n=2, best_of=3, max_tokens=None, temperature=0.5, top_k=40, top_p=0.9, min_p=0.05, seed=(1 << 63) - 1,
            repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=-0.5, logit_bias={70000: -100.0, 3: 1.5},
            stop=("\n", "END"), stop_token_ids=(2,), logprobs=3, prompt_logprobs=0, min_tokens=1, ignore_eos=True,
        ),
        priority="batch", add_special_tokens=False, timeout_s=60.0, queue_timeout_s=5.5, metadata={"user": "é"},
    ),
    JobRequest(
        model="demo",
        messages=(Message(role="system", content="Be brief."), Message(role="user", content="Grüß Gott")),
        sampling=SamplingParams(beam_width=4, length_penalty=0.8, early_stopping="never"),
        priority="high",
    ),
)  # fmt: skip
MEMORY = WorkerMemory(
    worker="w", model="demo", at=1.5, block_size=16, kv_dtype="bfloat16",
    blocks={"total": 6, "free": 1, "used": 3, "cached": 1, "quarantined": 1, "shared": 1, "pinned": 1},
    host={"total": 2, "used": 1, "cold": 1, "free": 1}, sharing=((2, 1),), cells=".cqusp",
    cell_references=(0, 0, 0, 1, 2, 1), host_cells="u.",
    tokens={"prompt": 10, "cached": 4, "recomputed": 2, "restored": 1},
    preemptions={name: STATS[name] for name in ("swapped_out", "recompute_cheaper")},
)  # fmt: skip
WORKER = WorkerInfo(
    id="w", model="demo", host="h", pid=7, started_at=2.5, stats=STATS, numerics="bfloat16 on H100", digest="0a1b",
    pins={"acme:p": PinOutcome(state="refused", version="0a", tokens=3, message="too short")},
)  # fmt: skip
MAPS = (
    WorkerMap("w", 1.5, 16, 2, 1, ("a", "b"), b"\x10\x80\x11\x00", b"\x01\x00\x00\x00\x02\x00\x00\x00"),
    WorkerMap(
        "w", 1.5, 16, 2, 1, ("a",), b"\x10\x40\x01\x00", b"\x05\x00\x00\x00\x03\x00\x00\x00",
        windows=(2, 1), states=(2, 0),
    ),
)  # fmt: skip

QUESTIONS = (
    TokenizerQuestion("a1", request=wire.encode_request(REQUESTS[0])),
    TokenizerQuestion("a2", token_ids=(1, 70_000)),
)
ANSWERS = (
    TokenizerAnswer((1, 70_000), ("a", "é")),
    TokenizerAnswer(text="aé"),
    TokenizerAnswer(error=JobError("no_tokenizer", "this model has no tokenizer")),
)


def main(path: Path) -> None:
    """Write a file of `[kind, frame in hexadecimal, what it says]`."""
    rows = [(kind, frame.hex(), value) for kind, frame, value in (*made_here(), *made_by_scripts())]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def made_here() -> list[tuple[str, bytes, Any]]:
    """Frames that Python writes."""
    card = ModelCard(name="demo", max_model_len=512, vocab_size=256, has_tokenizer=True, created_at=1.5)
    progress = Progress(attempt=2, tokens=17, score=-3.5, finished=1, text="so far")
    pins = (
        PrefixPin(name="p", model="demo", tenant="acme", system="Be brief."),
        PrefixPin(name="q", model="demo", tenant="acme", prompt=(1, 2)),
    )
    return [
        *(("request", wire.encode_request(request), plain(request)) for request in REQUESTS),
        *(("entry", wire.encode_chunk(chunk), plain(chunk)) for chunk in CHUNKS),
        *(("entry", wire.encode_terminal(terminal), plain(terminal)) for terminal in TERMINALS),
        *(("result", wire.encode_result(end, CHUNKS), [plain(end), plain(CHUNKS)]) for end in TERMINALS[::3]),
        ("error", wire.encode_error(ERROR), plain(ERROR)),
        *(("usage", wire.encode_usage(usage), plain(usage)) for usage in (USAGE, WITH_DRAFTS)),
        ("metadata", wire.encode_metadata({"user": "é"}), {"user": "é"}),
        ("progress", wire.encode_progress(progress), plain(progress)),
        ("model", wire.encode_model(card), plain(card)),
        ("worker", wire.encode_worker(WORKER), plain(WORKER)),
        *(("pin", wire.encode_pin(pin), plain(pin)) for pin in pins),
        ("memory", wire.encode_memory(MEMORY), plain(MEMORY)),
        *(("map", wire.encode_map(found), plain(found)) for found in MAPS),
        *(("question", wire.encode_question(question), plain(question)) for question in QUESTIONS),
        *(("answer", wire.encode_answer(answer), plain(answer)) for answer in ANSWERS),
    ]


def made_by_scripts() -> list[tuple[str, bytes, Any]]:
    """Frames that the Lua scripts write: the end of a job without an owner, its error, and a live message."""
    cell, keys = Cell(), Keys()
    job_id = "g00_01ARZ3NDEKTSV4RRFFQ69G5FAV"
    card = ModelCard(name="demo", max_model_len=512, vocab_size=256, has_tokenizer=True, created_at=1.5)
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as connection:
        heard = connection.pubsub(ignore_subscribe_messages=True)
        heard.subscribe(keys.channel("reader"))
        heard.get_message(timeout=1)
        run_sync(connection, cell.register_model(card))
        run_sync(
            connection,
            cell.enqueue(
                job_id, REQUESTS[0], seed=1, tenant="acme", idempotency_key=None, limits=Limits(),
                retention=Retention(), subscriber_id="reader",
            ),
        )  # fmt: skip
        claims = run_sync(connection, cell.claim("demo", "w", max_jobs=1, max_tokens=99, lease_ms=60_000, idle=True))
        run_sync(connection, cell.append([Append(job_id, claims.jobs[0].token, 0, CHUNKS[0])]))
        live = heard.get_message(timeout=1)["data"]
        connection.hdel(keys.job(job_id), "body")
        run_sync(connection, cell.release([(job_id, claims.jobs[0].token)], why="back"))
        (_, fields) = connection.xrevrange(keys.stream(job_id), count=1)[0]
        error = connection.hget(keys.job(job_id), "err")
    return [
        ("live", live, plain(wire.decode_live(live))),
        ("entry", fields[b"d"], plain(wire.decode_entry(fields[b"d"]))),
        ("error", error, plain(wire.decode_error(error))),
    ]


def plain(value: Any) -> Any:
    """A message as JSON: fields by name, bytes in hexadecimal."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, Record):
        return plain(as_dict(value))
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    return value


if __name__ == "__main__":
    main(Path(sys.argv[1]))
