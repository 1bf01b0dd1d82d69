"""The chat templates of a model's folder, the formats that they imply, and the tokens that those are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from octavo.dialects.parsing import NONE, closing_text, continued_formats, ends_in_thought, family_of, is_marker
from octavo.terms.conversation import SWITCHES
from octavo.terms.messages import AnswerFormat
from octavo.terms.models import JobRequest
from octavo.terms.structured import Grammar
from octavo_worker.agent.prompts.answer_form import AnswerForm
from octavo_worker.agent.prompts.fence import Piece
from octavo_worker.agent.prompts.template import ChatTemplate
from octavo_worker.agent.prompts.tool_grammar import ModelTokens, answer_grammar
from octavo_worker.agent.prompts.tool_grammar.brevity import brief_grammar, brief_tool
from octavo_worker.contract.files import end_ids, read_json, read_text

_SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_LONGEST_STRING = "octavo_longest_string"  # of JSON, in tokenizer_config.json of a model that ends none by itself
_PRESCRIBING = ("json_schema", "json_object", "choice")  # grammars whose texts end by themselves
_LOOKS_LIKE_A_MARKER = re.compile(r"[<\[|].*[>\]|]")


class ChatModel:
    """A model that chats: `plain` is its template, `with_tools` the one for requests with tools, mostly the same.

    Spellings of special tokens, and of other added tokens that the templates or their formats use as markers, never
    come out of what users wrote. `longest_string` bounds what schemas leave open. Raises TemplateFailed.
    """

    def __init__(
        self,
        plain: str,
        with_tools: str,
        *,
        tokenizer: Tokenizer,
        variables: dict[str, str],
        end_ids: Iterable[int] = (),
        longest_string: int | None = None,
    ) -> None:
        self._longest_string = longest_string
        self._tokenizer = tokenizer
        self.tool_format, _ = family_of(with_tools)
        _, self.reasoning_format = family_of(plain)
        added = tokenizer.get_added_tokens_decoder()
        self._tokens = ModelTokens(
            {found.content: token for token, found in added.items()}, frozenset(end_ids), self._encode
        )
        self._special = {token: found.content for token, found in added.items() if found.special}
        sources = plain + with_tools
        markers = [
            found.content for found in added.values() if found.special or self._is_marker(found.content, sources)
        ]
        self._plain = ChatTemplate(plain, special=markers, variables=variables)
        self._with_tools = (
            self._plain if plain == with_tools else ChatTemplate(with_tools, special=markers, variables=variables)
        )
        self._begins_thoughts = self._plain.begins(lambda prompt: ends_in_thought(prompt, self.reasoning_format))

    @classmethod
    def of_folder(cls, folder: Path, tokenizer: Tokenizer) -> ChatModel | None:
        """The chat model of a folder in Hugging Face's layout. None without a template. Raises TemplateFailed."""
        config = read_json(folder / "tokenizer_config.json")
        sources = _sources(folder, config)
        if "default" not in sources:
            return None
        named = read_json(folder / "special_tokens_map.json")
        texts = {name: _token_text(config.get(name)) or _token_text(named.get(name)) for name in _SPECIAL_NAMES}
        variables = {name: text for name, text in texts.items() if text}
        plain = sources["default"]
        with_tools = sources.get("tool_use", plain)
        return cls(
            plain,
            with_tools,
            tokenizer=tokenizer,
            variables=variables,
            end_ids=end_ids(folder),
            longest_string=longest if isinstance(longest := config.get(_LONGEST_STRING), int) else None,
        )

    @property
    def switches(self) -> tuple[str, ...]:
        """Variables of thinking that a template reads."""
        return tuple(name for name in SWITCHES if name in self._plain.reads | self._with_tools.reads)

    def render(self, request: JobRequest, at: datetime) -> list[Piece]:
        """The prompt of a request with messages, at a moment. Raises TemplateFailed."""
        tools = request.offered_tools
        template = self._with_tools if tools else self._plain
        return template.render(
            request.messages or (),
            at=at,
            tools=tools,
            arguments=request.chat_template_kwargs,
            continued=request.continue_final_message,
        )

    def answer_form(self, request: JobRequest, prompt: Sequence[Piece]) -> AnswerForm:
        """How the answer to a prompt is written."""
        tools = self.tool_format if request.offered_tools else NONE
        reasoning = self.reasoning_format
        opened = False
        if request.continue_final_message:
            begun = (request.messages or ())[-1].text
            tools, reasoning, opened = continued_formats(tools, reasoning, begun)
        elif prompt and not prompt[-1][1]:
            opened = ends_in_thought(prompt[-1][0], reasoning)
        is_prescribed = request.grammar is not None and request.grammar.kind in _PRESCRIBING
        if {tools, reasoning} == {NONE}:
            return AnswerForm(is_prescribed=is_prescribed)
        hidden = frozenset(
            token for token, spelling in self._special.items() if not is_marker(spelling, tools, reasoning)
        )
        closing = self._encode(closing_text(reasoning, calling=request.tool_choice.mode == "required"))
        schemas = {tool.name: tool.schema_of_parameters for tool in request.offered_tools}
        return AnswerForm(AnswerFormat(tools, reasoning, opened), hidden, tuple(closing), schemas, is_prescribed)

    def grammar(self, request: JobRequest, form: AnswerForm) -> Grammar | None:
        """Grammar of the answer to a request that is parsed. Where the template begins the thoughts of its model, and
        has begun none, there is none: a model that was asked for a call or for JSON goes there at once. Raises
        NoToolGrammar."""
        written = form.format or AnswerFormat()
        if self._begins_thoughts and not written.opened:
            written = AnswerFormat(tools=written.tools)
        tools, content = request.offered_tools, request.grammar
        if self._longest_string is not None:
            tools = tuple(brief_tool(tool, self._longest_string) for tool in tools)
            content = brief_grammar(content, self._longest_string)
        return answer_grammar(
            written,
            self._tokens,
            tools=tools,
            choice=request.tool_choice,
            parallel=request.parallel_tool_calls and not self._with_tools.calls_once,
            content=content,
        )

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _is_marker(self, spelling: str, sources: str) -> bool:
        """True if an added token that is not special is a template's own word, or a part of a format. Words and runs of
        blanks are neither."""
        if not _LOOKS_LIKE_A_MARKER.search(spelling):
            return False
        return spelling in sources or is_marker(spelling, self.tool_format, self.reasoning_format)


def _sources(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """The templates by name. A file of its own goes before tokenizer_config.json, and that before a processor's."""
    found = read_json(folder / "chat_template.json").get("chat_template")
    found = config.get("chat_template") or found
    sources = {"default": found} if isinstance(found, str) else dict(_named(found or ()))
    if (folder / "chat_template.jinja").exists():
        sources["default"] = read_text(folder / "chat_template.jinja")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[path.stem] = read_text(path)
    return sources


def _named(entries: Iterable[dict[str, str]]) -> Iterable[tuple[str, str]]:
    return ((entry["name"], entry["template"]) for entry in entries)


def _token_text(value: Any) -> str | None:
    return value.get("content") if isinstance(value, dict) else value
