"""More texts of models, of the families whose markers are control tokens or tags."""

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


def _coder(name: str, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


_CODE = 'def f():\n\treturn "<a> & {b}"  # </parameter> or </function>\n'
_CODE_JSON = r'"def f():\n\treturn \"<a> & {b}\"  # </parameter> or </function>\n"'

QWEN_CODER = [
    Generated("plain answer", "qwen3_coder", "if a <b: <functions>", "if a <b: <functions>"),
    Generated(
        "typed values",
        "qwen3_coder",
        "Right.\n\n" + _coder("get_weather", city="Zürich 🌧️", days="3", metric="True"),
        "Right.",
        (("get_weather", '{"city": "Zürich 🌧️", "days": 3, "metric": true}'),),
    ),
    Generated(
        "a string that looks like a number",
        "qwen3_coder",
        _coder("get_weather", city="12"),
        calls=(("get_weather", '{"city": "12"}'),),
    ),
    Generated(
        "code with markers in it",
        "qwen3_coder",
        _coder("write_file", text=_CODE, path=" a.py"),
        calls=(("write_file", f'{{"text": {_CODE_JSON}, "path": " a.py"}}'),),
    ),
    Generated(
        "nested values",
        "qwen3_coder",
        _coder("write_file", tags='["a", "}"]', owner='{"name": {"x": []}}', mode="null", other="[1]", more="x"),
        calls=(
            (
                "write_file",
                '{"tags": ["a", "}"], "owner": {"name": {"x": []}}, "mode": null, "other": [1], "more": "x"}',
            ),
        ),
    ),
    Generated(
        "a value of another type",
        "qwen3_coder",
        _coder("get_weather", days="many"),
        calls=(("get_weather", '{"days": "many"}'),),
    ),
    Generated("no arguments", "qwen3_coder", _coder("now"), calls=(("now", "{}"),)),
    Generated(
        "two calls",
        "qwen3_coder",
        _coder("now") + "\n" + _coder("get_weather", days="1"),
        calls=(("now", "{}"), ("get_weather", '{"days": 1}')),
    ),
    Generated(
        "no opening tag",
        "qwen3_coder",
        "So:\n<function=now>\n</function>\n</tool_call>",
        "So:",
        (("now", "{}"),),
    ),
    Generated(
        "on one line",
        "qwen3_coder",
        "<tool_call><function=get_weather><parameter=city>Paris</parameter></function></tool_call>then",
        "then",
        (("get_weather", _PARIS),),
    ),
    Generated(
        "thoughts",
        "qwen3_coder",
        "Rain?\n</think>\n\n" + _coder("now"),
        "",
        (("now", "{}"),),
        "Rain?",
        "think",
        opened=True,
    ),
    Generated(
        "mentioned",
        "qwen3_coder",
        "<tool_call> and <function=name> are tags",
        "<tool_call> and <function=name> are tags",
    ),
    Generated(
        "malformed",
        "qwen3_coder",
        "<tool_call>\n<function=now>\n<parameter\n</function>",
        "<tool_call>\n<function=now>\n<parameter\n</function>",
    ),
    Generated(
        "malformed in the second value",
        "qwen3_coder",
        "<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>\n<parameter=b\n</function>",
        "<parameter=b\n</function>",
        (("now", '{"a": 1'),),
    ),
    Generated(
        "cut in a string",
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar\n</para",
        calls=(("get_weather", '{"city": "Par\\n</para'),),
    ),
    Generated(
        "cut in a number",
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=days>\n1",
        calls=(("get_weather", '{"days": 1'),),
    ),
]


def _glm(name: str, **values: str) -> str:
    pairs = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values.items())
    return f"<tool_call>{name}\n{pairs}</tool_call>"


