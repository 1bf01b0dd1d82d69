"""Settings of a clerk: `OCTAVO_*` in the environment, flags of the same names of `octavo clerk`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, PositiveInt, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from octavo.service.lists import Names
from octavo.terms.access.secret import Secret
from octavo.terms.limits import Limits


class ClerkSettings(BaseSettings):
    """One clerk: which server and which storage it works on, and how it can be watched."""

    model_config = SettingsConfigDict(env_prefix="OCTAVO_", frozen=True, extra="ignore")

    redis_url: str | None = Field(
        None,
        repr=False,  # it may hold a password
        validation_alias=AliasChoices("OCTAVO_REDIS_URL", "REDIS_URL", "redis_url"),
        description="Address of the Redis server. [default: REDIS_URL, the server of `octavo up`, redis://localhost:6379]",
    )
    files: str | None = Field(
        None,
        repr=False,
        description="Where files are kept: the same as `OCTAVO_FILES` of the gateways. Without it, no batches.",
    )
    secret: SecretStr | None = Field(
        None, description="Secret of all gateways, as they have it. Webhooks are signed with keys made from it."
    )
    secret_file: Path | None = Field(None, description="File with one secret a line, added to the above.")
    webhook_http: bool = Field(False, description="Webhooks may go to `http://` addresses, too.")
    webhook_networks: Names = Field(
        (), description="Networks in CIDR notation that webhooks may reach besides public addresses, comma-separated."
    )
    clerk_lease: float = Field(
        15.0,
        ge=1.0,
        le=600.0,
        description="Seconds of a clerk's silence after which another one takes its batches over.",
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="Port for Prometheus; 0: none.")
    metrics_host: str = Field("127.0.0.1", description="Address of that port.")
    max_queued_jobs: PositiveInt = Field(Limits.queued_jobs, description="Jobs that may wait in all.")
    max_queued_bytes: PositiveInt = Field(Limits.queued_bytes, description="Bytes of unfinished jobs' requests in all.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="How much is logged.")
    log_format: Literal["auto", "text", "json"] = Field(
        "auto", description="`text`, `json`, or `auto`: text on a terminal, JSON elsewhere."
    )

    def master_secret(self) -> Secret | None:
        """Raises ValueError as `Secret.load` does."""
        return Secret.load(self.secret.get_secret_value() if self.secret else None, self.secret_file)

    @property
    def limits(self) -> Limits:
        """The caps of the queue."""
        return Limits(self.max_queued_jobs, self.max_queued_bytes)
