"""Content of messages: text, or a list of blocks; and the turns of a chat completion that say the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from octavo.dialects.openai.fields import Body, JsonObject
from octavo.terms.conversation import refuse_media


class Block(Body):
    """Where a cached prefix may end makes no difference here: every prefix is cached."""

    cache_control: dict[str, Any] | None = None


class TextBlock(Block):
    type: Literal["text"]
    text: str
    citations: Any = None


Text = Annotated[str | Annotated[tuple[TextBlock, ...], Field(fail_fast=True)], BeforeValidator(refuse_media)]


class ThinkingBlock(Block):
    """A thought of an earlier answer. Templates leave those out."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: str = ""
    signature: str = ""
    data: str = ""


class ToolUseBlock(Block):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject


class ToolResultBlock(Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Text = ""
    is_error: bool = False


ContentBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


class MessageParam(Body):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[str | Annotated[tuple[ContentBlock, ...], Field(fail_fast=True)], BeforeValidator(refuse_media)]

    @property
    def _blocks(self) -> tuple[Block, ...]:
        return () if isinstance(self.content, str) else self.content

    @property
    def text(self) -> str:
        """The text of its blocks, which may be empty."""
        if isinstance(self.content, str):
            return self.content
        return text_of([block for block in self.content if isinstance(block, TextBlock)])

    @property
    def calls_tools(self) -> bool:
        return any(isinstance(block, ToolUseBlock) for block in self._blocks)

    @property
    def begins_with_thinking(self) -> bool:
        return bool(self._blocks) and isinstance(self._blocks[0], ThinkingBlock)

    def turns(self) -> Iterator[dict[str, Any]]:
        """As chat completions have it: results of tools are turns of their own, and come first."""
        if isinstance(self.content, str):
            yield {"role": self.role, "content": self.content}
            return
        for block in self.content:
            if isinstance(block, ToolResultBlock):
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": text_of(block.content)}
        text = [block for block in self.content if isinstance(block, TextBlock)]
        calls = [_call(block) for block in self.content if isinstance(block, ToolUseBlock)]
        if calls:
            yield {"role": self.role, "content": text_of(text) or None, "tool_calls": calls}
        elif text or not any(isinstance(block, ToolResultBlock) for block in self.content):
            yield {"role": self.role, "content": text_of(text)}


def text_of(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def _call(block: ToolUseBlock) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}
