"""The ASGI application: HTTP in, jobs out; events in, server-sent events out. Never imports torch."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.metadata import version
from types import FrameType
from typing import Any

from fastapi import Depends, FastAPI

from octavo import AsyncClient
from octavo.service.tracing.wanted import open_tracing
from octavo.terms.access.secret import Secret
from octavo.terms.errors import OctavoError
from octavo_gateway import errors
from octavo_gateway.auth.keyring import Keyring
from octavo_gateway.auth.scopes import authorize
from octavo_gateway.durable import answers as durable
from octavo_gateway.http import rates
from octavo_gateway.http.origins import Cors, OriginCheck, is_loopback
from octavo_gateway.http.requests import HEADER, IGNORED, RequestLog
from octavo_gateway.http.tracing import Traced
from octavo_gateway.reaper import reap_forever
from octavo_gateway.routes import add_routes, methods_and_paths
from octavo_gateway.settings import GatewaySettings
from octavo_gateway.state import Gateway
from octavo_gateway.status.metrics import Metrics
from octavo_gateway.ui import routes as ui

_COLLECTED_AFTER = 10_000  # new objects: a large body has so many, and at 700 is looked through again and again

log = logging.getLogger(__name__)


def process_app() -> FastAPI:
    """The application of a process that serves nothing else. Raises ValueError as `create_app`."""
    app = create_app()
    gc.collect()
    gc.freeze()  # what is loaded by now stays: collections need not look at it, which took them 40 ms
    gc.set_threshold(_COLLECTED_AFTER, 10, 10)
    return app


def create_app(settings: GatewaySettings | None = None) -> FastAPI:
    """One gateway. Without `settings` it reads them from the environment. Raises ValueError for malformed API
    keys, and for such a secret."""
    settings = settings or GatewaySettings()
    keyring = Keyring.of(settings)
    secret = settings.master_secret()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        async with _running(settings, keyring, secret) as gateway:
            gateway.metrics.know_routes(methods_and_paths())
            yield {"gateway": gateway}

    app = FastAPI(
        title="octavo",
        version=version("octavo"),
        description="Durable generation jobs with resumable token streams, and the APIs that clients know on top.",
        responses=errors.IN_OPENAPI,
        dependencies=[Depends(authorize)],
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    errors.install(app)
    add_routes(app)
    app.add_middleware(OriginCheck, settings=settings, keyring=keyring)
    exposed = ["Location", "Retry-After", HEADER, IGNORED, *rates.HEADERS, *durable.HEADERS, *ui.HEADERS]
    app.add_middleware(Cors, settings=settings, keyring=keyring, exposed=exposed)
    app.add_middleware(Traced)
    app.add_middleware(RequestLog)  # the last one is the outermost
    return app


@asynccontextmanager
async def _running(settings: GatewaySettings, keyring: Keyring, secret: Secret | None) -> AsyncIterator[Gateway]:
    metrics = Metrics()
    tracing = open_tracing("octavo-gateway")
    client = AsyncClient(
        settings.redis_url,
        limits=settings.limits,
        retention=settings.retention,
        watch=metrics.saw,
        tracer=None if tracing is None else tracing.tracer,
    )
    gateway = Gateway(settings, keyring, secret, client, metrics, tracing)
    gateway.spawn(reap_forever(client))
    if gateway.key_cache is not None and not keyring.is_open:
        gateway.spawn(gateway.key_cache.listen())
    if keyring.is_open:
        gateway.spawn(_warn_of_keys(gateway))
    if keyring.is_open and not is_loopback(settings.host):
        log.warning("no API keys: other hosts that reach %s may submit; --api-keys asks for one", settings.host)
    try:
        with _drain_on_signal(gateway):
            yield gateway
    finally:
        await gateway.close()


async def _warn_of_keys(gateway: Gateway) -> None:
    with suppress(OctavoError):
        if await gateway.keys.any():
            log.warning("the server keeps API keys, and this gateway asks for none: --require-keys makes it")


@contextmanager
def _drain_on_signal(gateway: Gateway) -> Iterator[None]:
    """Set `gateway.draining` at SIGTERM or SIGINT, before the server's own handler. One of several processes of a
    gateway takes the end of its parent process, even a kill, for a SIGTERM: nothing else would end it.

    Servers run an application's shutdown only when all connections are closed; job streams must end before that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(gateway.draining.set)
        previous = before[signal.Signals(number)]
        if callable(previous):
            previous(number, frame)

    def leave(sentinel: int) -> None:
        loop.remove_reader(sentinel)
        signal.raise_signal(signal.SIGTERM)

    for number in before:
        signal.signal(number, handle)
    parent = multiprocessing.parent_process()
    if parent is not None:
        loop.add_reader(parent.sentinel, leave, parent.sentinel)
    try:
        yield
    finally:
        if parent is not None:
            loop.remove_reader(parent.sentinel)
        for number, previous in before.items():
            signal.signal(number, previous)
