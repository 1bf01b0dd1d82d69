"""The planted defects, data in tests/defects: one replacement each, and the tests that are to fail."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "defects"
CATCHERS = FOLDER / "catchers.json"
"""The test that caught each defect when it was last planted: by area and name. `run.py --quick --write` keeps it."""


@dataclass(frozen=True)
class Defect:
    """`file` with `text`, which occurs there once, replaced by `instead`. `tests` are files, `only` is pytest's -k.

    `full` is the one test that notices it where none of the quick tier does. `mark` is pytest's -m: tests that
    need the CUDA compiler run only where they are asked for. `unchanged` says why a defect changes no behaviour; it has
    no tests.
    """

    area: str
    name: str
    file: str
    text: str
    instead: str
    tests: tuple[str, ...] = ()
    only: str = ""
    full: str = ""
    mark: str = ""
    unchanged: str = ""

    def selection(self, tier: str) -> tuple[str, ...]:
        """Arguments of pytest."""
        if tier == "quick" and self.full:
            return (self.full, "--tier=full")
        flags = (("-k", self.only), ("-m", self.mark))
        return (*self.tests, *(word for flag in flags if flag[1] for word in flag), f"--tier={tier}")

    def plant(self, source: str) -> str:
        """The source with the defect. Raises ValueError where its place is not found, or not just once."""
        if (found := source.count(self.text)) != 1:
            raise ValueError(f"{self.area}: {self.name!r}: the text occurs {found} times in {self.file}")
        return source.replace(self.text, self.instead)


def read_catchers(path: Path = CATCHERS) -> dict[str, dict[str, str]]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def write_catchers(catchers: dict[str, dict[str, str]], path: Path = CATCHERS) -> None:
    path.write_text(json.dumps(catchers, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def read_defects(folder: Path = FOLDER) -> list[Defect]:
    """All of them. A list's own `tests` are those of every defect that names none."""
    defects = []
    for path in sorted(folder.glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        for entry in content["defect"]:
            tests = () if "unchanged" in entry else entry.pop("tests", content["tests"])
            defects.append(Defect(area=path.stem, tests=tuple(tests), **entry))
    return defects
