"""Texts of models whose calls stand between control tokens: DeepSeek, Kimi, gpt-oss."""

from __future__ import annotations

from generated_texts import Generated

_PARIS = '{"city": "Paris"}'
_TRICKY = '{"text": "} ]} \\"{[ \\\\", "path": "<｜tool▁call▁end｜> <|tool_call_end|> <|call|>\\n```"}'
_UNICODE = '{"city": "Zürich, 東京 🌧️", "days": 1}'


def _deepseek(*calls: str) -> str:
    whole = "\n".join(f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>" for call in calls)
    return f"<｜tool▁calls▁begin｜>{whole}<｜tool▁calls▁end｜>"


def _fenced(name: str, arguments: str) -> str:
    return f"function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"


DEEPSEEK = [
    Generated("plain answer", "deepseek_v3", "a <｜b｜> c <", "a <｜b｜> c <"),
    Generated(
        "one call",
        "deepseek_v3",
        "Moment.\n" + _deepseek(_fenced("get_weather", _PARIS)),
        "Moment.",
        (("get_weather", _PARIS),),
    ),
    Generated(
        "two calls and text",
        "deepseek_v3",
        _deepseek(_fenced("write_file", _TRICKY), _fenced("get_weather", _UNICODE)) + "\nDone.",
        "Done.",
        (("write_file", _TRICKY), ("get_weather", _UNICODE)),
    ),
    Generated(
        "thoughts that the template opened",
        "deepseek_v3",
        "Rain?\n</think>\n\n" + _deepseek(_fenced("get_weather", _PARIS)),
        "",
        (("get_weather", _PARIS),),
        "Rain?",
        "think",
        opened=True,
    ),
    Generated(
        "bare",
        "deepseek_v3_1",
        _deepseek("get_weather<｜tool▁sep｜>" + _PARIS, "now<｜tool▁sep｜>{}"),
        calls=(("get_weather", _PARIS), ("now", "{}")),
    ),
    Generated(
        "a tool called function",
        "deepseek_v3_1",
        _deepseek("function<｜tool▁sep｜>{}"),
        calls=(("function", "{}"),),
    ),
    Generated(
        "a call that ends the thought",
        "deepseek_v3_1",
        "<think>Hm. " + _deepseek("now<｜tool▁sep｜>{}"),
        "",
        (("now", "{}"),),
        "Hm.",
        "think",
    ),
    Generated(
        "no section",
        "deepseek_v3_1",
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        calls=(("now", "{}"),),
    ),
    Generated(
        "no arguments",
        "deepseek_v3_1",
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜><｜tool▁call▁end｜>",
        calls=(("now", "{}"),),
    ),
    Generated(
        "mentioned",
        "deepseek_v3",
        "See <｜tool▁calls▁begin｜> and <｜tool▁call▁begin｜>x, <｜tool▁sep｜>.",
        "See <｜tool▁calls▁begin｜> and <｜tool▁call▁begin｜>x, <｜tool▁sep｜>.",
    ),
    Generated(
        "malformed",
        "deepseek_v3_1",
        _deepseek("now<｜tool▁sep｜>{]}"),
        "]}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        (("now", "{"),),
    ),
    Generated(
        "cut in the second call",
        "deepseek_v3_1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_wea",
        "<｜tool▁call▁begin｜>get_wea",
        (("now", "{}"),),
    ),
]


def _kimi(*calls: tuple[str, str]) -> str:
    whole = "".join(
        f"<|tool_call_begin|>{name}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        for name, arguments in calls
    )
    return f"<|tool_calls_section_begin|>{whole}<|tool_calls_section_end|>"


KIMI = [
    Generated("plain answer", "kimi_k2", "<|tool|> is nothing", "<|tool|> is nothing"),
    Generated(
        "two calls",
        "kimi_k2",
        "Sure.\n" + _kimi(("functions.get_weather:0", _PARIS), ("functions.write_file:1", _TRICKY)),
        "Sure.",
        (("get_weather", _PARIS), ("write_file", _TRICKY)),
    ),
    Generated(
        "white space between the parts",
        "kimi_k2",
        "<|tool_calls_section_begin|> <|tool_call_begin|> functions.now:0 <|tool_call_argument_begin|> {} "
        "<|tool_call_end|> <|tool_calls_section_end|> Done.",
        "Done.",
        (("now", "{}"),),
    ),
    Generated("a bare name", "kimi_k2", _kimi(("get_weather", _UNICODE)), calls=(("get_weather", _UNICODE),)),
    Generated(
        "thoughts",
        "kimi_k2",
        "<think>Rain?</think>I look." + _kimi(("functions.now:0", "{}")),
        "I look.",
        (("now", "{}"),),
        "Rain?",
        "think",
    ),
    Generated(
        "a call that ends the thought",
        "kimi_k2",
        "Rain? " + _kimi(("functions.now:0", "{}")),
        "",
        (("now", "{}"),),
        "Rain?",
        "think",
        opened=True,
    ),
    Generated(
        "mentioned in a thought",
        "kimi_k2",
        "<think>Not <|tool_call_begin|> now</think>No.",
        "No.",
        (),
        "Not <|tool_call_begin|> now",
        "think",
    ),
    Generated(
        "malformed",
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>{}<|tool_calls_section_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>{}<|tool_calls_section_end|>",
    ),
    Generated(
        "cut",
        "kimi_k2",
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{"a',
        calls=(("now", '{"a'),),
    ),
]

_FINAL = "<|channel|>final<|message|>"
_TO = "<|channel|>commentary to=functions."
_JSON = " <|constrain|>json<|message|>"

HARMONY = [
    Generated("no header", "harmony", "  Hi. ", "  Hi. ", thinks="harmony"),
    Generated("an answer", "harmony", f"{_FINAL}Grüße 🎉<|return|>", "Grüße 🎉", thinks="harmony"),
    Generated(
        "thoughts and an answer",
        "harmony",
        f"<|channel|>analysis<|message|>Rain? \n<|end|><|start|>assistant{_FINAL}It\nrains.",
        "It\nrains.",
        (),
        "Rain?",
        "harmony",
    ),
    Generated(
        "thoughts and a call",
        "harmony",
        f"<|channel|>analysis<|message|>Rain?<|end|><|start|>assistant{_TO}write_file{_JSON}{_TRICKY}<|call|>",
        "",
        (("write_file", _TRICKY),),
        "Rain?",
        "harmony",
    ),
    Generated(
        "two calls, a preamble between",
        "harmony",
        f"{_TO}now{_JSON}{{}}<|call|><|start|>assistant<|channel|>commentary<|message|>And Paris.<|end|>"
        f"<|start|>assistant{_TO}get_weather{_JSON}{_PARIS}<|call|>",
        "And Paris.",
        (("now", "{}"), ("get_weather", _PARIS)),
        "",
        "harmony",
    ),
    Generated(
        "two thoughts, two contents",
        "harmony",
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>"
        f"<|start|>assistant<|channel|>analysis<|message|>Two.<|end|><|start|>assistant{_FINAL}Here.<|return|>",
        "Wait.\nHere.",
        (),
        "One.\nTwo.",
        "harmony",
    ),
    Generated(
        "the recipient before the channel",
        "harmony",
        f" to=functions.get_weather<|channel|>commentary json<|message|>{_UNICODE}<|call|>",
        "",
        (("get_weather", _UNICODE),),
        "",
        "harmony",
    ),
    Generated(
        "the same in a later message",
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.now<|channel|>commentary"
        "<|constrain|>json<|message|>{}<|call|>",
        "",
        (("now", "{}"),),
        "Hm.",
        "harmony",
    ),
    Generated(
        "a call on the analysis channel",
        "harmony",
        f"<|channel|>analysis to=functions.get_weather code<|message|>{_PARIS}<|call|>",
        "",
        (("get_weather", _PARIS),),
        "",
        "harmony",
    ),
    Generated(
        "a tool of its own",
        "harmony",
        "<|channel|>analysis to=python code<|message|>print(1 < 2)<|call|>",
        "",
        (("python", "print(1 < 2)"),),
        "",
        "harmony",
    ),
    Generated(
        "no end of the thoughts",
        "harmony",
        f"<|channel|>analysis<|message|>Hm.<|start|>assistant{_FINAL}Yes.",
        "Yes.",
        (),
        "Hm.",
        "harmony",
    ),
    Generated(
        "no role",
        "harmony",
        f"<|channel|>analysis<|message|>Hm.<|end|>{_FINAL}Yes.<|return|>",
        "Yes.",
        (),
        "Hm.",
        "harmony",
    ),
    Generated(
        "other words in a header",
        "harmony",
        f"<|channel|>commentary 2?<|message|>Wait.<|end|><|start|>assistant<|channel|>--analysis<|message|>Hm.<|end|>"
        f"<|start|>assistant{_FINAL}Yes.",
        "Wait.\nYes.",
        (),
        "Hm.",
        "harmony",
    ),
    Generated(
        "a recipient that is no tool, and a second channel",
        "harmony",
        "<|channel|>commentary to=assistant<|channel|>commentary<|message|>Wait.",
        "Wait.",
        thinks="harmony",
    ),
    Generated(
        "the type right behind the name",
        "harmony",
        f" to=functions.nowjson<|message|>{{}}<|call|><|start|>assistant{_TO}other_json{_JSON}{{}}",
        calls=(("now", "{}"), ("other_json", "{}")),
        thinks="harmony",
    ),
    Generated(
        "an answer in JSON",
        "harmony",
        '<|channel|>final <|constrain|>json<|message|>{"a": 1}<|return|>',
        '{"a": 1}',
        (),
        "",
        "harmony",
    ),
    Generated(
        "mentioned",
        "harmony",
        f"{_FINAL}<|channel|> names a channel, <|end|> ends a <|message|>, <|start|>s.",
        "<|channel|> names a channel, <|end|> ends a <|message|>, <|start|>s.",
        (),
        "",
        "harmony",
    ),
    Generated(
        "malformed",
        "harmony",
        f"{_TO}get_weather{_JSON}{{]<|call|>",
        "]",
        (("get_weather", "{"),),
        "",
        "harmony",
    ),
    Generated(
        "cut in the header", "harmony", f"{_TO}get_weather <|cons", f"{_TO}get_weather <|cons", (), "", "harmony"
    ),
    Generated(
        "cut in the arguments",
        "harmony",
        f'{_TO}get_weather{_JSON}{{"city": "P',
        "",
        (("get_weather", '{"city": "P'),),
        "",
        "harmony",
    ),
]
