"""Workers on models that always write the same: the real agent, tokenizer and template, on the fake engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chat_templates import FAMILIES, PLAIN
from worker_process import WorkerProcess


@contextmanager
def scripted_model(
    redis_url: str,
    folder: Path,
    name: str,
    text: str,
    *,
    reply: str = "",
    number: int = 0,
    step_seconds: float = 0.001,
    **flags: object,
) -> Iterator[WorkerProcess]:
    """A worker that is ready. Its model is of a family and writes `text`, or `reply` after results of tools. `folder`
    gets its files and log; flags are the worker's."""
    family = FAMILIES.get(name, PLAIN)
    model, tokenizer = family.write(folder / name), family.tokenizer()

    def written(kind: str, text: str) -> str:
        ids = [*tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.token_to_id(family.end)]
        path = folder / f"{kind}-{name}.json"
        path.write_text(json.dumps(ids))
        return f"{kind}={path}"

    fake = f"step_seconds={step_seconds},vocab_size={tokenizer.get_vocab_size()},folder={model}"
    fake += f",{written('script', text)}"
    if reply:
        fake += f",{written('reply', reply)},results={tokenizer.token_to_id('<tool_response>')}"
    log = folder / f"worker{number}.log"
    with WorkerProcess(redis_url, log, fake=fake, model=model, lease=1.0, **flags) as worker:
        yield worker.wait_ready()
