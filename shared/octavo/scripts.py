"""The Lua scripts: one file a transition in `lua/`, each preceded by the shared code of `lua/common.lua`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Script:
    """Source and the SHA-1 by which the server knows it."""

    source: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script `lua/<name>.lua`, ready to send.

    Its first line (`#!lua flags=...`) has to stay the first line, so the shared code goes in behind it.
    """
    folder = files("octavo") / "lua"
    flags, _, body = (folder / f"{name}.lua").read_text(encoding="utf-8").partition("\n")
    common = (folder / "common.lua").read_text(encoding="utf-8")
    source = f"{flags}\n{common}\n{body}"
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
