"""A message to a receiver: the thin body of an event, signed as Standard Webhooks asks for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version

from standardwebhooks import Webhook

_AGENT = f"octavo/{version('octavo')}"


def event_body(event_id: str, event_type: str, of: str, created_at: float) -> str:
    """The event as JSON. The receiver asks for the rest itself."""
    event = {
        "object": "event",
        "id": event_id,
        "type": event_type,
        "created_at": int(created_at),
        "data": {"id": of},
    }
    return json.dumps(event, separators=(",", ":"))


def signed_headers(event_id: str, body: str, secrets: Iterable[str]) -> dict[str, str]:
    """Headers of a message that is sent now, with a signature by each secret. The id is that of the event, at every try
    and at every endpoint."""
    now = datetime.now(UTC)  # `sign` takes a time of any other zone for UTC
    signatures = [Webhook(secret).sign(event_id, now, body) for secret in secrets]
    return {
        "Content-Type": "application/json",
        "User-Agent": _AGENT,
        "webhook-id": event_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