GLM = [
    Generated("plain answer", "glm4", "a <tool> b", "a <tool> b"),
    Generated(
        "typed values",
        "glm4",
        "\nFine.\n" + _glm("get_weather", city="Bonn", days="2", metric="false"),
        "\nFine.",
        (("get_weather", '{"city": "Bonn", "days": 2, "metric": false}'),),
    ),
    Generated(
        "without line breaks",
        "glm4",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        calls=(("get_weather", _PARIS),),
    ),
    Generated(
        "markers in a value",
        "glm4",
        _glm("write_file", text='</arg_value> "x"\n<arg_key>'),
        calls=(("write_file", '{"text": "</arg_value> \\"x\\"\\n<arg_key>"}'),),
    ),
    Generated("no arguments", "glm4", "<tool_call>now\n</tool_call>\nDone.", "Done.", (("now", "{}"),)),
    Generated(
        "two calls",
        "glm4",
        _glm("now") + "\n" + _glm("unknown", a="[1]", b="b"),
        calls=(("now", "{}"), ("unknown", '{"a": [1], "b": "b"}')),
    ),
    Generated(
        "thoughts",
        "glm4",
        "\n<think>Rain?</think>\nI look.\n" + _glm("now"),
        "I look.",
        (("now", "{}"),),
        "Rain?",
        "think",
    ),
    Generated("mentioned", "glm4", "Use <tool_call>name here", "Use <tool_call>name here"),
    Generated("malformed", "glm4", "<tool_call>now()</tool_call>", "<tool_call>now()</tool_call>"),
    Generated(
        "cut",
        "glm4",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Par",
        calls=(("get_weather", '{"city": "Par'),),
    ),
]

GEMMA = [
    Generated("plain answer", "gemma4", "a <| b |> c", "a <| b |> c"),
    Generated(
        "bare keys",
        "gemma4",
        '<|tool_call>call:get_weather{city:<|"|>Zürich "東京"\n<|"|>,days:2}<tool_call|>',
        calls=(("get_weather", '{"city": "Zürich \\"東京\\"\\n", "days": 2}'),),
    ),
    Generated(
        "nested",
        "gemma4",
        'On it.<|tool_call>call:write_file{owner:{name:<|"|>} <tool_call|><|"|>,more:[{a:1.5},[],<|"|>x<|"|>,true]},'
        "mode:None}<tool_call|>",
        "On it.",
        (("write_file", '{"owner": {"name": "} <tool_call|>", "more": [{"a": 1.5}, [], "x", true]}, "mode": null}'),),
    ),
    Generated(
        "two calls",
        "gemma4",
        "<|tool_call>call:now{}<tool_call|><|tool_call>call:now{}<tool_call|>Done.",
        "Done.",
        (("now", "{}"), ("now", "{}")),
    ),
    Generated(
        "JSON",
        "gemma4",
        '<|tool_call>call:get_weather{"city": "Par\\"is", <|"|>days<|"|>: 1}<tool_call|>',
        calls=(("get_weather", '{"city": "Par\\"is", "days": 1}'),),
    ),
    Generated(
        "words without quotes",
        "gemma4",
        "<|tool_call>call:get_weather{city: New York,}<tool_call|>",
        calls=(("get_weather", '{"city": "New York"}'),),
    ),
    Generated(
        "thoughts",
        "gemma4",
        "<|channel>thought\nRain?\n<channel|>I look.<|tool_call>call:now{}<tool_call|>",
        "I look.",
        (("now", "{}"),),
        "Rain?",
        "gemma4",
    ),
    Generated(
        "the older markers",
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>",
        calls=(("get_weather", _PARIS),),
    ),
    Generated("mentioned", "gemma4", "<|tool_call>call: me", "<|tool_call>call: me"),
    Generated(
        "malformed",
        "gemma4",
        "<|tool_call>call:now{a:1,]}<tool_call|>",
        ",]}<tool_call|>",
        (("now", '{"a": 1'),),
    ),
    Generated(
        "cut",
        "gemma4",
        '<|tool_call>call:get_weather{city:<|"|>Par',
        calls=(("get_weather", '{"city": "Par'),),
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
