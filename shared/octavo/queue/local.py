"""State file of `octavo up`, by which clients on the same machine find its server.

It lies in `$OCTAVO_STATE_DIR`, else `$XDG_STATE_HOME/octavo`, else `~/.local/state/octavo`, and counts only while
the process that wrote it lives.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from octavo.terms.errors import OctavoError


class LocalService(BaseModel):
    """The service that runs on this machine."""

    pid: int
    redis_url: str = Field(repr=False)  # it may hold a password
    api_url: str
    model: str
    secret_file: Path | None = None
    """The secret that `octavo up` gave its gateway; None where it was given one."""
    born: str = ""
    """Which of the processes that ever have the number `pid`."""


def state_dir() -> Path:
    """Where octavo keeps what must outlive a process on this machine. Raises OctavoError if there is no such place."""
    if chosen := os.environ.get("OCTAVO_STATE_DIR"):
        return Path(chosen)
    if base := os.environ.get("XDG_STATE_HOME"):
        return Path(base) / "octavo"
    try:
        return Path.home() / ".local" / "state" / "octavo"
    except RuntimeError as error:
        raise OctavoError("this user has no home directory: set OCTAVO_STATE_DIR to a folder") from error


def secret_file() -> Path:
    """File of the secret of this machine's services, made if there is none, for this user alone: a restart does not end
    the tokens of pages. Raises OctavoError."""
    path = state_dir() / "secret"
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_hex(32) + "\n")
        with suppress(FileExistsError):
            os.link(draft, path)  # of two services that start together both have the one that was first, whole
        draft.unlink()
    except OSError as error:
        raise OctavoError(f"cannot write {path} ({error.strerror}): set OCTAVO_STATE_DIR to another folder") from error
    return path


def controls_socket() -> Path:
    """Where the controls of this machine's service listen. Raises OctavoError."""
    return state_dir() / "controls.sock"


def publish(service: LocalService) -> None:
    """Write the state file, readable by this user alone: the address may hold a password. Raises OctavoError."""
    path = _path()
    draft = path.with_suffix(f".{service.pid}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.touch(mode=0o600)
        draft.write_text(service.model_copy(update={"born": _born(service.pid)}).model_dump_json())
        draft.replace(path)
    except OSError as error:
        raise OctavoError(f"cannot write {path} ({error.strerror}): set OCTAVO_STATE_DIR to another folder") from error


def withdraw(pid: int) -> None:
    """Remove the state file if process `pid` wrote it."""
    service = _read()
    if service is not None and service.pid == pid:
        _path().unlink(missing_ok=True)


def running() -> LocalService | None:
    """The service of this machine, or None. A file left behind by a killed process counts for nothing."""
    service = _read()
    return service if service is not None and _alive(service.pid) and service.born == _born(service.pid) else None


def _path() -> Path:
    return state_dir() / "up.json"


def _read() -> LocalService | None:
    try:
        return LocalService.model_validate_json(_path().read_bytes())
    except (OSError, ValidationError, OctavoError):
        return None


def _born(pid: int) -> str:
    """When a process began, as Linux tells it; empty elsewhere. In a container the first one always has number 1."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except OSError:
        return ""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
