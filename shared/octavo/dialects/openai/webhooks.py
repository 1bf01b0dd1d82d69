"""Webhook endpoints as the API shows them, and the fields that they are made of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

from octavo.dialects.openai.fields import Body
from octavo.terms.webhooks import EVENT_TYPES, MAX_NAME, MAX_URL, DeliveryInfo, EndpointInfo


def _known(name: str) -> str:
    if name not in EVENT_TYPES:
        raise ValueError("no such type of events: GET /v1/webhook_event_types lists them")
    return name


EventType = Annotated[str, StringConstraints(max_length=64), AfterValidator(_known)]
EventTypes = Annotated[list[EventType], Field(min_length=1, max_length=len(EVENT_TYPES))]
Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)]
Url = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL)]


class EndpointRequest(Body):
    """`POST /v1/webhook_endpoints`."""

    name: Name
    url: Url
    event_types: EventTypes


class EndpointUpdate(Body):
    """`POST /v1/webhook_endpoints/{id}`: what is set changes. In any case the endpoint is switched on."""

    name: Name | None = None
    url: Url | None = None
    event_types: EventTypes | None = None


class RotateRequest(Body):
    """`POST /v1/webhook_endpoints/{id}/rotate_secret`."""

    keep_old_secret_active_for_24_hours: bool = False


class WebhookTestRequest(Body):
    """`POST /v1/webhook_endpoints/{id}/test`."""

    event_type: EventType


class ResendRequest(Body):
    """`POST /v1/webhook_endpoints/{id}/resend`: an event, or all that failed to the end."""

    event_id: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None


def endpoint_object(info: EndpointInfo, secret: str, *, is_told: bool = False) -> dict[str, Any]:
    """An endpoint as the API shows it; `is_told`: with its secret, once."""
    shown: dict[str, Any] = {
        "id": info.id,
        "object": "webhook_endpoint",
        "name": info.name,
        "url": info.url,
        "event_types": [kind for kind in EVENT_TYPES if kind in info.event_types],
        "created_at": int(info.created_at),
        "updated_at": int(info.updated_at),
        "status": "enabled" if info.disabled_at is None else "disabled",
        "signing_secret_hint": f"whsec_...{secret[-5:]}",
    }
    return {**shown, "signing_secret": secret} if is_told else shown


def delivery_object(info: DeliveryInfo) -> dict[str, Any]:
    """A delivery that waits, or has failed to the end."""
    return {
        "object": "webhook_endpoint.delivery",
        "event_id": info.event_id,
        "event_type": info.event_type,
        "of": info.of,
        "created_at": int(info.created_at),
        "status": "failed" if info.is_failed else "waiting",
        "tries": info.tries,
        "last_answer": info.answer,
        "next_try_at": None if info.next_try_at is None else int(info.next_try_at),
    }
