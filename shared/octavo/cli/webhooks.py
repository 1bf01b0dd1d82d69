"""`octavo webhooks ls`, `deliveries`, `resend` and `test`: endpoints of a gateway, over HTTP."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from octavo.cli.console import AsJson, fail, print_json
from octavo.service.batches.remote import Gateway
from octavo.service.console import out
from octavo.terms.logs import printable

_PAGE = 100

app = typer.Typer(no_args_is_help=True, help="Webhook endpoints of a gateway, and what was delivered to them.")

Url = Annotated[str | None, typer.Option("--url", help="Address of the gateway.  [default: OCTAVO_URL, `octavo up`]")]
Endpoint = Annotated[str, typer.Argument(help="An endpoint, as `ls` names it.")]


@app.command("ls")
def endpoints(url: Url = None, as_json: AsJson = False) -> None:
    """List the endpoints, newest first."""
    found = _all(Gateway.found(url))
    if as_json:
        print_json(found)
        return
    _table(
        ("endpoint", "name", "url", "events", ""),
        [(one["id"], one["name"], one["url"], " ".join(one["event_types"]), _off(one)) for one in found],
    )


@app.command()
def deliveries(
    endpoint: Endpoint,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List what waits for an endpoint, and what failed to the end. Exit code 1 if something has failed."""
    told = Gateway.found(url).ask("GET", "/v1/webhook_endpoints", endpoint, f"deliveries?limit={limit}")
    found = told["data"]
    if as_json:
        print_json(found)
    else:
        rows = [(one["event_id"], one["event_type"], one["status"], str(one["tries"]), _last(one)) for one in found]
        _table(("event", "type", "", "tries", "last answer"), rows)
        if told.get("forgotten"):
            out.print(f"{told['forgotten']} more failed earlier, and are listed no more")
    if any(one["status"] == "failed" for one in found):
        raise typer.Exit(1)


@app.command()
def resend(
    endpoint: Endpoint,
    event: Annotated[str | None, typer.Argument(help="One event; without it all that failed to the end.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Send again what failed to the end, under the same ids."""
    asked = {} if event is None else {"event_id": event}
    done = Gateway.found(url).ask("POST", "/v1/webhook_endpoints", endpoint, "resend", asked)
    if as_json:
        print_json(done)
    else:
        out.print(f"{done['resent']} sent again")
    if event is not None and not done["resent"]:
        raise fail(f"no delivery of {printable(event)[:60]} to this endpoint has failed to the end")


@app.command("test")
def try_out(
    endpoint: Endpoint,
    event_type: Annotated[str, typer.Option("--type", help="The type of the sample.")] = "batch.completed",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Send a sample event now. Exit code 1 unless the receiver takes it."""
    told = Gateway.found(url).ask("POST", "/v1/webhook_endpoints", endpoint, "test", {"event_type": event_type})
    if as_json:
        print_json(told)
    else:
        out.print(f"{told['status_code']} from {endpoint}")
    if not 200 <= told["status_code"] < 300:
        raise typer.Exit(1)


def _all(gateway: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = gateway.ask("GET", f"/v1/webhook_endpoints?limit={_PAGE}{after}")
        found += page["data"]
        if not page["has_more"]:
            return found
        after = f"&after={page['last_id']}"


def _off(endpoint: dict[str, Any]) -> str:
    return "" if endpoint["status"] == "enabled" else "switched off: it answered 410"


def _last(delivery: dict[str, Any]) -> str:
    answer = delivery["last_answer"] or "none yet"
    if delivery["next_try_at"] is None:
        return str(answer)
    return f"{answer}, next try in {max(0, delivery['next_try_at'] - int(time.time()))} s"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        out.print("none")
        return
    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    out.print(table)
