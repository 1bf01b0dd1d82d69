"""Settings of a clerk: `OCTAVO_*` in the environment, flags of the same names of `octavo clerk`."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field, PositiveInt
from pydantic_settings import BaseSettings, SettingsConfigDict

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
        None, repr=False, description="Where files are kept: the same as `OCTAVO_FILES` of the gateways."
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

    @property
    def limits(self) -> Limits:
        """The caps of the queue."""
        return Limits(self.max_queued_jobs, self.max_queued_bytes)
