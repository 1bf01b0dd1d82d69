"""Buttons of the page: what changes something is asked for with the token of a page that was loaded."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Request
from pydantic import Field

from octavo.service.controls import ControlRefused, Owned, ask
from octavo.terms.errors import OctavoError
from octavo.terms.fields import Frozen
from octavo_gateway.auth import CurrentCaller
from octavo_gateway.errors import ApiError
from octavo_gateway.http.body import json_body
from octavo_gateway.http.origins import is_loopback
from octavo_gateway.jobs.owned import check_id
from octavo_gateway.jobs.routes import job_json
from octavo_gateway.state import Gateway

MOST_JOBS = 200

router = APIRouter(prefix="/v1/fleet", include_in_schema=False)


class Requeued(Frozen):
    """Jobs that were given up and are to be submitted again."""

    job_ids: tuple[str, ...] = Field(min_length=1, max_length=MOST_JOBS)


class Control(Frozen):
    """A change of the workers of this machine; `pid` names the one that is meant, unless one is added."""

    action: Literal["add", "kill", "pause", "resume"]
    pid: int | None = None


async def pressed(
    request: Request, caller: CurrentCaller, x_octavo_page: Annotated[str, Header(max_length=100)] = ""
) -> None:
    """A dependency of what a page of this gateway may change. Raises ApiError 403."""
    gateway: Gateway = request.state.gateway
    if not await gateway.client.is_page_token(x_octavo_page, caller.tenant):
        raise ApiError(403, "this page is too old, or is not the gateway's own: load it again", code="not_the_page")


@router.get("/jobs/{job_id}")
async def show(request: Request, caller: CurrentCaller, job_id: str) -> dict[str, Any]:
    """A job of any tenant. Its request and its texts are there for its own tenant, or where all may be shown."""
    check_id(job_id)
    gateway: Gateway = request.state.gateway
    info = await gateway.client.info(job_id)
    shown: dict[str, Any] = {"object": "fleet.job", "job": job_json(info, caller)}
    if info.tenant != caller.tenant and not gateway.settings.show_content:
        hidden = {**shown["job"], "metadata": {}}
        return {**shown, "job": hidden, "shows_content": False, "request": None, "texts": None}
    async with gateway.loading:
        asked, texts = await gateway.client.job_content(job_id)
    body = None if asked is None else asked.model_dump(mode="json", exclude_defaults=True)
    return {**shown, "shows_content": True, "request": body, "texts": texts}


@router.post("/requeue", dependencies=[Depends(pressed)])
async def requeue(request: Request, body: Annotated[Requeued, Depends(json_body(Requeued))]) -> dict[str, Any]:
    """Submit jobs again that were given up: the new jobs by the old ones, and why others stay as they are."""
    gateway: Gateway = request.state.gateway
    return requeued_json(await gateway.client.requeue_each(body.job_ids))


@router.get("/controls")
async def controls(request: Request) -> dict[str, Any]:
    """The workers that belong to this machine's `octavo up`. `404` where there is none with controls."""
    return _answer(await _ask(request, Control(action="add"), only_look=True))


@router.post("/controls", dependencies=[Depends(pressed)])
async def control(request: Request, body: Annotated[Control, Depends(json_body(Control))]) -> dict[str, Any]:
    """Change them. `409` for one that is not there."""
    return _answer(await _ask(request, body))


def requeued_json(answer: tuple[dict[str, str], dict[str, OctavoError]]) -> dict[str, Any]:
    """The new jobs by the old ones, and why others stay."""
    requeued, failed = answer
    told = {job_id: error.message for job_id, error in failed.items()}
    return {"object": "fleet.requeued", "requeued": requeued, "failed": told}


async def _ask(request: Request, body: Control, *, only_look: bool = False) -> tuple[Owned, ...]:
    gateway: Gateway = request.state.gateway
    path = gateway.settings.controls
    if path is None or request.client is None or not is_loopback(request.client.host):
        raise ApiError(404, "there are no controls here: `octavo up --controls` has some, on its own machine")
    try:
        return await ask(path, "list" if only_look else body.action, body.pid)
    except ControlRefused as error:
        raise ApiError(409, error.message, code=error.code) from None


def _answer(workers: tuple[Owned, ...]) -> dict[str, Any]:
    data = [{"name": worker.name, "pid": worker.pid, "paused": worker.paused} for worker in workers]
    return {"object": "fleet.controls", "workers": data}
