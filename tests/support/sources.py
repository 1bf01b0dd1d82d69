"""Files of this checkout, without those that are installed or built in it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LEFT_OUT = {"build", "node_modules", "__pycache__"}


def sources(folder: str, suffixes: Collection[str] = (".py",)) -> Iterator[Path]:
    """Files below a folder of the checkout that end so. Packages of others are not walked, which takes seconds."""
    for place, folders, names in os.walk(ROOT / folder):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        yield from (Path(place) / name for name in sorted(names) if Path(name).suffix in suffixes)
