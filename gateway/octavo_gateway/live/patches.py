"""JSON merge patches (RFC 7396): what turns one object into another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The least that changes. Values that are None stand for members that are not there, in all three."""
    changes: dict[str, Any] = {name: None for name in before if before[name] is not None and after.get(name) is None}
    for name, value in after.items():
        old = before.get(name)
        if value == old or value is None:
            continue
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            changes[name] = patch(old, value)
        else:
            changes[name] = value
    return changes
