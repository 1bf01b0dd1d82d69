"""The examples of the documentation: fenced blocks, in the order of their document, and a session that runs them.

A block runs as it stands, in a folder and a shell of its document's own; Python blocks share one interpreter.
Addresses are those of the service that runs: port 8000 is its gateway's, 6379 its server's, 8080 a free one. A block
whose first line is a comment with the name of a file becomes that file. A word behind the language says why a block is
not run: see REASONS.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from waiting import STALL_S

ROOT = Path(__file__).parents[2]
NODE_MODULES = ROOT / "tests/support/node/node_modules"
RUN = ("sh", "python", "js", "html", "yaml")
"""Languages of examples; other blocks show data, formulas and diagrams."""
REASONS = {
    "checkout": "sets up or tests the whole checkout, which is what runs it",
    "pip": "installs packages, from a registry or a repository",
    "docker": "needs Docker",
    "elsewhere": "names hosts, folders or models that are not here",
    "service": "starts what the test has running",
    "react": "is a part of a React page",
    "npm": "needs a package of npm; runs where `tests/support/node` has it",
    "go": "needs Go",
}
"""Reasons by the word behind the language of a block."""
_BLOCK = re.compile(r"^```([a-z]+)(?: ([a-z ]+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"(?:#|//|<!--) ([\w-]+\.(?:py|html|yaml|txt|jsonl))\b")
_SH = """set -euo pipefail
set -a
[ -f .shell ] && . ./.shell
. "$0"
export -p > .shell
"""
_PYTHON = """
import sys
namespace = {"__name__": "__main__"}
for path in sys.stdin:
    with open(path.strip()) as file:
        exec(compile(file.read(), path.strip(), "exec"), namespace)
    print("\\0", flush=True)
"""


@dataclass(frozen=True)
class Example:
    """One block. `number` counts those of its document from 1."""

    document: Path
    number: int
    line: int
    language: str
    marks: tuple[str, ...]
    source: str

    @property
    def name(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """Name of the file that it is."""
        found = _FILE.match(self.source)
        return found[1] if found else None

    @property
    def reason(self) -> str | None:
        """Why it is not run here. None if it is."""
        here = {"npm"} if NODE_MODULES.exists() else set()
        return next((REASONS[mark] for mark in self.marks if mark not in here), None)


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]


def examples_of(document: Path) -> list[Example]:
    """The examples of a document, in order."""
    text = document.read_text()
    found = [block for block in _BLOCK.finditer(text) if block[1] in (*RUN, "tsx")]
    return [
        Example(document, number, text.count("\n", 0, block.start()) + 1, block[1], _marks(block[2]), block[3])
        for number, block in enumerate(found, 1)
    ]


def _marks(words: str | None) -> tuple[str, ...]:
    return tuple((words or "").split())


@dataclass
class Session:
    """Folder, shell and interpreter of one document. Ends all that its examples started."""

    folder: Path
    environment: dict[str, str]
    addresses: dict[str, str]
    _python: subprocess.Popen[str] | None = None
    _groups: list[int] = field(default_factory=list)

    def __enter__(self) -> Self:
        (self.folder / "docs").symlink_to(ROOT / "docs")
        (self.folder / ".curlrc").write_text(f"fail-with-body\nmax-time = {STALL_S}\n")
        if NODE_MODULES.exists():
            (self.folder / "node_modules").symlink_to(NODE_MODULES)
        installed = f"{Path(sys.executable).parent}{os.pathsep}{self.environment['PATH']}"
        self.environment |= {"PATH": installed, "HOME": str(self.folder), "PYTHONUNBUFFERED": "1"}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._python is not None:
            self._python.kill()
            self._python.communicate()
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    @property
    def own(self) -> str:
        """Address of what the examples start."""
        return self.addresses["127.0.0.1:8080"]

    def run(self, example: Example) -> str:
        """Output of an example. Raises AssertionError if it fails."""
        source = self._placed(example.source)
        if (name := example.file) is not None:
            (self.folder / name).write_text(source)
            return ""
        path = self.folder / f"example-{example.number}.{'mjs' if example.language == 'js' else example.language}"
        match example.language:
            case "sh":
                path.write_text(source)
                return self.command(example.name, ["bash", "-c", _SH, str(path)])
            case "python":
                path.write_text(source)
                return self._interpreted(example.name, path)
            case "js":
                path.write_text((ROOT / "tests/support/browser.mjs").read_text() + source)
                return self.command(example.name, ["node", str(path)])
        raise AssertionError(f"{example.name}: no way to run {example.language}")

    def command(self, name: str, words: list[str], **variables: str) -> str:
        """Output of a command. What it leaves running ends with the session."""
        output = self.folder / ".output"
        with output.open("w+b") as file:
            process = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.environment | self._shell_variables() | variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._groups.append(process.pid)
            code = process.wait(STALL_S)
        said = output.read_text(errors="replace")
        output.rename(output.with_name(f".output-{process.pid}"))  # background processes go on writing there
        assert code == 0, f"{name} ended with {code}:\n{said}"
        return said

    def _interpreted(self, name: str, path: Path) -> str:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-u", "-c", _PYTHON],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(f"{path}\n")
        self._python.stdin.flush()
        said = ""
        for line in self._python.stdout:
            said += line
            if said.endswith("\0\n"):
                return said[:-2]
        raise AssertionError(f"{name} failed:\n{said}")

    def _shell_variables(self) -> dict[str, str]:
        """Variables that examples of the shell have set, for programs of other languages."""
        path = self.folder / ".shell"
        return dict(_exported(path.read_text())) if path.exists() else {}

    def _placed(self, source: str) -> str:
        for written, meant in self.addresses.items():
            source = source.replace(written, meant)
        return source


def _exported(text: str) -> Iterator[tuple[str, str]]:
    yield from re.findall(r'^declare -x (ID)="([^"]*)"$', text, flags=re.MULTILINE)
