"""Texts of models that write arguments in a way of their own, of which JSON is made: Qwen 3 Coder, GLM, Gemma."""

from __future__ import annotations

from generated_texts import Generated

_PARIS = '{"city": "Paris"}'


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
        "a call that ends the thought",
        "qwen3_coder",
        "I use <function=...> or <tool_call>.\n" + _coder("now"),
        calls=(("now", "{}"),),
        reasoning="I use <function=...> or <tool_call>.",
        thinks="think",
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
