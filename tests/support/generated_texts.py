"""Texts as models generate them, and what a parser is to find in them: here of Hermes, Llama and Mistral."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.dialects.parsing import Parsed, Parser

SCHEMAS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"}},
    },
    "write_file": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "text": {"type": "string"},
            "mode": {"type": ["integer", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "owner": {"$ref": "#/$defs/Owner"},
        },
        "$defs": {"Owner": {"type": "object", "properties": {"name": {"type": "string"}}}},
    },
    "now": {"type": "object", "properties": {}},
}
"""The tools of every text."""


@dataclass(frozen=True)
class Generated:
    """A text of a family and what is in it. `calls` are pairs of name and arguments."""

    name: str
    tools: str
    text: str
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""
    thinks: str = "none"
    opened: bool = False

    def parser(self) -> Parser:
        """A new parser for this text."""
        return Parser(self.tools, self.thinks, job_id="g00_job", schemas=SCHEMAS, opened=self.opened)

    def parse(self, pieces: Iterable[str]) -> Parsed:
        return self.parser().parse(pieces)


def _hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


_PARIS = '{"city": "Paris"}'
_ROME = '{"city": "Rome", "days": 2}'
_NESTED = '{"path": "a/b.py", "owner": {"name": "x", "more": [{"y": [1, 2.50e3, {}]}]},   "mode":null}'
_TRICKY = '{"text": "} ]} \\"{[ \\\\", "path": "</tool_call> <tool_call>\\n[/INST] <think> ```"}'
_UNICODE = '{"city": "Zürich, 東京 🌧️", "days": 1}'
_WORLD = "Grüße, 世界 🎉!"

HERMES = [
    Generated("plain answer", "hermes", "  Hello there. \n", "  Hello there. \n"),
    Generated("one call", "hermes", _hermes("get_weather", _PARIS), calls=(("get_weather", _PARIS),)),
    Generated(
        "text before a call",
        "hermes",
        "Let me look.\n" + _hermes("get_weather", _PARIS),
        "Let me look.",
        calls=(("get_weather", _PARIS),),
    ),
    Generated(
        "two calls",
        "hermes",
        _hermes("get_weather", _PARIS) + "\n" + _hermes("get_weather", _ROME),
        calls=(("get_weather", _PARIS), ("get_weather", _ROME)),
    ),
    Generated(
        "text before and after a call",
        "hermes",
        "One.\n\n" + _hermes("now", "{}") + "\nTwo.",
        "One.\n\n\nTwo.",
        calls=(("now", "{}"),),
    ),
    Generated("nested", "hermes", _hermes("write_file", _NESTED), calls=(("write_file", _NESTED),)),
    Generated("tricky strings", "hermes", _hermes("write_file", _TRICKY), calls=(("write_file", _TRICKY),)),
    Generated("unicode", "hermes", _WORLD + _hermes("get_weather", _UNICODE), _WORLD, (("get_weather", _UNICODE),)),
    Generated(
        "arguments first",
        "hermes",
        f'<tool_call>\n{{"arguments": {_NESTED}, "name": "write_file"}}\n</tool_call>',
        calls=(("write_file", _NESTED),),
    ),
    Generated(
        "arguments as a string",
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Bonn\\"}"}</tool_call>',
        calls=(("get_weather", '{"city": "Bonn"}'),),
    ),
    Generated("no arguments", "hermes", '<tool_call>{"name": "now"}</tool_call>', calls=(("now", "{}"),)),
    Generated(
        "null for arguments",
        "hermes",
        '<tool_call>{"name": "now", "arguments": null}</tool_call>',
        calls=(("now", "{}"),),
    ),
    Generated(
        "an id as well",
        "hermes",
        f'<tool_call>{{"id": 7, "type": "function", "name": "get_weather", "arguments": {_PARIS}}}</tool_call>',
        calls=(("get_weather", _PARIS),),
    ),
    Generated(
        "no closing tag",
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}',
        calls=(("get_weather", _PARIS),),
    ),
    Generated(
        "two objects between the same tags",
        "hermes",
        f'<tool_call>\n{{"name": "now", "arguments": {{}}}}\n{{"name": "get_weather", "arguments": {_PARIS}}}\n'
        "</tool_call>",
        calls=(("now", "{}"), ("get_weather", _PARIS)),
    ),
    Generated(
        "mentioned markers",
        "hermes",
        "A call begins with <tool_call> and ends with </tool_call>. <tool_cal",
        "A call begins with <tool_call> and ends with </tool_call>. <tool_cal",
    ),
    Generated(
        "a mention before a call",
        "hermes",
        "<tool_call>s: <tool_call>" + _hermes("now", "{}"),
        "<tool_call>s: <tool_call>",
        (("now", "{}"),),
    ),
    Generated(
        "malformed before the arguments",
        "hermes",
        "<tool_call>\n{'name': 'now'}\n</tool_call> Sorry.",
        "<tool_call>\n{'name': 'now'}\n</tool_call> Sorry.",
    ),
    Generated(
        "an unknown key",
        "hermes",
        '<tool_call>{"tool": "now", "arguments": {}}</tool_call>',
        '<tool_call>{"tool": "now", "arguments": {}}</tool_call>',
    ),
    Generated(
        "malformed inside the arguments",
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"days": [1}}</tool_call> Sorry.',
        "}}</tool_call> Sorry.",
        (("get_weather", '{"days": [1'),),
    ),
    Generated(
        "malformed behind the arguments",
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}, oops}</tool_call>',
        ", oops}</tool_call>",
        (("get_weather", _PARIS),),
    ),
    Generated(
        "values that are no JSON",
        "hermes",
        _hermes("get_weather", "{'city': Paris, \"metric\": True}"),
        calls=(("get_weather", "{'city': Paris, \"metric\": True}"),),
    ),
    Generated(
        "cut in the name",
        "hermes",
        'Wait. <tool_call>\n{"name": "get_we',
        'Wait. <tool_call>\n{"name": "get_we',
    ),
    Generated(
        "cut in the arguments",
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par',
        calls=(("get_weather", '{"city": "Par'),),
    ),
    Generated(
        "thoughts and a call",
        "hermes",
        "<think>\nThe user wants\nweather.\n</think>\n\nOne moment.\n" + _hermes("get_weather", _PARIS),
        "One moment.",
        (("get_weather", _PARIS),),
        "The user wants\nweather.",
        "think",
    ),
    Generated(
        "thoughts that the template opened",
        "hermes",
        "Easy.\n</think>\n\nIt rains.",
        "It rains.",
        (),
        "Easy.",
        "think",
        opened=True,
    ),
    Generated(
        "thoughts opened twice",
        "hermes",
        "<think>\nEasy.\n</think>\n\nIt rains.",
        "It rains.",
        (),
        "Easy.",
        "think",
        opened=True,
    ),
    Generated("an empty thought", "hermes", "<think>\n\n</think>\n\nIt rains.", "It rains.", (), "", "think"),
    Generated(
        "a call that was only thought of",
        "hermes",
        f"<think>Call {_hermes('now', '{}')}?</think>No.",
        "No.",
        (),
        f"Call {_hermes('now', '{}')}?",
        "think",
    ),
    Generated("cut in a thought", "hermes", "<think>Let me th", "", (), "Let me th", "think"),
    Generated(
        "mentioned thoughts",
        "hermes",
        "The tag <think> opens and </think> closes.",
        "The tag <think> opens and </think> closes.",
        (),
        "",
        "think",
    ),
    Generated("thoughts without tools", "none", "<think>Hm.</think>Yes.\n", "Yes.\n", (), "Hm.", "think"),
    Generated("nothing to parse", "none", f"\n <tool_call> {_WORLD}\n", f"\n <tool_call> {_WORLD}\n"),
]

LLAMA = [
    Generated("plain answer", "llama3_json", "It is {nice}.", "It is {nice}."),
    Generated(
        "one call",
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        calls=(("get_weather", _PARIS),),
    ),
    Generated(
        "behind a tag",
        "llama3_json",
        '<|python_tag|>{"name": "write_file", "parameters": ' + _TRICKY + "}",
        calls=(("write_file", _TRICKY),),
    ),
    Generated(
        "text before the tag",
        "llama3_json",
        'I look.\n<|python_tag|>{"name": "now", "parameters": {}}',
        "I look.",
        (("now", "{}"),),
    ),
    Generated(
        "several",
        "llama3_json",
        '\n{"name": "get_weather", "parameters": ' + _UNICODE + '}; {"name": "now", "parameters": {}}\n'
        '{"name": "get_weather", "parameters": ' + _PARIS + "}",
        calls=(("get_weather", _UNICODE), ("now", "{}"), ("get_weather", _PARIS)),
    ),
    Generated(
        "a call then text",
        "llama3_json",
        '{"name": "now", "parameters": {}}; done',
        "; done",
        (("now", "{}"),),
    ),
    Generated(
        "the kind first",
        "llama3_json",
        '{"type": "function", "name": "get_weather", "parameters": ' + _NESTED + "}",
        calls=(("get_weather", _NESTED),),
    ),
    Generated(
        "the name as function",
        "llama3_json",
        '{"type": "function", "function": "now", "parameters": {}}',
        calls=(("now", "{}"),),
    ),
    Generated(
        "an answer in JSON",
        "llama3_json",
        '{"name": "Ada", "parameters": {"born": 1815}}',
        '{"name": "Ada", "parameters": {"born": 1815}}',
    ),
    Generated("another answer in JSON", "llama3_json", ' {"answer": [1, 2]}\n', ' {"answer": [1, 2]}\n'),
    Generated(
        "a built-in tool",
        "llama3_json",
        '<|python_tag|>brave_search.call(query="x")',
        '<|python_tag|>brave_search.call(query="x")',
    ),
    Generated("a mention", "llama3_json", "I use <|python_tag|> for code.", "I use <|python_tag|> for code."),
    Generated(
        "JSON behind text",
        "llama3_json",
        'Write {"name": "now", "parameters": {}}',
        'Write {"name": "now", "parameters": {}}',
    ),
    Generated(
        "malformed",
        "llama3_json",
        '{"name": "get_weather", "parameters": {"days": 1]}',
        "]}",
        (("get_weather", '{"days": 1'),),
    ),
    Generated("cut", "llama3_json", '{"name": "get_weather", "para', '{"name": "get_weather", "para'),
]

MISTRAL = [
    Generated("plain answer", "mistral", "[1] is a [TOOL] list", "[1] is a [TOOL] list"),
    Generated(
        "an array",
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        calls=(("get_weather", _PARIS),),
    ),
    Generated(
        "an array of two, with ids",
        "mistral",
        'Now.[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "aBc123XyZ"}, {"arguments": '
        + _TRICKY
        + ', "name": "write_file"}]',
        "Now.",
        (("now", "{}"), ("write_file", _TRICKY)),
    ),
    Generated(
        "one object",
        "mistral",
        '[TOOL_CALLS]{"name": "get_weather", "arguments": ' + _UNICODE + "}",
        calls=(("get_weather", _UNICODE),),
    ),
    Generated(
        "a name and arguments",
        "mistral_args",
        "[TOOL_CALLS]get_weather[ARGS]" + _NESTED,
        calls=(("get_weather", _NESTED),),
    ),
    Generated(
        "two names, one with an id",
        "mistral_args",
        "Well.\n[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]get_weather[CALL_ID]abcDEF123[ARGS] " + _PARIS + "\nDone.",
        "Well.\n\nDone.",
        (("now", "{}"), ("get_weather", _PARIS)),
    ),
    Generated(
        "a name without a marker",
        "mistral_args",
        "[TOOL_CALLS]now{}",
        calls=(("now", "{}"),),
    ),
    Generated(
        "thoughts",
        "mistral_args",
        "[THINK]Weather?[/THINK]Sure.[TOOL_CALLS]now[ARGS]{}",
        "Sure.",
        (("now", "{}"),),
        "Weather?",
        "mistral",
    ),
    Generated(
        "a call inside a thought",
        "mistral_args",
        "[THINK]Weather? [TOOL_CALLS]now[ARGS]{}",
        "",
        (("now", "{}"),),
        "Weather?",
        "mistral",
    ),
    Generated("a mention", "mistral", "[TOOL_CALLS] is a token.", "[TOOL_CALLS] is a token."),
    Generated(
        "malformed in the array",
        "mistral",
        '[TOOL_CALLS][{"name": "now", "arguments": {}}, oops]',
        ", oops]",
        (("now", "{}"),),
    ),
    Generated("malformed", "mistral", "[TOOL_CALLS][now()]", "[TOOL_CALLS][now()]"),
    Generated("cut", "mistral_args", "[TOOL_CALLS]get_wea", "[TOOL_CALLS]get_wea"),
]
