"""Pages for people: the live page for operators, the landing page for others, and the API's documentation without a
CDN, for those with a key."""

from __future__ import annotations

import html
import json
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response

from octavo.terms.errors import OctavoError
from octavo_gateway.auth import caller_of
from octavo_gateway.errors import ApiError
from octavo_gateway.http.origins import is_loopback
from octavo_gateway.state import Gateway

STATIC = Path(__file__).parent / "static"
LIVE = STATIC / "live.html"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_GUARDS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def landing(request: Request) -> Response:
    """The live page for an operator. With `?operator` a browser asks for the key."""
    gateway: Gateway = request.state.gateway
    asks = "operator" in request.query_params
    try:
        caller = await caller_of(request)
    except ApiError:
        if asks:
            raise
        return FileResponse(STATIC / "index.html")
    if not caller.is_operator:
        return FileResponse(STATIC / "index.html")
    try:
        token = await gateway.client.new_page_token(caller.tenant)
    except OctavoError:  # the server is away: the page that needs none
        return FileResponse(STATIC / "index.html")
    settings = {
        "token": token,
        "tenant": caller.tenant,
        "controls": gateway.settings.controls is not None and _is_local(request),
    }
    page = LIVE.read_text().replace("{settings}", html.escape(json.dumps(settings)))
    return HTMLResponse(page, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store", **_GUARDS})


def _is_local(request: Request) -> bool:
    return request.client is not None and is_loopback(request.client.host)


@router.get("/openapi.json")
async def openapi(request: Request) -> JSONResponse:
    return JSONResponse(request.app.openapi())


@router.get("/docs")
async def docs() -> HTMLResponse:
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="octavo",
        swagger_js_url="/static/swagger-ui/swagger-ui-bundle.js",
        swagger_css_url="/static/swagger-ui/swagger-ui.css",
        swagger_favicon_url="/static/favicon.svg",
        swagger_ui_parameters={"validatorUrl": None},
    )
