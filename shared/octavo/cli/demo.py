"""`octavo demo`: everything on one machine, and a worker that dies in mid-answer unnoticed."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from octavo.cli.answers import Answer, Screen
from octavo.cli.console import fail
from octavo.client.asynchronous import AsyncClient
from octavo.queue import local
from octavo.service.console import err, out
from octavo.service.ports import free_port, is_free
from octavo.service.service import Plan, Service, service
from octavo.service.service_log import ServiceLog

_PROMPTS = ("ROMEO:\nO, speak again,", "KING RICHARD III:\nNow is the", "First Witch:\nWhen shall we")
_MAX_TOKENS = 400
_KILL_AFTER = 60  # tokens of the answer whose worker is killed
_LEASE_S = 2.0
_PORT = 8000


def demo() -> None:
    """Start everything on the bundled model, stream answers, kill a worker in mid-answer, show that nothing is lost.

    Stays up on a terminal until Ctrl-C; where there is none it exits with 0, or with 1 if a stream was not whole.
    """
    port = _PORT if is_free("127.0.0.1", _PORT) else free_port()
    environment = {
        "OCTAVO_LEASE": str(_LEASE_S),
        "OCTAVO_LOG_LEVEL": "warning",
        "OCTAVO_KV_MEMORY": "0.25",  # two workers may share one GPU
    }
    folder = tempfile.mkdtemp(prefix="octavo-demo-")  # another service may have the state folder
    plan = Plan("demo", 2, "127.0.0.1", port, None, environment, controls=Path(folder) / "controls.sock")
    out.print("[bold]octavo demo[/]: starting a server, a gateway and two workers ...")
    started = time.monotonic()
    try:
        with service(plan, None) as running:
            out.print(f"ready after {time.monotonic() - started:.1f} s\n")
            if not asyncio.run(_show(running)):
                raise fail("a stream was not what the promise says: please report this")
            _print_addresses(plan)
            if sys.stdin.isatty() and out.is_terminal:
                _stay(running, plan)
    except KeyboardInterrupt:
        err.print("stopped")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _show(running: Service) -> bool:
    async with AsyncClient(running.redis_url) as client:
        answers = [await _submit(client, prompt, seed) for seed, prompt in enumerate(_PROMPTS, 1)]
        screen = Screen(answers)
        async with asyncio.TaskGroup() as group:
            for answer in answers:
                group.create_task(answer.follow(screen.changed))
            killed = group.create_task(_kill_in_mid_answer(client, running, answers, screen))
            group.create_task(screen.draw())
        return await _report(client, running, answers, killed.result())


async def _submit(client: AsyncClient, prompt: str, seed: int) -> Answer:
    job = await client.submit(
        prompt, model="demo", max_tokens=_MAX_TOKENS, temperature=0.8, top_p=0.95, seed=seed, ignore_eos=True
    )
    return Answer(job, prompt, seed, milestone=_KILL_AFTER)


async def _kill_in_mid_answer(
    client: AsyncClient, running: Service, answers: list[Answer], screen: Screen
) -> dict[str, int]:
    """SIGKILL the worker of the first answer once it is well under way. How far each of its answers was, by job id."""
    await answers[0].reached.wait()
    victim = (await answers[0].job.info()).worker
    pid = next(worker.pid for worker in await client.workers() if worker.id == victim)
    child = next(child for child in running.workers if child.pid == pid)
    infos = [(answer, await answer.job.info()) for answer in answers]
    child.kill()
    cut = {answer.job.id: len(answer.token_ids) for answer, info in infos if info.worker == victim and not answer.ended}
    screen.say(f"SIGKILL {child.name} (process {child.pid}) in the middle of {len(cut)} of {len(answers)} answers")
    return cut


async def _report(client: AsyncClient, running: Service, answers: list[Answer], cut: dict[str, int]) -> bool:
    """Say what happened to every answer, and compare it with an undisturbed run."""
    names = {worker.id: running.name_of(worker.pid) for worker in await client.workers()}
    whole = bool(cut)
    out.print()
    for answer in answers:
        tokens = len(answer.token_ids)
        undisturbed = await (await _submit(client, answer.prompt, answer.seed)).job.result()
        same = undisturbed.token_ids == tuple(answer.token_ids)
        gapless = answer.gaps == 0 and tokens == _MAX_TOKENS
        whole = whole and same and gapless
        marks = f"{'no gap, no repeat' if gapless else 'NOT GAPLESS'}, {'identical to' if same else 'DIFFERENT FROM'}"
        line = f"{answer.speaker:>16}: {tokens} tokens, {marks} an undisturbed run"
        if answer.job.id in cut:
            heir = names.get((await answer.job.info()).worker or "", "nobody")
            line += f"\n{'':18}cut at token {cut[answer.job.id]}, {heir} went on {answer.longest_wait_s:.1f} s later"
        out.print(line, style="green" if same and gapless else "bold red")
    if not cut:
        out.print("no answer was running on the worker when it was killed", style="bold red")
    return whole


def _print_addresses(plan: Plan) -> None:
    out.print(f"\n[bold]page[/] {plan.api_url}    docs  {plan.api_url}/docs")
    body = '{"model": "demo", "prompt": "JULIET:", "max_tokens": 40, "stream": true}'
    print(f"curl -N {plan.api_url}/v1/completions -H 'Content-Type: application/json' -d '{body}'\n")


def _stay(running: Service, plan: Plan) -> None:
    found = local.LocalService(pid=os.getpid(), redis_url=running.redis_url, api_url=plan.api_url, model=plan.model)
    out.print("up until Ctrl-C; in another terminal:  [bold].venv/bin/octavo run 'JULIET:'[/]  or  [bold]top[/]")
    if local.running() is None:
        local.publish(found)
    try:
        running.supervise(ServiceLog(err))
    finally:
        local.withdraw(found.pid)
