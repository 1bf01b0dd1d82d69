"""`octavo gateway`: every setting is a flag; a flag not given comes from `OCTAVO_*` or the default."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
import uvicorn
from pydantic import ValidationError

from octavo.queue.address import parse_address
from octavo.queue.connection import default_url
from octavo.terms.errors import ServerUnavailable
from octavo_gateway.auth import Keyring
from octavo_gateway.http.protocol import raise_file_limit
from octavo_gateway.logs import log_config
from octavo_gateway.settings import GatewaySettings
from octavo_gateway.status.metrics import MULTIPROCESS_DIR


def _option(name: str) -> Any:
    field = GatewaySettings.model_fields[name]
    default = f" [default: {field.default}]" if field.default not in (None, ()) else ""
    return typer.Option(help=f"{field.description}{default}".replace("[", r"\["), show_default=False)


def gateway(
    host: Annotated[str | None, _option("host")] = None,
    port: Annotated[int | None, _option("port")] = None,
    workers: Annotated[int | None, _option("workers")] = None,
    redis_url: Annotated[str | None, _option("redis_url")] = None,
    api_keys: Annotated[str | None, _option("api_keys")] = None,
    api_keys_file: Annotated[Path | None, _option("api_keys_file")] = None,
    operators: Annotated[str | None, _option("operators")] = None,
    cors_origins: Annotated[str | None, _option("cors_origins")] = None,
    allowed_hosts: Annotated[str | None, _option("allowed_hosts")] = None,
    max_queued_jobs: Annotated[int | None, _option("max_queued_jobs")] = None,
    max_queued_jobs_per_tenant: Annotated[int | None, _option("max_queued_jobs_per_tenant")] = None,
    max_queued_bytes: Annotated[int | None, _option("max_queued_bytes")] = None,
    stream_ttl: Annotated[int | None, _option("stream_ttl")] = None,
    result_ttl: Annotated[int | None, _option("result_ttl")] = None,
    max_body_bytes: Annotated[int | None, _option("max_body_bytes")] = None,
    max_header_bytes: Annotated[int | None, _option("max_header_bytes")] = None,
    max_connections: Annotated[int | None, _option("max_connections")] = None,
    request_timeout: Annotated[float | None, _option("request_timeout")] = None,
    stall_timeout: Annotated[float | None, _option("stall_timeout")] = None,
    keep_alive: Annotated[float | None, _option("keep_alive")] = None,
    grace: Annotated[float | None, _option("grace")] = None,
    log_level: Annotated[str | None, _option("log_level")] = None,
    log_format: Annotated[str | None, _option("log_format")] = None,
) -> None:
    """Serve the HTTP API: jobs, OpenAI-style endpoints, metrics, documentation."""
    flags = {name: value for name, value in locals().items() if value is not None}
    # The processes that uvicorn starts see the environment only, and it is where one process would look too.
    os.environ.update({f"OCTAVO_{name.upper()}": str(value) for name, value in flags.items()})
    try:
        settings = GatewaySettings()
        Keyring.of(settings)
        parse_address(settings.redis_url or default_url())
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        name = str(first["loc"][0]).removeprefix("OCTAVO_").lower().replace("_", "-")
        raise typer.BadParameter(f"--{name}: {first['msg']}") from None
    except (ValueError, OSError, ServerUnavailable) as error:
        raise typer.BadParameter(str(error)) from None
    raise_file_limit()
    with tempfile.TemporaryDirectory(prefix="octavo-metrics-") as metrics:
        if settings.workers > 1:
            os.environ[MULTIPROCESS_DIR] = metrics
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
