"""Answers of a model of each family that thinks and says something, where it can, and calls two tools."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.terms.messages import AnswerFormat

ROME = '{"city": "Rome", "days": 3}'
OSLO = '{"city": "Oslo \\"N\\"", "days": null}'
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": ["integer", "null"]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"the {name}", "parameters": SCHEMA}}
    for name in ("get_weather", "get-news")
]


@dataclass(frozen=True)
class ToolAnswer:
    """A text and what it says. `opened`: the prompt began its thought. `calls` are in two forms where a format writes
    no JSON: as it is made of it."""

    text: str
    content: str | None = "Let me see."
    reasoning: str | None = None
    calls: tuple[tuple[str, str], ...] = (("get_weather", ROME), ("get-news", OSLO))


_REASONING = {
    "hermes": "think",
    "mistral_args": "mistral",
    "glm4": "think",
    "gemma4": "gemma4",
    "harmony": "harmony",
    "deepseek_v3": "think",
}


def format_of(name: str) -> AnswerFormat:
    """The worker's description of an answer of a family."""
    return AnswerFormat(name, _REASONING.get(name, "none"), opened=name == "deepseek_v3")


ANSWERS = {
    "hermes": ToolAnswer(
        "<think>\nRome, then.\n</think>\n\nLet me see.\n"
        f'<tool_call>\n{{"name": "get_weather", "arguments": {ROME}}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "get-news", "arguments": {OSLO}}}\n</tool_call>',
        reasoning="Rome, then.",
    ),
    "qwen3_coder": ToolAnswer(
        "Let me see.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get-news>\n<parameter=city>\n"
        'Oslo "N"\n</parameter>\n<parameter=days>\nnull\n</parameter>\n</function>\n</tool_call>',
    ),
    "llama3_json": ToolAnswer(
        f'{{"name": "get_weather", "parameters": {ROME}}}; {{"name": "get-news", "parameters": {OSLO}}}', content=None
    ),
    "mistral": ToolAnswer(
        f'Let me see.[TOOL_CALLS][{{"name": "get_weather", "arguments": {ROME}}}, '
        f'{{"name": "get-news", "arguments": {OSLO}}}]'
    ),
    "mistral_args": ToolAnswer(
        f"[THINK]Rome, then.[/THINK]Let me see.[TOOL_CALLS]get_weather[ARGS]{ROME}[TOOL_CALLS]get-news[ARGS]{OSLO}",
        reasoning="Rome, then.",
    ),
    "deepseek_v3": ToolAnswer(
        "Rome, then.\n</think>\n\nLet me see."
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        f"```json\n{ROME}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get-news\n"
        f"```json\n{OSLO}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        reasoning="Rome, then.",
    ),
    "deepseek_v3_1": ToolAnswer(
        f"Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ROME}<｜tool▁call▁end｜>"
        f"<｜tool▁call▁begin｜>get-news<｜tool▁sep｜>{OSLO}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "glm4": ToolAnswer(
        "<think>Rome, then.</think>\nLet me see.\n"
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get-news\n<arg_key>city</arg_key>\n"
        '<arg_value>Oslo "N"</arg_value>\n<arg_key>days</arg_key>\n<arg_value>null</arg_value>\n</tool_call>',
        reasoning="Rome, then.",
    ),
    "kimi_k2": ToolAnswer(
        "Let me see.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        f"{ROME}<|tool_call_end|><|tool_call_begin|>functions.get-news:1<|tool_call_argument_begin|>{OSLO}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    ),
    "harmony": ToolAnswer(
        "<|channel|>analysis<|message|>Rome, then.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see."
        f"<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ROME}"
        f"<|call|><|start|>assistant<|channel|>commentary to=functions.get-news <|constrain|>json<|message|>{OSLO}",
        reasoning="Rome, then.",
    ),
    "gemma4": ToolAnswer(
        "<|channel>thought\nRome, then.<channel|>Let me see."
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>'
        '<|tool_call>call:get-news{city:<|"|>Oslo "N"<|"|>,days:null}<tool_call|>',
        reasoning="Rome, then.",
    ),
    "functiongemma": ToolAnswer(
        "<start_function_call>call:get_weather{city:<escape>Rome<escape>,days:3}<end_function_call>"
        '<start_function_call>call:get-news{city:<escape>Oslo "N"<escape>,days:null}<end_function_call>',
        content=None,
    ),
}
