"""Names of the keys of webhooks; `lua/lib/keys.lua` says what they hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.queue.keys import Keys

ENDPOINT = "we_"


@dataclass(frozen=True)
class WebhookKeys:
    """Key names of one cell."""

    keys: Keys = field(default_factory=Keys)

    @property
    def prefix(self) -> str:
        return self.keys.prefix

    def endpoint(self, endpoint_id: str) -> str:
        """HASH: one endpoint."""
        return f"{self.prefix}:he:{endpoint_id}"

    @property
    def endpoints(self) -> str:
        """ZSET: all endpoint ids, and `:<tenant>:<id>` for each, score 0: sorted by id, hence by time."""
        return f"{self.prefix}:endpoints"

    def delivery(self, endpoint_id: str, event_id: str) -> str:
        """HASH: one event on its way to one endpoint."""
        return f"{self.prefix}:hd:{endpoint_id}:{event_id}"

    def waiting(self, endpoint_id: str) -> str:
        """ZSET: events by the time from which they may be tried, ms."""
        return f"{self.prefix}:hq:{endpoint_id}"

    def tried(self, endpoint_id: str) -> str:
        """ZSET: events that are tried, by the end of the lease, ms."""
        return f"{self.prefix}:hl:{endpoint_id}"

    def failed(self, endpoint_id: str) -> str:
        """ZSET: events that failed to the end, by the time at which they did, ms."""
        return f"{self.prefix}:hf:{endpoint_id}"

    @property
    def oldest(self) -> str:
        """ZSET: endpoints by the time from which their oldest delivery may be tried, ms."""
        return f"{self.prefix}:ho"

    @property
    def failing(self) -> str:
        """ZSET: endpoints to which tries fail, by the time of the latest failure, ms."""
        return f"{self.prefix}:hx"

    @property
    def counts(self) -> str:
        """HASH: waiting, failed: deliveries that wait, and that ever failed to the end."""
        return f"{self.prefix}:hc"
