"""Programs and packages of others that tests run unchanged against a gateway: the table of docs/clients.md.

`python tests/support/real_clients.py` writes the table anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "clients.md"
PACKAGES: Mapping[str, str] = json.loads((ROOT / "tests/support/node/package.json").read_text())["dependencies"]
"""Packages of Node, with the versions that are pinned."""

AGAIN = "asks again by itself"
WHOLE = "asks again for a whole answer"
RESUMES = "resumes the same answer"
NOT_TRIED = "not tried"
_HEAD = "| program | version tried | routes | a killed gateway | tests |\n| --- | --- | --- | --- | --- |\n"


@dataclass(frozen=True)
class RealClient:
    """`paths` are those that it asks. `broken`: what it does about a gateway that is killed while it answers.
    `version` was tried of a package of Python; these are not pinned."""

    name: str
    package: str
    paths: tuple[str, ...]
    broken: str
    tests: str
    version: str = ""

    @property
    def row(self) -> str:
        version = self.version or PACKAGES[self.package]
        paths = ", ".join(f"`{path}`" for path in self.paths)
        tests = f"[{Path(self.tests).name}](../{self.tests})"
        return f"| {self.name} | `{self.package}` {version} | {paths} | {self.broken} | {tests} |\n"


CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, UI_CHAT = "/v1/messages", "/v1/chat"
_AGENTS, _AI_SDK, _SDKS = (f"tests/gateway/test_{name}.py" for name in ("coding_agents", "ai_sdk", "sdks"))
_PYTHON = "tests/gateway/clients/test_"

CLIENTS = (
    RealClient("Claude Code", "@anthropic-ai/claude-code", (MESSAGES,), AGAIN, _AGENTS),
    RealClient("Codex", "@openai/codex", (RESPONSES,), AGAIN, _AGENTS),
    RealClient("pi", "@mariozechner/pi-coding-agent", (CHAT, RESPONSES, MESSAGES), AGAIN, _AGENTS),
    RealClient("AI SDK", "@ai-sdk/openai", (RESPONSES, CHAT), WHOLE, _AI_SDK),
    RealClient("AI SDK", "@ai-sdk/openai-compatible", (CHAT,), WHOLE, _AI_SDK),
    RealClient("AI SDK", "@ai-sdk/anthropic", (MESSAGES,), WHOLE, _AI_SDK),
    RealClient("AI SDK's `useChat`", "@ai-sdk/react", (UI_CHAT,), RESUMES, "tests/gateway/test_npm.py"),
    RealClient("OpenAI's package", "openai", (CHAT, RESPONSES), WHOLE, _SDKS, "3.57.0"),
    RealClient("Anthropic's package", "anthropic", (MESSAGES,), WHOLE, _SDKS, "2.14.0"),
    RealClient(
        "langchain", "langchain-openai", (CHAT, COMPLETIONS, RESPONSES), WHOLE, f"{_PYTHON}langchain.py", "1.7.4"
    ),
    RealClient("langchain", "langchain-anthropic", (MESSAGES,), WHOLE, f"{_PYTHON}langchain_anthropic.py", "1.7.10"),
    RealClient(
        "litellm", "litellm", (CHAT, COMPLETIONS, RESPONSES, MESSAGES), WHOLE, f"{_PYTHON}litellm.py", "1.110.2"
    ),
    RealClient("instructor", "instructor", (CHAT, RESPONSES), NOT_TRIED, f"{_PYTHON}instructor.py", "1.17"),
    RealClient("pydantic-ai", "pydantic-ai-slim", (CHAT, RESPONSES), NOT_TRIED, f"{_PYTHON}pydantic_ai.py", "2.38"),
    RealClient("guidellm", "guidellm", (COMPLETIONS, CHAT, RESPONSES), NOT_TRIED, f"{_PYTHON}guidellm.py", "0.8"),
    RealClient("lm-eval", "lm-eval", (COMPLETIONS, CHAT), NOT_TRIED, f"{_PYTHON}lm_eval.py", "0.4.13"),
)


def document(text: str) -> str:
    """The document with the table of `CLIENTS`. Raises ValueError where it has no table."""
    start = text.index(_HEAD)
    end = text.index("\n\n", start)
    return text[:start] + _HEAD + "".join(client.row for client in CLIENTS).rstrip("\n") + text[end:]


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text()))
