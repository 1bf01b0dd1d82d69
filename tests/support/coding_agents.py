"""Coding agents of others, unmodified: each is pointed at a gateway by its own settings, in a home of its own.

They come by `npm install --prefix tests/support/node`. Nothing of the environment reaches them but the search path;
what they would tell others is switched off by their own switches, and the rest ends at a proxy that is not there.
"""

from __future__ import annotations

import json
import os
import re
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from programs import run_program
from real_clients import DOCUMENT

NODE = Path(__file__).parent / "node"
BIN = NODE / "node_modules" / ".bin"
MODEL = "hermes"
QUESTION = "What is in note.txt?"
COMMAND = "cat note.txt; echo read >> calls.txt"
_ALONE = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1,localhost"}


@dataclass(frozen=True)
class Agent:
    """`tool` is its shell, `argument` where that has the command. `settings` writes files into a home."""

    name: str
    package: str
    path: str
    tool: str
    argument: str
    words: tuple[str, ...]
    settings: Callable[[Path, str], None]
    environment: Callable[[str], dict[str, str]] = lambda url: {}

    @property
    def id(self) -> str:
        return f"{self.name}-{self.path.rpartition('/')[2]}"

    @property
    def call(self) -> str:
        """A call of the command, as a model writes it."""
        arguments = {self.argument: COMMAND}
        return f"<tool_call>\n{json.dumps({'name': self.tool, 'arguments': arguments})}\n</tool_call>"

    @asynccontextmanager
    async def asking(self, url: str, folder: Path) -> AsyncIterator[Process]:
        """The program, while it answers `QUESTION` in a folder with a note."""
        home, work = folder / "home", folder / "work"
        home.mkdir()
        work.mkdir()
        (work / "note.txt").write_text("a heron\n")
        self.settings(home, url)
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), **_ALONE, **self.environment(url)}
        words = (str(BIN / self.words[0]), *self.words[1:], QUESTION)
        async with run_program(*words, folder=work, inherits=False, **environment) as process:
            yield process


def _documented(language: str, url: str) -> str:
    """The block of the page for users, with the address and the model of a test."""
    (block,) = re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    return block.replace("http://127.0.0.1:8000", url).replace('"demo"', f'"{MODEL}"').replace("=demo", f"={MODEL}")


def _claude_settings(home: Path, url: str) -> None:
    """All of its settings are variables."""


def _claude_environment(url: str) -> dict[str, str]:
    lines = _documented("sh", url).splitlines()
    return dict(line.removeprefix("export ").split("=", 1) for line in lines)


def _codex_settings(home: Path, url: str) -> None:
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(_documented("toml", url))


def _pi(api: str, path: str) -> Agent:
    def settings(home: Path, url: str) -> None:
        folder = home / ".pi" / "agent"
        folder.mkdir(parents=True)
        models = json.loads(_documented("json", url))
        models["providers"]["octavo"] |= {"api": api, "baseUrl": url if api == "anthropic-messages" else f"{url}/v1"}
        (folder / "models.json").write_text(json.dumps(models))

    words = ("pi", "--provider", "octavo", "--model", MODEL, "--no-session", "-p")
    environment = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"}
    return Agent("pi", "@mariozechner/pi-coding-agent", path, "bash", "command", words, settings, lambda _: environment)


CLAUDE_CODE = Agent(
    "claude-code",
    "@anthropic-ai/claude-code",
    "/v1/messages",
    "Bash",
    "command",
    ("claude", "--allowedTools", "Bash", "-p"),
    _claude_settings,
    _claude_environment,
)
CODEX = Agent(
    "codex",
    "@openai/codex",
    "/v1/responses",
    "exec_command",
    "cmd",
    ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
    _codex_settings,
)
AGENTS = (
    CLAUDE_CODE,
    CODEX,
    _pi("openai-completions", "/v1/chat/completions"),
    _pi("openai-responses", "/v1/responses"),
    _pi("anthropic-messages", "/v1/messages"),
)
