"""Programs and packages of others that tests run unchanged against a gateway: the table of docs/clients.md."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES: dict[str, str] = json.loads((ROOT / "tests/support/node/package.json").read_text())["dependencies"]

AGAIN = "asks again by itself"
WHOLE = "asks again for a whole answer; a stream ends in an error"
RESUMES = "resumes the same answer"
ERROR = "ends in an error"


@dataclass(frozen=True)
class RealClient:
    """`routes` without `/v1/`. `broken`: what it does about a gateway that is killed while it answers. `version` is the
    one that was tried, of packages of Python, which are not pinned."""

    name: str
    package: str
    routes: tuple[str, ...]
    broken: str
    tests: str
    version: str = ""

    @property
    def tried(self) -> str:
        return self.version or PACKAGES[self.package]

    @property
    def row(self) -> str:
        routes = ", ".join(f"`/v1/{route}`" for route in self.routes)
        return f"| {self.name} | {self.package} {self.tried} | {routes} | {self.broken} | [tests](../{self.tests}) |"
