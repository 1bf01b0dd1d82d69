"""Bodies of the administration dialect. What OpenAI's have no place for stands under `octavo`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from octavo.client.keys import MOST_CHARACTERS, MOST_MODELS
from octavo.queue.tenants.keys import MOST_GRACE_S
from octavo.terms.access.api_keys import OF_TENANTS, Scope
from octavo.terms.fields import Frozen, Tenant

_MOST_SCOPES = len(Scope)


class ProjectExtras(Frozen):
    """A project's id, which is the name of its tenant; one of its own without."""

    id: Tenant | None = None


class ProjectRequest(Frozen):
    """`POST /v1/organization/projects`. Nothing is encrypted by an external key, and all data lie in one place."""

    name: str = Field(min_length=1, max_length=MOST_CHARACTERS)
    external_key_id: None = None
    geography: None = None
    residency: None = None
    octavo: ProjectExtras = ProjectExtras()


class ProjectChange(Frozen):
    """`POST /v1/organization/projects/{project_id}`."""

    name: str | None = Field(None, min_length=1, max_length=MOST_CHARACTERS)
    external_key_id: None = None
    geography: None = None


class KeyExtras(Frozen):
    """Rights of a key: its scopes, and the models that it is confined to."""

    scopes: list[Scope] = Field([], max_length=_MOST_SCOPES)
    models: list[str] = Field([], max_length=MOST_MODELS)


class AccountRequest(Frozen):
    """`POST .../service_accounts`: an account, and its first key unless the account alone is asked for."""

    name: str = Field(min_length=1, max_length=MOST_CHARACTERS)
    create_service_account_only: bool | None = None
    expires_in_seconds: int | None = Field(None, strict=True)
    octavo: KeyExtras = KeyExtras()


class AccountChange(Frozen):
    """`POST .../service_accounts/{service_account_id}`. All accounts are members."""

    name: str | None = Field(None, min_length=1, max_length=MOST_CHARACTERS)
    role: Literal["member"] | None = None


class KeyRequest(Frozen):
    """`POST .../service_accounts/{service_account_id}/api_keys`."""

    name: str = Field("key", min_length=1, max_length=MOST_CHARACTERS)
    expires_in_seconds: int | None = Field(None, strict=True)
    scopes: list[Scope] = Field([], max_length=_MOST_SCOPES)
    octavo: KeyExtras = KeyExtras()


class KeyChange(Frozen):
    """`POST .../api_keys/{api_key_id}`. No scopes at all are those of a key that was given none."""

    expires_in_seconds: int | None = Field(None, strict=True)
    scopes: list[Scope] | None = Field(None, max_length=_MOST_SCOPES)


class KeyRotation(Frozen):
    """`POST .../api_keys/{api_key_id}/rotate`: for so long does the secret before hold."""

    grace_seconds: int = Field(0, ge=0, le=MOST_GRACE_S, strict=True)


def scopes_of(*given: list[Scope]) -> frozenset[Scope]:
    """Scopes of a new key: those that were given, or all of a tenant's own."""
    return frozenset(scope for scopes in given for scope in scopes) or OF_TENANTS
