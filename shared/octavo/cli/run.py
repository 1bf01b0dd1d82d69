"""`octavo run "prompt"`: one job, its answer as it is made."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Annotated, Any

import typer
from rich.markup import escape

from octavo.cli.console import AsJson, RedisUrl, print_json, print_text
from octavo.cli.waiting import Waiting
from octavo.client.asynchronous import AsyncClient
from octavo.client.handles import AsyncJob
from octavo.service.console import err
from octavo.terms.fields import Priority
from octavo.terms.messages import Progress

_TAIL = 40
_ENDED = 128 + signal.SIGTERM  # what a shell says of a process that a signal has ended


def run(
    prompt: Annotated[str, typer.Argument(help="The prompt; `-` reads it from standard input.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Name of the model.")] = "demo",
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a user's message for the chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="System message; implies --chat.")] = None,
    n: Annotated[int | None, typer.Option(help="Answers to make; more than one are shown when all are done.")] = None,
    beams: Annotated[int | None, typer.Option(help="Search with so many beams instead of sampling.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help=r"Most tokens of an answer. \[default: 256]")] = None,
    temperature: Annotated[float | None, typer.Option(help=r"0 is greedy. \[default: the model's]")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most likely tokens.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Least probability, relative to the most likely token.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; may be repeated.")] = None,
    priority: Annotated[Priority, typer.Option(help="high, normal or batch.")] = "normal",
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Submit a prompt and stream the answer. Ctrl-C cancels the job, and so does a reader that goes away."""
    given = {
        "n": n, "beam_width": beams, "max_tokens": max_tokens, "temperature": temperature, "top_p": top_p,
        "top_k": top_k, "min_p": min_p, "seed": seed, "stop": stop or None,
    }  # fmt: skip
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    text = sys.stdin.read() if prompt == "-" else prompt
    if chat or system is not None:
        turns = [("system", system)] if system is not None else []
        fields["messages"] = [{"role": role, "content": content} for role, content in [*turns, ("user", text)]]
    else:
        fields["prompt"] = text
    live = not as_json and fields.get("n", 1) == 1
    try:
        asyncio.run(_run(redis_url, {"model": model, "priority": priority, **fields}, live=live, as_json=as_json))
    except asyncio.CancelledError:
        raise typer.Exit(_ENDED) from None


async def _run(redis_url: str | None, fields: dict[str, Any], *, live: bool, as_json: bool) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup it is not
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async with AsyncClient(redis_url) as client:
        job = await client.submit(**fields)
        try:
            async with Waiting(client, job) as waiting:
                if live:
                    await _follow(job, waiting)
                    return
                result = await job.result()
        except (asyncio.CancelledError, BrokenPipeError):
            await job.cancel()
            err.print(f"\ncancelled job {job.id}")
            raise
    if as_json:
        print_json(result)
        return
    for sequence in result.sequences:
        print_text(f"--- {sequence.index}\n{sequence.text}")


async def _follow(job: AsyncJob, waiting: Waiting) -> None:
    with err.status("") as status:
        status.stop()  # shown only while a search has nothing else to show
        async for event in job.stream():
            waiting.heard()
            if event.progress is not None:
                status.start()
                status.update(_in_words(event.progress))
                continue
            status.stop()
            print_text(event.text, end="")
    print()


def _in_words(progress: Progress) -> str:
    line = f"searching: {progress.tokens} tokens, score {progress.score:.3f}, {progress.finished} finished"
    again = f", started over {progress.attempt - 1} times" if progress.attempt > 1 else ""
    ending = progress.text[-_TAIL:].replace("\n", " ")
    return escape(f"{line}{again}  ...{ending}")
