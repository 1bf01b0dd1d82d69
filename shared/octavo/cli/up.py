"""`octavo up`: server, gateway and workers on this machine, until Ctrl-C."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.console import WRONG_USAGE, counted, fail, value_of
from octavo.queue import local
from octavo.queue.address import parse_address
from octavo.service.console import err
from octavo.service.service import Plan, WrongSetting, device_groups, gpus, service
from octavo.service.service_log import ServiceLog


def up(
    model: Annotated[str, typer.Option(help="Folder or hub id of the model, or `demo` for the bundled one.")] = "demo",
    workers: Annotated[
        int | None, typer.Option(min=0, help=r"Worker processes. \[default: one a GPU, 2 where there is none]")
    ] = None,
    tensor_parallel: Annotated[
        int,
        typer.Option(min=1, max=16, envvar="OCTAVO_TENSOR_PARALLEL", help="Processes that share a worker's model."),
    ] = 1,
    host: Annotated[str, typer.Option(help="Address of the API; 0.0.0.0 for every interface.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the API.")] = 8000,
    speculate: Annotated[
        str | None,
        typer.Option(
            help="How workers guess tokens: off, ngram, suffix, draft:FOLDER (as draft:demo-draft), eagle:FOLDER."
        ),
    ] = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="Let the page add, kill and pause workers, on this machine.")
    ] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help=r"Where the embedded server keeps its data. \[default: the state directory]")
    ] = None,
) -> None:
    """Start server, gateway and workers on this machine and stay up until Ctrl-C.

    Jobs survive a restart: the embedded server writes all it holds to --data-dir. With REDIS_URL set, that server
    is used and none is started.
    """
    if (other := local.running()) is not None:
        raise fail(f"octavo is already up: {other.api_url} (process {other.pid}). Stop that one first.")
    value_of(parse_address)(os.environ.get("REDIS_URL"))
    count = workers if workers is not None else len(device_groups(gpus(), tensor_parallel)) or 2
    folder = data_dir or local.state_dir() / "server"
    environment = {"OCTAVO_FILES": os.environ.get("OCTAVO_FILES", str(folder / "files"))}
    if speculate is not None:
        environment["OCTAVO_SPECULATE"] = speculate
    has_secret = any(os.environ.get(name) for name in ("OCTAVO_SECRET", "OCTAVO_SECRET_FILE"))
    secret_file = None if has_secret else local.secret_file()
    plan = Plan(
        model,
        count,
        host,
        port,
        folder,
        environment,
        tensor_parallel=tensor_parallel,
        secret_file=secret_file,
        controls=local.controls_socket() if controls else None,
    )
    _run(plan)


def _run(plan: Plan) -> None:
    """Until Ctrl-C."""
    log = ServiceLog(err)
    log.say(f"starting {counted(plan.workers, 'worker')} with the model {plan.model} ...")
    try:
        with service(plan, log) as running:
            local.publish(
                local.LocalService(
                    pid=os.getpid(),
                    redis_url=running.redis_url,
                    api_url=plan.api_url,
                    model=plan.model,
                    secret_file=plan.secret_file,
                )
            )
            log.say(f"octavo is up: {plan.api_url}    stop it with Ctrl-C")
            if err.is_terminal:
                err.print(f"\ntry:  octavo run 'ROMEO:'\n      curl {plan.api_url}/v1/models\nsee:  {plan.api_url}\n")
            running.supervise(log)
    except WrongSetting as error:
        raise fail(error.message, WRONG_USAGE) from None
    except KeyboardInterrupt:
        log.say("octavo is down; queued jobs go on when it is up again")
    finally:
        local.withdraw(os.getpid())
