"""The family of a model, recognised by the text of its chat template."""

from __future__ import annotations

from octavo.dialects.parsing.formats import HARMONY, NONE, REASONING_FORMATS

_TOOL_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (HARMONY, ("<|channel|>", "<|message|>")),
    ("gemma4", ("<|tool_call>", "<tool_call|>")),
    ("functiongemma", ("<start_function_call>",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v3_1", ("<｜tool▁calls▁begin｜>",)),
    ("mistral_args", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("glm4", ("<tool_call>", "<arg_key>")),
    ("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
    ("hermes", ("<tool_call>", "arguments")),
    ("llama3_json", ("dictionary of argument name and its value",)),
)
"""Signs in the templates of each family. The first that has all its signs is the family."""

_REASONING_SIGNS = (
    (HARMONY, ("<|channel|>", "<|message|>")),
    ("gemma4", ("<|channel>thought",)),
    ("mistral", ("[THINK]",)),
    ("think", ("</think>",)),
    ("think", ("<think>",)),
)


def family_of(chat_template: str) -> tuple[str, str]:
    """The names of a model's tool format and reasoning format, `none` where the template shows no sign of one."""
    return _first(_TOOL_SIGNS, chat_template), _first(_REASONING_SIGNS, chat_template)


def ends_in_thought(prompt: str, reasoning: str) -> bool:
    """True if a rendered prompt ends inside a thought, which the template opened: what `Parser` takes as `opened`."""
    thoughts = REASONING_FORMATS[reasoning]
    return thoughts is not None and prompt.rstrip().endswith(thoughts.begin)


def _first(signs: tuple[tuple[str, tuple[str, ...]], ...], template: str) -> str:
    return next((name for name, parts in signs if all(part in template for part in parts)), NONE)
