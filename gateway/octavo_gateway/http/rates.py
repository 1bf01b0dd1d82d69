"""Headers that say what a tenant has left, as OpenAI's clients read them."""

from __future__ import annotations

import math

from octavo.terms.errors import RateLimited
from octavo.terms.limits import Rates

_NAMES = tuple(f"x-ratelimit-{of}-{what}" for what in ("requests", "tokens") for of in ("limit", "remaining", "reset"))
HEADERS = ("retry-after-ms", *_NAMES)


def rate_headers(rates: Rates | None) -> dict[str, str]:
    """The limit of each bucket, what is left, and the time until it is full."""
    if rates is None:
        return {}
    values: list[str] = []
    for rate in (rates.requests, rates.tokens):
        values += ["", "", ""] if rate is None else [str(rate.limit), str(rate.remaining), _in_units(rate.reset_s)]
    return {name: value for name, value in zip(_NAMES, values, strict=True) if value}


def refusal_headers(refused: RateLimited) -> dict[str, str]:
    """Besides, when a retry is worth it. Clients read the milliseconds before the seconds."""
    headers = rate_headers(refused.rates)
    if not refused.can_retry:
        return headers | {"x-should-retry": "false"}
    milliseconds = math.ceil(refused.retry_after_s * 1000)
    return headers | {"Retry-After": str(math.ceil(refused.retry_after_s)), "retry-after-ms": str(milliseconds)}


def _in_units(seconds: float) -> str:
    """`20ms`, `1s`, `6m0s`, `2h0m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, left = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{left}s"
