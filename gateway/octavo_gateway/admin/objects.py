"""Objects of the administration dialect."""

from __future__ import annotations

from typing import Any

from octavo.queue.tenants.keys import Account, ApiKey, Project
from octavo.terms.access.api_keys import KEY_ID, KEY_PREFIX, KeyText, Scope


def project_object(project: Project) -> dict[str, Any]:
    """A project as the API shows it."""
    return {
        "id": project.id,
        "object": "organization.project",
        "name": project.name,
        "created_at": int(project.created_at),
        "archived_at": _second(project.archived_at),
        "status": "active" if project.archived_at is None else "archived",
    }


def account_object(account: Account) -> dict[str, Any]:
    """A service account as the API shows it."""
    return {"object": "organization.project.service_account", **_owner(account)}


def key_object(key: ApiKey, account: Account | None) -> dict[str, Any]:
    """A key as the API shows it, which is without its secret. Keys of the command line have no account."""
    return {
        "object": "organization.project.api_key",
        "id": key.id,
        "name": key.name,
        "redacted_value": f"{KEY_PREFIX}{key.id.removeprefix(KEY_ID)}-***",
        "created_at": int(key.created_at),
        "last_used_at": _second(key.last_used_at),
        "expires_at": _second(key.expires_at),
        "owner": {
            "type": None if account is None else "service_account",
            "service_account": None if account is None else _owner(account),
        },
        "owner_project_access": "active",
        "octavo": _rights(key),
    }


def new_key_object(key: ApiKey, text: KeyText) -> dict[str, Any]:
    """A key with its secret, which is seen here and never again."""
    return {
        "object": "organization.project.service_account.api_key",
        "id": key.id,
        "name": key.name,
        "value": text.text,
        "created_at": int(key.created_at),
        "expires_at": _second(key.expires_at),
        "octavo": _rights(key),
    }


def _owner(account: Account) -> dict[str, Any]:
    return {"id": account.id, "name": account.name, "role": "member", "created_at": int(account.created_at)}


def _rights(key: ApiKey) -> dict[str, Any]:
    return {"scopes": [scope for scope in Scope if scope in key.scopes], "models": list(key.models)}


def _second(moment: float | None) -> int | None:
    return None if moment is None else int(moment)
