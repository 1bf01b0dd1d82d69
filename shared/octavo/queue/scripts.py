"""The Lua scripts: one file a transition in `lua/`, with the parts of `lua/lib/` that it includes.

The line `--- @include name` stands for `lua/lib/<name>.lua`, which may include others. A scope holds each part once.
An indented line includes a part into its block alone: rare paths define their functions only when they run.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_INCLUDE = re.compile(r"^( *)--- @include (\w+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    """Source and the SHA-1 by which the server knows it."""

    source: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script `lua/<name>.lua`, ready to send."""
    source = _resolved(name, set())
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def _resolved(name: str, included: set[str]) -> str:
    """A file with its includes in place. Modifies `included`: parts of this scope, which are left out."""

    def expanded(match: re.Match[str]) -> str:
        indent, part = match.groups()
        scope = set(included) if indent else included
        if part in scope:
            return ""
        scope.add(part)
        return textwrap.indent(_resolved(f"lib/{part}", scope), indent)

    return _INCLUDE.sub(expanded, (files("octavo.queue") / "lua" / f"{name}.lua").read_text(encoding="utf-8"))
