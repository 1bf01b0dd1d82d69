"""The webhook endpoints of this gateway's tenants, and what signs and sends to them."""

from __future__ import annotations

import time
from typing import Any

from fastapi import Request

from octavo.client.webhooks import WebhookClient
from octavo.dialects.openai.webhooks import delivery_object
from octavo.queue.batches.keys import new_id
from octavo.queue.webhooks.reading import Backlog
from octavo.service.webhooks.messages import event_body, signed_headers
from octavo.service.webhooks.outgoing import Answer, Outgoing
from octavo.terms.access.secret import Secret
from octavo.terms.errors import NoSecret, OctavoError
from octavo.terms.webhooks import EndpointInfo, WebhookSecrets
from octavo_gateway.errors import ApiError
from octavo_gateway.settings import GatewaySettings


class Endpoints:
    """One a gateway process. Without a `secret` there are no webhooks. Raises ValueError for a setting that names no
    network."""

    def __init__(self, settings: GatewaySettings, secret: Secret | None, client: WebhookClient) -> None:
        self.client = client
        self.outgoing = Outgoing(networks=settings.webhook_networks, http=settings.webhook_http)
        self._secrets = None if secret is None else WebhookSecrets(secret)

    @property
    def secrets(self) -> WebhookSecrets:
        """Raises NoSecret."""
        if self._secrets is None:
            raise NoSecret("this gateway has no webhooks: set OCTAVO_SECRET or OCTAVO_SECRET_FILE")
        return self._secrets

    def secret_of(self, info: EndpointInfo) -> str:
        """The secret that an endpoint is told. Raises NoSecret."""
        return self.secrets.current(info.id, info.version)

    async def own(self, endpoint_id: str, tenant: str) -> EndpointInfo:
        """An endpoint of the tenant. Raises ApiError 404, NoSecret."""
        _ = self.secrets
        info = await self.client.endpoint(endpoint_id)
        if info is None or info.tenant != tenant:
            raise no_endpoint(endpoint_id)
        return info

    async def test(self, info: EndpointInfo, event_type: str) -> Answer:
        """Send an event that tells of nothing there is, now and once."""
        event_id = new_id("evt_test_")
        body = event_body(event_id, event_type, new_id("test_"), time.time())
        secrets = self.secrets.signing(info.id, info.version, with_old=time.time() < info.old_until)
        return await self.outgoing.post(info.url, body.encode(), signed_headers(event_id, body, secrets))

    async def any(self, endpoint_id: str) -> EndpointInfo:
        """An endpoint of any tenant, for operators. Raises ApiError 404."""
        info = await self.client.endpoint(endpoint_id)
        if info is None:
            raise no_endpoint(endpoint_id)
        return info

    async def deliveries(self, info: EndpointInfo, limit: int) -> dict[str, Any]:
        """Deliveries of an endpoint as the API lists them."""
        found = await self.client.deliveries(info.id, limit=limit)
        return {"object": "list", "data": [delivery_object(one) for one in found], "forgotten": info.forgotten}

    async def resend(self, info: EndpointInfo, event_id: str | None) -> dict[str, Any]:
        """Begin anew what failed to the end, or one event of it. Raises ApiError 404 for an endpoint that is gone, 409
        for one that is switched off."""
        begun = await self.client.resend(info.id, info.tenant, event_id or "")
        if begun == -2:
            message = "the endpoint has answered 410 and is switched off: change it, which switches it on"
            raise ApiError(409, message, code="webhook_endpoint_disabled", headers={"x-should-retry": "false"})
        if begun < 0:
            raise no_endpoint(info.id)
        return {"object": "webhook_endpoint.resend", "webhook_endpoint_id": info.id, "resent": begun}

    async def backlog(self) -> Backlog:
        """Deliveries that wait, of all tenants. Without the server: none."""
        try:
            return await self.client.backlog()
        except OctavoError:
            return Backlog(0, 0.0, 0)


def no_endpoint(endpoint_id: str) -> ApiError:
    """404 for an endpoint: that there is one of another tenant is that tenant's business."""
    message = f"no webhook endpoint {endpoint_id[:60]!r}: it never existed, or was deleted"
    return ApiError(404, message, code="webhook_endpoint_not_found", param="webhook_endpoint_id")


def endpoints(request: Request) -> Endpoints:
    """A FastAPI dependency."""
    found: Endpoints = request.state.gateway.webhooks
    return found
