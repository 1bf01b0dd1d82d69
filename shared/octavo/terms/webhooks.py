"""Webhooks: the events there are, endpoints, deliveries, and the secrets that sign."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octavo.terms.access.secret import Secret

EVENT_TYPES = (
    *(f"batch.{end}" for end in ("completed", "failed", "expired", "cancelled")),
    *(f"response.{end}" for end in ("completed", "failed", "cancelled", "incomplete")),
    *(f"job.{end}" for end in ("completed", "failed", "cancelled", "expired")),
)
"""Types of events: ends of batches, of background responses, and of jobs that ask for it."""

MAX_ENDPOINTS = 100  # of a tenant
MAX_URL = 2048  # characters
MAX_NAME = 128
OLD_SECRET_S = 86_400
"""Seconds for which the secret before a rotation signs, too, if asked."""

LABEL = "octavo webhook 1"

Outcome = Literal["ok", "again", "failed", "gone", "back"]
"""End of a try of a delivery: delivered; to be tried again; given up; given up, and the endpoint wants no more;
or there was no try."""


@dataclass(frozen=True)
class EndpointInfo:
    """An endpoint. Times are seconds since the epoch; `disabled_at`: it was switched off then. `version` is that of its
    secret; the one before signs, too, until `old_until`. `forgotten` events failed to the end, and are listed no more
    since many others failed after them."""

    id: str
    tenant: str
    name: str
    url: str
    event_types: Sequence[str]
    created_at: float
    updated_at: float
    version: int = 1
    old_until: float = 0.0
    disabled_at: float | None = None
    forgotten: int = 0


@dataclass(frozen=True)
class DeliveryInfo:
    """An event on its way to an endpoint, or that failed to the end. `answer` is that of the last try: an HTTP status,
    or a word for why there was none. Times are seconds since the epoch."""

    endpoint_id: str
    event_id: str
    event_type: str
    of: str
    created_at: float
    tries: int
    is_failed: bool
    next_try_at: float | None = None
    answer: str | None = None


class WebhookSecrets:
    """Secrets of endpoints, made from the master secret: none is stored anywhere."""

    def __init__(self, secret: Secret) -> None:
        self._keys = secret.keys(LABEL)

    def current(self, endpoint_id: str, version: int) -> str:
        """The secret that an endpoint is told: `whsec_` and 32 bytes in base64, with padding."""
        return _secret(self._keys[0], endpoint_id, version)

    def signing(self, endpoint_id: str, version: int, *, with_old: bool) -> list[str]:
        """All that sign now. Each line of the master secret has one, so that a new line above the old one invalidates
        nothing that an endpoint was told."""
        versions = [version, version - 1] if with_old and version > 1 else [version]
        return [_secret(key, endpoint_id, one) for one in versions for key in self._keys]


def _secret(key: bytes, endpoint_id: str, version: int) -> str:
    digest = hmac.digest(key, f"{endpoint_id} {version}".encode(), hashlib.sha256)
    return "whsec_" + base64.b64encode(digest).decode()
