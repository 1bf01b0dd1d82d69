"""The formats of tool calls and of reasoning, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.dialects.parsing import deepseek, gemma, glm, harmony, hermes, kimi, llama, mistral, qwen_coder
from octavo.dialects.parsing.calls import Calls, read_no_calls
from octavo.dialects.parsing.ids import call_id, short_call_id
from octavo.dialects.parsing.syntax import BareArguments, CallSyntax, TaggedArguments
from octavo.dialects.parsing.thoughts import GEMMA, MISTRAL, THINK, Thoughts

NONE = "none"
"""The name of the format of models without tools, or without thoughts."""

HARMONY = "harmony"
"""A format of both, whose messages are no text with calls in it: it has a parser of its own."""


@dataclass(frozen=True)
class ToolFormat:
    """How the models of a family call tools.

    One of `markers` begins calls anywhere in the content, one of `leading` only at its beginning; `read_calls` reads
    what follows. `inside_thoughts`: a call ends a thought that is still open, since its marker is a control token.
    `also` has what is read besides the markers and the syntax.
    """

    syntax: CallSyntax | None
    markers: tuple[str, ...] = ()
    leading: tuple[str, ...] = ()
    read_calls: Calls = read_no_calls
    inside_thoughts: bool = False
    call_id: Callable[[str, int, int], str] = call_id
    also: tuple[str, ...] = ()


def _gemma(kind: gemma.Gemma) -> ToolFormat:
    syntax = CallSyntax(
        trigger=kind.begin,
        before_name=f"{kind.begin}call:",
        before_arguments="",
        after_arguments=kind.end,
        arguments=BareArguments(kind.quote),
    )
    return ToolFormat(syntax, markers=(kind.begin,), read_calls=kind.read_calls, inside_thoughts=True)


def _deepseek(before_name: str, before_arguments: str, after_arguments: str, separator: str) -> ToolFormat:
    syntax = CallSyntax(
        trigger=deepseek.SECTION,
        begin=deepseek.SECTION,
        before_name=deepseek.CALL + before_name,
        before_arguments=before_arguments,
        after_arguments=after_arguments + deepseek.CALL_END,
        separator=separator,
        end=deepseek.SECTION_END,
    )
    return ToolFormat(
        syntax,
        markers=(deepseek.SECTION, deepseek.CALL),
        read_calls=deepseek.read_calls,
        inside_thoughts=True,
    )


def _mistral(syntax: CallSyntax) -> ToolFormat:
    return ToolFormat(
        syntax,
        markers=(mistral.BEGIN,),
        read_calls=mistral.read_calls,
        inside_thoughts=True,
        call_id=short_call_id,
        also=(mistral.ID, mistral.ARGUMENTS),
    )


TOOL_FORMATS: dict[str, ToolFormat] = {
    NONE: ToolFormat(syntax=None),
    "hermes": ToolFormat(
        CallSyntax(
            trigger=hermes.BEGIN,
            before_name=f'{hermes.BEGIN}\n{{"name": "',
            before_arguments='", "arguments": ',
            after_arguments=f"}}\n{hermes.END}",
            separator="\n",
        ),
        markers=(hermes.BEGIN,),
        read_calls=hermes.read_calls,
    ),
    "qwen3_coder": ToolFormat(
        CallSyntax(
            trigger=qwen_coder.BEGIN,
            before_name=f"{qwen_coder.BEGIN}\n{qwen_coder.FUNCTION}",
            before_arguments=">\n",
            after_arguments=f"{qwen_coder.FUNCTION_END}\n{qwen_coder.END}",
            separator="\n",
            arguments=TaggedArguments("<parameter=", ">\n", "\n</parameter>\n"),
        ),
        markers=(qwen_coder.BEGIN, qwen_coder.FUNCTION),
        read_calls=qwen_coder.read_calls,
        inside_thoughts=True,
    ),
    "llama3_json": ToolFormat(
        CallSyntax(
            trigger='{"name": "',
            before_name='{"name": "',
            before_arguments='", "parameters": ',
            after_arguments="}",
            separator="; ",
        ),
        markers=(llama.TAG,),
        leading=(llama.BARE,),
        read_calls=llama.read_calls,
    ),
    "mistral": _mistral(
        CallSyntax(
            trigger=mistral.BEGIN,
            begin=f"{mistral.BEGIN}[",
            before_name='{"name": "',
            before_arguments='", "arguments": ',
            after_arguments="}",
            separator=", ",
            end="]",
        )
    ),
    "mistral_args": _mistral(
        CallSyntax(
            trigger=mistral.BEGIN,
            before_name=mistral.BEGIN,
            before_arguments=mistral.ARGUMENTS,
            after_arguments="",
        )
    ),
    "deepseek_v3": _deepseek(
        f"{deepseek.KIND}{deepseek.SEPARATOR}", f"\n{deepseek.FENCE}\n", f"\n{deepseek.FENCE_END}", "\n"
    ),
    "deepseek_v3_1": _deepseek("", deepseek.SEPARATOR, "", ""),
    "glm4": ToolFormat(
        CallSyntax(
            trigger=glm.BEGIN,
            before_name=glm.BEGIN,
            before_arguments="\n",
            after_arguments=glm.END,
            separator="\n",
            arguments=TaggedArguments("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
        ),
        markers=(glm.BEGIN,),
        read_calls=glm.read_calls,
        inside_thoughts=True,
    ),
    "kimi_k2": ToolFormat(
        CallSyntax(
            trigger=kimi.SECTION,
            begin=kimi.SECTION,
            before_name=f"{kimi.CALL}functions.",
            before_arguments=f":{{index}}{kimi.ARGUMENTS}",
            after_arguments=kimi.CALL_END,
            end=kimi.SECTION_END,
        ),
        markers=(kimi.SECTION, kimi.CALL),
        read_calls=kimi.read_calls,
        inside_thoughts=True,
    ),
    HARMONY: ToolFormat(
        CallSyntax(
            trigger=f"{harmony.CHANNEL}commentary to={harmony.FUNCTIONS}",
            before_name=f"{harmony.CHANNEL}commentary to={harmony.FUNCTIONS}",
            before_arguments=f" {harmony.CONSTRAIN}json{harmony.MESSAGE}",
            after_arguments=harmony.CALL,
            separator=f"{harmony.START}assistant",
        ),
        also=(harmony.END, harmony.RETURN),
    ),
    "gemma4": _gemma(gemma.GEMMA_4),
    "functiongemma": _gemma(gemma.FUNCTION_GEMMA),
}
"""The formats of tool calls."""

REASONING_FORMATS: dict[str, Thoughts | None] = {
    NONE: None,
    "think": THINK,
    "mistral": MISTRAL,
    "gemma4": GEMMA,
    HARMONY: None,
}
"""The formats of reasoning. Harmony's thoughts are messages, without markers around them."""


def is_marker(text: str, tools: str, reasoning: str) -> bool:
    """True if `text`, the spelling of a token, is a part of what these formats are read by. Raises KeyError for an
    unknown one. Harmony's are the same for both."""
    form, thoughts = TOOL_FORMATS[HARMONY if HARMONY in (tools, reasoning) else tools], REASONING_FORMATS[reasoning]
    read = [*form.markers, *form.leading, *form.also]
    if form.syntax is not None:
        syntax = form.syntax
        read += [syntax.begin, syntax.before_name, syntax.before_arguments, syntax.after_arguments]
        read += [syntax.separator, syntax.end]
        match syntax.arguments:
            case TaggedArguments(before_key, before_value, after_value):
                read += [before_key, before_value, after_value]
            case BareArguments(quote):
                read.append(quote)
    if thoughts is not None:
        read += [thoughts.begin, thoughts.end]
    return bool(text.strip()) and any(text.strip() in part for part in read)
