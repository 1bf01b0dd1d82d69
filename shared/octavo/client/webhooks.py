"""The client of webhooks, for gateways and clerks."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.client.connection import QueueConnection
from octavo.queue.batches.keys import new_id
from octavo.queue.calls import Watch
from octavo.queue.webhooks import reading
from octavo.queue.webhooks.calls import WebhookCell
from octavo.queue.webhooks.keys import ENDPOINT, WebhookKeys
from octavo.terms.errors import QueueFull
from octavo.terms.webhooks import MAX_ENDPOINTS, OLD_SECRET_S, DeliveryInfo, EndpointInfo


class WebhookClient(QueueConnection):
    """Endpoints and deliveries. Every method raises ServerUnavailable."""

    def __init__(self, url: str | None = None, *, watch: Watch | None = None) -> None:
        super().__init__(url)
        self.keys = WebhookKeys()
        self.cell = WebhookCell(self.keys, watch)

    async def create(self, tenant: str, name: str, url: str, event_types: Sequence[str]) -> str:
        """The id of a new endpoint. Raises QueueFull where the tenant has as many as it may."""
        endpoint_id = new_id(ENDPOINT)
        call = self.cell.put(endpoint_id, tenant, is_new=True, name=name, url=url, event_types=event_types)
        if await self.run(call) == "full":
            message = f"you have {MAX_ENDPOINTS} webhook endpoints, which is the most: delete some"
            raise QueueFull(message, retry_after_s=60.0)
        return endpoint_id

    async def update(
        self,
        endpoint_id: str,
        tenant: str,
        *,
        name: str | None = None,
        url: str | None = None,
        event_types: Sequence[str] | None = None,
    ) -> bool:
        """Change what is set, and switch the endpoint on. False for no endpoint of the tenant's."""
        call = self.cell.put(endpoint_id, tenant, name=name, url=url, event_types=event_types)
        return await self.run(call) == "ok"

    async def rotate(self, endpoint: EndpointInfo, *, keep_old: bool) -> int:
        """The version of the secret that signs from now on; 0: the endpoint is gone."""
        keep_s = OLD_SECRET_S if keep_old else 0
        return await self.run(self.cell.rotate(endpoint.id, endpoint.tenant, endpoint.version, keep_s=keep_s))

    async def drop(self, endpoint_id: str, tenant: str) -> bool:
        """Forget an endpoint and its deliveries. False for no endpoint of the tenant's."""
        left = await self.run(self.cell.drop(endpoint_id, tenant))
        found = left >= 0
        while left > 0:
            left = await self.run(self.cell.drop(endpoint_id, tenant))
        return found

    async def resend(self, endpoint_id: str, tenant: str, event_id: str = "") -> int:
        """Begin anew what failed to the end; see `WebhookCell.resend`."""
        return await self.run(self.cell.resend(endpoint_id, tenant, event_id))

    async def endpoint(self, endpoint_id: str) -> EndpointInfo | None:
        """An endpoint, or None."""
        with self.errors():
            return await reading.read_endpoint(self.redis, self.keys, endpoint_id)

    async def endpoints(self, tenant: str, *, limit: int, after: str | None = None) -> list[EndpointInfo]:
        """Endpoints of a tenant, newest first, older than `after`."""
        with self.errors():
            return await reading.list_endpoints(self.redis, self.keys, tenant, limit=limit, after=after)

    async def deliveries(self, endpoint_id: str, *, limit: int) -> list[DeliveryInfo]:
        """Deliveries of an endpoint that wait or have failed to the end."""
        with self.errors():
            return await reading.list_deliveries(self.redis, self.keys, endpoint_id, limit=limit)

    async def backlog(self) -> reading.Backlog:
        """Deliveries of all tenants that wait."""
        with self.errors():
            return await reading.read_backlog(self.redis, self.keys)
