"""`/v1/organization/usage/completions`: what tenants have used, by time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from octavo.queue.tenants.usage import DAY_S, HOUR_S, KEPT_S, MINUTE_S, Row, Sums, grouped
from octavo.terms.errors import InvalidRequest
from octavo_gateway.auth import CurrentCaller
from octavo_gateway.state import Gateway

Width = Literal["1m", "1h", "1d"]

_SECONDS: dict[Width, int] = {"1m": MINUTE_S, "1h": HOUR_S, "1d": DAY_S}
_BUCKETS: dict[Width, tuple[int, int]] = {"1m": (60, 1440), "1h": (24, 168), "1d": (7, 31)}  # by default, at most
_GROUPS: dict[str, Callable[[Row], Any]] = {
    "project_id": lambda row: row.tenant,
    "api_key_id": lambda row: row.api_key or None,
    "model": lambda row: row.model,
    "batch": lambda row: row.of_batches,
}
_ALWAYS_NULL = ("user_id", "service_tier", "api_source")  # this service knows none of these
_MOST_NAMES = 1000

router = APIRouter(prefix="/v1/organization/usage", tags=["administration"])

Names = Annotated[list[str] | None, Query(max_length=_MOST_NAMES)]


def _listed(name: str) -> Any:
    return Query(alias=f"{name}[]", max_length=_MOST_NAMES)


@router.get("/completions")
async def completions(
    request: Request,
    caller: CurrentCaller,
    start_time: Annotated[int, Query(ge=0, le=1 << 40)],
    end_time: Annotated[int | None, Query(ge=0, le=1 << 40)] = None,
    bucket_width: Width = "1d",
    group_by: Annotated[list[str] | None, _listed("group_by")] = None,
    models: Annotated[list[str] | None, _listed("models")] = None,
    api_key_ids: Annotated[list[str] | None, _listed("api_key_ids")] = None,
    project_ids: Annotated[list[str] | None, _listed("project_ids")] = None,
    batch: bool | None = None,
    limit: Annotated[int | None, Query(ge=1)] = None,
    page: Annotated[str | None, Query(max_length=20)] = None,
) -> dict[str, Any]:
    """Tokens and requests of jobs that ended, in buckets of time (UTC): of all projects for operators, of its own for
    any other key, whatever projects it names. Minutes are kept for two hours, hours for eight days, days for 400. `400`
    for a range that is not kept at this width."""
    if unknown := set(group_by or ()) - {*_GROUPS, *_ALWAYS_NULL}:
        raise InvalidRequest(f"{min(unknown)[:100]!r} is no group", code="invalid_value", param="group_by")
    now = time.time()
    width_s = _SECONDS[bucket_width]
    usual, most = _BUCKETS[bucket_width]
    if limit is not None and limit > most:
        raise InvalidRequest(f"limit is {most} at most for {bucket_width}", code="invalid_value", param="limit")
    start = _first(start_time, page, width_s, now)
    end = min(end_time if end_time is not None else int(now) + 1, int(now) + 1)
    if end_time is not None and end_time <= start_time:
        raise InvalidRequest("end_time must be after start_time", code="invalid_value", param="end_time")
    starts = range(start, end, width_s)
    shown = starts[: limit or usual]
    gateway: Gateway = request.state.gateway
    tenants = project_ids if caller.is_operator else [caller.tenant]
    rows = await gateway.client.tenants.usage(start, min(end, shown[-1] + width_s), tenants) if shown else []
    wanted = [
        row
        for row in rows
        if (models is None or row.model in models)
        and (api_key_ids is None or row.api_key in api_key_ids)
        and (batch is None or row.of_batches == batch)
    ]
    has_more = len(starts) > len(shown)
    data = _buckets(wanted, shown, width_s, group_by or ())
    return {
        "object": "page",
        "data": data,
        "has_more": has_more,
        "next_page": f"{shown[-1] + width_s}" if has_more else None,
    }


def _first(start_time: int, page: str | None, width_s: int, now: float) -> int:
    """The beginning of the first bucket. Raises InvalidRequest for what is not kept at this width."""
    if page is not None and not (page.isascii() and page.isdigit()):
        raise InvalidRequest("page must be the next_page of an answer", code="invalid_value", param="page")
    start = int(page) if page is not None else start_time
    start -= start % width_s
    if start < now - KEPT_S[width_s] - width_s:
        kept = {MINUTE_S: "2 hours", HOUR_S: "8 days", DAY_S: "400 days"}[width_s]
        raise InvalidRequest(
            f"buckets of this width are kept for {kept}: ask for a later start_time, or for a greater bucket_width",
            code="invalid_value", param="start_time",
        )  # fmt: skip
    return start


def _buckets(rows: Iterable[Row], starts: range, width_s: int, by: Iterable[str]) -> list[dict[str, Any]]:
    names = [name for name in _GROUPS if name in set(by)]
    sums = grouped(rows, lambda row: (row.start - row.start % width_s, *(_GROUPS[name](row) for name in names)))
    results: dict[int, list[dict[str, Any]]] = {start: [] for start in starts}
    for (start, *values), found in sorted(sums.items(), key=lambda item: tuple(map(str, item[0]))):
        if start in results:
            results[start].append(_result(found, dict(zip(names, values, strict=True))))
    return [
        {"object": "bucket", "start_time": start, "end_time": start + width_s, "results": results[start]}
        for start in starts
    ]


def _result(sums: Sums, groups: dict[str, Any]) -> dict[str, Any]:
    none = dict.fromkeys((*_GROUPS, *_ALWAYS_NULL))
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": sums.input_tokens,
        "input_cached_tokens": sums.cached_tokens,
        "output_tokens": sums.output_tokens,
        "num_model_requests": sums.requests,
        **none,
        **groups,
        "octavo": {
            "failures": sums.failures,
            "drafted_tokens": sums.drafted_tokens,
            "waited_s": sums.waited_ms / 1000,
            "computed_s": sums.computed_ms / 1000,
        },
    }
