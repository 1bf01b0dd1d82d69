"""Names of the keys in Redis that tenants have; `lua/lib/keys.lua` says what they hold."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from octavo.queue.keys import Keys, new_ulid
from octavo.terms.access.api_keys import KEY_ID

ACCOUNT_ID, PROJECT_ID = "svc_acct_", "proj_"
_IDS = {kind: re.compile(rf"{kind}[0-9A-HJKMNP-TV-Z]{{26}}") for kind in (KEY_ID, ACCOUNT_ID)}


@dataclass(frozen=True)
class TenantKeys:
    """Key names of one cell."""

    keys: Keys = field(default_factory=Keys)

    @property
    def prefix(self) -> str:
        return self.keys.prefix

    @property
    def key_index(self) -> str:
        """ZSET: `<id>`, `:<tenant>:<id>` and `@<account>:<id>` of every API key that is not revoked, score 0."""
        return f"{self.prefix}:ks"

    def api_key(self, key_id: str) -> str:
        """HASH: one API key."""
        return f"{self.prefix}:k:{key_id}"

    def account(self, account_id: str) -> str:
        """HASH: one service account."""
        return f"{self.prefix}:ka:{account_id}"

    @property
    def account_index(self) -> str:
        """ZSET: `:<tenant>:<id>` of every service account, score 0."""
        return f"{self.prefix}:kas"

    def project(self, tenant: str) -> str:
        """HASH: one project."""
        return f"{self.prefix}:pj:{tenant}"

    @property
    def project_index(self) -> str:
        """ZSET: tenants that are projects by the time, ms, at which they became one."""
        return f"{self.prefix}:pjs"

    @property
    def changes(self) -> str:
        """PUBSUB: ids of API keys that have changed; `*`: any may have."""
        return self.keys.channel("keys")


def new_id(kind: str) -> str:
    """`KEY_ID`, `ACCOUNT_ID` or `PROJECT_ID` and a ULID."""
    return kind + new_ulid()


def is_id(kind: str, text: str) -> bool:
    """True for what can be the id of an API key or a service account."""
    return _IDS[kind].fullmatch(text) is not None
