"""`octavo batch submit`, `status`, `cancel` and `fetch`: batches that a gateway keeps and its clerk runs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from octavo.cli.console import AsJson, fail, print_json
from octavo.service.batches.remote import Gateway
from octavo.service.console import err, out
from octavo.terms.batches import BatchStatus
from octavo.terms.logs import printable

_POLL_S = 1.0

Url = Annotated[str | None, typer.Option("--url", help="Address of the gateway.  [default: OCTAVO_URL, `octavo up`]")]
BatchId = Annotated[str, typer.Argument(help="A batch, as `submit` names it.")]


def submit(
    source: Annotated[Path, typer.Argument(help="OpenAI's batch lines.", exists=True, dir_okay=False)],
    window: Annotated[str, typer.Option(help="Hours or days that it may take, such as 24h or 7d.")] = "24h",
    watch: Annotated[bool, typer.Option("--watch", help="Wait for its end. Ctrl-C leaves it running.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Upload a file of requests and have the service run it. The endpoint is that of its first line."""
    gateway = Gateway.found(url)
    endpoint = _endpoint(source)
    batch = gateway.create(gateway.upload(source), endpoint, window)
    if watch:
        if not as_json:
            _say(batch)
        batch = _watched(gateway, batch)
    _show(batch, as_json)


def status(
    batch_id: BatchId,
    watch: Annotated[bool, typer.Option("--watch", help="Wait for its end.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """How a batch stands. Exit code 1 if it failed, or has failed lines."""
    gateway = Gateway.found(url)
    batch = gateway.batch(batch_id)
    _show(_watched(gateway, batch) if watch else batch, as_json)


def cancel(batch_id: BatchId, url: Url = None, as_json: AsJson = False) -> None:
    """Ask for a batch's end. What has ended of it can be fetched."""
    _show(Gateway.found(url).cancel(batch_id), as_json, judged=False)


def fetch(
    batch_id: BatchId,
    target: Annotated[Path, typer.Argument(help="Where the answers go.")],
    errors: Annotated[Path | None, typer.Option(help="Where lines without an answer go.")] = None,
    url: Url = None,
) -> None:
    """Download what a batch has come to. Exit code 1 if it has not ended, or lines have no answer."""
    gateway = Gateway.found(url)
    batch = gateway.batch(batch_id)
    if not _has_ended(batch):
        raise fail(f"{batch_id} is {batch['status']}: wait with octavo batch status {batch_id} --watch")
    for path, file_id in ((target, batch["output_file_id"]), (errors, batch["error_file_id"])):
        if path is not None:
            _download(gateway, file_id, path)
    _say(batch)
    if batch["error_file_id"] is not None or batch["status"] == "failed":
        raise typer.Exit(1)


def _download(gateway: Gateway, file_id: str | None, path: Path) -> None:
    """All of it or nothing."""
    draft = path.with_name(f"{path.name}.part")
    try:
        with draft.open("wb") as file:
            for piece in gateway.content(file_id) if file_id is not None else ():
                file.write(piece)
        draft.replace(path)
    except OSError as error:
        raise fail(f"cannot write {path}: {error.strerror or error}") from None


def _endpoint(source: Path) -> str:
    with source.open("rb") as file:
        first = next((line for line in file if line.strip()), b"")
    try:
        return str(json.loads(first)["url"])
    except (ValueError, KeyError, TypeError):
        raise fail(f"{source}: the first line is no batch line with a url; octavo batch run takes plain ones") from None


def _has_ended(batch: dict[str, Any]) -> bool:
    return BatchStatus(batch["status"]).is_terminal


def _watched(gateway: Gateway, batch: dict[str, Any]) -> dict[str, Any]:
    while not _has_ended(batch):
        time.sleep(_POLL_S)
        batch = gateway.batch(batch["id"])
    return batch


def _show(batch: dict[str, Any], as_json: bool, *, judged: bool = True) -> None:
    if as_json:
        print_json(batch)
    else:
        _say(batch)
    if judged and (batch["status"] == "failed" or batch["request_counts"]["failed"]):
        raise typer.Exit(1)


def _say(batch: dict[str, Any]) -> None:
    counts = batch["request_counts"]
    out.print(
        f"{batch['id']}  {batch['status']}  {counts['completed']} of {counts['total']}, {counts['failed']} failed"
    )
    for error in (batch["errors"] or {"data": []})["data"]:
        where = f"line {error['line']}: " if error["line"] else ""
        err.print(Text(printable(f"{where}{error['message']} ({error['code']})")))
