"""Settings of a gateway: `OCTAVO_*` in the environment, flags of the same names of `octavo gateway`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, PositiveFloat, PositiveInt, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from octavo.service.lists import Names
from octavo.terms.access.secret import Secret
from octavo.terms.fields import MAX_BODY_BYTES
from octavo.terms.limits import Limits, Retention


class GatewaySettings(BaseSettings):
    """One gateway: where it listens, which server it talks to, what it accepts."""

    model_config = SettingsConfigDict(env_prefix="OCTAVO_", frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for every interface.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    workers: PositiveInt = Field(1, description="Processes that share the port; a gateway keeps no state.")
    redis_url: str | None = Field(
        None,
        repr=False,  # it may hold a password
        validation_alias=AliasChoices("OCTAVO_REDIS_URL", "REDIS_URL", "redis_url"),
        description="Address of the Redis server. [default: REDIS_URL, the server of `octavo up`, redis://localhost:6379]",
    )
    api_keys: SecretStr | None = Field(
        None, description="Comma-separated `tenant:key` pairs. Without keys every request is of tenant `default`."
    )
    api_keys_file: Path | None = Field(None, description="File with one `tenant:key` a line, added to the above.")
    require_keys: bool = Field(
        False, description="Ask for a key also where none is given above: one that the server keeps (`octavo keys`)."
    )
    secret: SecretStr | None = Field(
        None,
        description="Secret of all gateways, a line each: the first signs, all verify. Read tokens, webhooks, and the "
        "keys that the server keeps need it.",
    )
    secret_file: Path | None = Field(None, description="File with one secret a line, added to the above.")
    operators: Names = Field(
        (), description="Tenants whose keys also see the fleet, comma-separated: all workers, `/metrics`."
    )
    metrics_by_tenant: bool = Field(
        False, description="Serve `/metrics` by tenant, too, for the 100 with most tokens in the last hour."
    )
    cors_origins: Names = Field(
        (),
        description="Origins whose pages may use the API, such as `https://example.com`, comma-separated; `*`: all. "
        "Without API keys those on loopback always may.",
    )
    allowed_hosts: Names = Field(
        (),
        description="Names with a dot that are answered without API keys, comma-separated. Addresses always are, and "
        "the names of containers' machines, such as `host.docker.internal`.",
    )
    max_queued_jobs: PositiveInt = Field(
        Limits.queued_jobs, description="Jobs that may wait in all; one more gets 429 and Retry-After."
    )
    max_queued_bytes: PositiveInt = Field(
        Limits.queued_bytes, description="Bytes of unfinished jobs' requests and attachments in all."
    )
    wait_for_workers: bool = Field(
        True, description="Accept jobs for a model without a live worker: they wait. Off: 503 and Retry-After."
    )
    files: str | None = Field(
        None,
        repr=False,  # it may hold a credential
        description="Where files are kept: a folder that all gateways share, or `s3://`, `gs://`, `az://`. Without it "
        "there are no files and no batches.",
    )
    clerk: bool = Field(
        True,
        description="Start a clerk beside the gateway, with files or a secret. Without it, run `octavo clerk`.",
    )
    max_files_bytes_per_tenant: PositiveInt = Field(
        10_000_000_000, description="Bytes of files that a tenant may keep."
    )
    webhook_http: bool = Field(False, description="Webhooks may go to `http://` addresses, too.")
    webhook_networks: Names = Field(
        (), description="Networks in CIDR notation that webhooks may reach besides public addresses, comma-separated."
    )
    stream_ttl: PositiveInt = Field(
        Retention.stream_s, description="Seconds that a finished job's stream is kept as it was."
    )
    result_ttl: PositiveInt = Field(
        Retention.result_s, description="Seconds that a finished job and its idempotency key are known."
    )
    strict_fields: bool = Field(
        False,
        description="Refuse fields that no dialect knows; without it they are taken and named in `octavo-ignored`.",
    )
    max_body_bytes: PositiveInt = Field(MAX_BODY_BYTES, description="Largest request body accepted, bytes.")
    max_header_bytes: PositiveInt = Field(65_536, description="Largest address and headers of a request, bytes.")
    max_connections: PositiveInt = Field(10_000, description="Connections of one process; more get 503.")
    request_timeout: PositiveFloat = Field(30.0, description="Seconds that a client has to send a whole request.")
    idle_timeout: PositiveFloat = Field(
        75.0, description="Seconds that a connection is kept without a request; longer than load balancers keep theirs."
    )
    stall_timeout: PositiveFloat = Field(
        60.0, description="Seconds without a byte taken after which a client that does not read is let go."
    )
    keep_alive: PositiveFloat = Field(15.0, description="Seconds of silence after which a stream gets a comment.")
    grace: PositiveFloat = Field(10.0, description="Seconds that running requests get to finish after SIGTERM.")
    show_content: bool = Field(
        False, description="Show operators prompts and texts of all tenants on the page, not their own alone."
    )
    controls: Path | None = Field(
        None, description="Socket by which `octavo up --controls` lets the page add, kill and pause its workers."
    )
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

    @property
    def retention(self) -> Retention:
        """How long a job is kept after its end."""
        return Retention(stream_s=self.stream_ttl, result_s=self.result_ttl, idempotency_s=self.result_ttl)
