"""Everything a gateway can be told: `OCTAVO_*` in the environment, the same names as flags of `octavo gateway`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, PositiveFloat, PositiveInt, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from octavo.models import MAX_BODY_BYTES


class GatewaySettings(BaseSettings):
    """One gateway: where it listens, which server it talks to, what it accepts."""

    model_config = SettingsConfigDict(env_prefix="OCTAVO_", frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for every interface.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    workers: PositiveInt = Field(1, description="Processes that share the port; a gateway keeps no state.")
    redis_url: str | None = Field(
        None,
        validation_alias=AliasChoices("OCTAVO_REDIS_URL", "REDIS_URL", "redis_url"),
        description="Address of the Redis server. [default: REDIS_URL, the server of `octavo up`, redis://localhost:6379]",
    )
    api_keys: SecretStr | None = Field(
        None, description="Comma-separated `tenant:key` pairs. Without keys everybody is tenant `default`."
    )
    api_keys_file: Path | None = Field(None, description="File with one `tenant:key` a line, added to the above.")
    max_body_bytes: PositiveInt = Field(MAX_BODY_BYTES, description="Largest request body accepted, bytes.")
    keep_alive: PositiveFloat = Field(15.0, description="Seconds of silence after which a stream gets a comment.")
    grace: PositiveFloat = Field(10.0, description="Seconds that running requests get to finish after SIGTERM.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="How much is logged.")
