"""`octavo gateway`: every setting is a flag; a flag not given comes from `OCTAVO_*` or the default."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import typer
import uvicorn
from pydantic import ValidationError

from octavo.queue.address import parse_address
from octavo.queue.connection import default_url
from octavo.service.flags import bad_flag, flags_of
from octavo.service.ports import refusal
from octavo.service.webhooks.addresses import Networks
from octavo.terms.errors import ServerUnavailable
from octavo_gateway.auth.keyring import Keyring
from octavo_gateway.files.beside import start_clerk
from octavo_gateway.http.protocol import raise_file_limit
from octavo_gateway.logs import log_config
from octavo_gateway.settings import GatewaySettings
from octavo_gateway.status.metrics import MULTIPROCESS_DIR


@flags_of(GatewaySettings)
def gateway(**given: Any) -> None:
    """Serve the HTTP API: jobs, OpenAI-style endpoints, metrics, documentation."""
    flags = {name: value for name, value in given.items() if value is not None}
    # The processes that uvicorn starts see the environment only, and it is where one process would look too.
    os.environ.update({f"OCTAVO_{name.upper()}": str(value) for name, value in flags.items()})
    try:
        settings = GatewaySettings()
        Keyring.of(settings)
        secret = settings.master_secret()
        Networks(settings.webhook_networks)
        parse_address(settings.redis_url or default_url())
    except ValidationError as error:
        raise bad_flag(error) from None
    except (ValueError, OSError, ServerUnavailable) as error:
        raise typer.BadParameter(str(error)) from None
    if settings.port and (why := refusal(settings.host, settings.port)) is not None:
        typer.echo(f"octavo gateway: {why}", err=True)
        raise typer.Exit(1)
    raise_file_limit()
    with tempfile.TemporaryDirectory(prefix="octavo-metrics-") as metrics:
        if settings.workers > 1:
            os.environ[MULTIPROCESS_DIR] = metrics
        if settings.clerk and (settings.files is not None or secret is not None):
            start_clerk()
        _serve(settings)


def _serve(settings: GatewaySettings) -> None:
    uvicorn.run(
        "octavo_gateway.app:process_app",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        log_config=log_config(settings.log_level, settings.log_format),
        log_level=settings.log_level,
        access_log=False,
        http="octavo_gateway.http.protocol:HttpProtocol",  # a name reaches further processes
        ws="none",
        timeout_graceful_shutdown=max(1, round(settings.grace)),
        server_header=False,
    )
