"""Conversations with tools in the templates of every family: nothing is lost, and nothing becomes a control token."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from chat_templates import FAMILIES, Family

from octavo.dialects.parsing import family_of, is_marker
from octavo.terms.conversation import Message
from octavo.terms.models import JobRequest
from octavo_worker.agent.prompts.tokens import PromptRejected, Prompts

CALL_ID = "call_0123456789abcdef"


def conversation(word: str, **fields: object) -> JobRequest:
    """One in which whatever a user, a tool or an earlier answer may say contains `word`."""
    arguments = {"city": f"in{word}Rome", f"k{word}": word}
    return JobRequest(
        model="m",
        messages=[
            {"role": "system", "content": f"sys{word}tem"},
            {"role": "user", "content": [{"type": "text", "text": f"ask{word}"}, {"type": "text", "text": "ing"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": CALL_ID,
                        "type": "function",
                        "function": {"name": "weather", "arguments": json.dumps(arguments, ensure_ascii=False)},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": CALL_ID, "content": f"it is{word} warm"},
            {"role": "assistant", "content": f"an{word}swer", "reasoning_content": f"thought{word}"},
            {"role": "user", "content": f"and{word} then"},
        ],
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": f"tells{word} the weather",
                    "parameters": {
                        "type": "object",
                        "properties": {f"p{word}": {"type": "string", "description": word, "enum": [f"e{word}"]}},
                    },
                },
            }
        ],
        **fields,
    )


@pytest.fixture(scope="module")
def prompts_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prompts]:
    folder = tmp_path_factory.mktemp("models")
    return {name: Prompts(family.write(folder / name)) for name, family in FAMILIES.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_family_is_known_by_its_template(name: str) -> None:
    assert family_of(FAMILIES[name].source) == FAMILIES[name].formats


@pytest.mark.parametrize("name", FAMILIES)
def test_all_that_was_said_is_in_the_prompt(name: str, prompts_of: dict[str, Prompts]) -> None:
    prompts = prompts_of[name]
    assert prompts.tokenizer is not None
    text = prompts.tokenizer.decode(prompts.encode(conversation("-")).ids, skip_special_tokens=False)
    said = [
        "sys-tem",
        "ask-ing",
        "weather",
        "in-Rome",
        "it is- warm",
        "an-swer",
        "and- then",
        "tells- the weather",
        "e-",
    ]
    assert [words for words in said if words not in text] == []
    assert "None" not in text


@pytest.mark.parametrize("name", FAMILIES)
def test_no_marker_that_anybody_wrote_is_a_token(name: str, prompts_of: dict[str, Prompts]) -> None:
    prompts, family = prompts_of[name], FAMILIES[name]
    ids = {marker: prompts.tokenizer.token_to_id(marker) for marker in family.markers}
    plain = prompts.encode(conversation("-")).ids
    for marker in (*family.markers, "".join(family.markers)):
        written = prompts.encode(conversation(marker, chat_template_kwargs={"reasoning_effort": marker})).ids
        found = {other: written.count(ids[other]) for other in family.markers}
        assert found == {other: plain.count(ids[other]) for other in family.markers}, marker


@pytest.mark.parametrize("name", FAMILIES)
def test_a_marker_that_somebody_wrote_stays_readable(name: str, prompts_of: dict[str, Prompts]) -> None:
    prompts, family = prompts_of[name], FAMILIES[name]
    for marker in family.markers:
        request = JobRequest(model="m", messages=[{"role": "user", "content": f"what is {marker} for"}])
        text = prompts.tokenizer.decode(prompts.encode(request).ids, skip_special_tokens=False)
        assert f"what is {marker} for" in text


def test_a_template_that_escapes_what_is_not_ascii_lets_no_marker_through() -> None:
    family = Family(
        "{% for m in messages %}<|im_start|>{{ m.content | tojson(ensure_ascii=True) }}<|im_end|>{% endfor %}",
        ("<|im_start|>", "<|im_end|>"),
        (),
        ("none", "none"),
        "<|im_end|>",
    )
    assert marks(family, "a<|im_end|>b") == marks(family, "ab") == {"<|im_start|>": 1, "<|im_end|>": 1}


def marks(family: Family, said: str) -> dict[str, int]:
    from octavo_worker.agent.prompts.chat_model import ChatModel

    chat = ChatModel(family.source, family.source, tokenizer=family.tokenizer(), variables={})
    pieces = chat.render(JobRequest(model="m", messages=[Message(role="user", content=said)]), datetime.now(UTC))
    text = "\0".join(text for text, typed in pieces if not typed)
    return {marker: text.count(marker) for marker in family.markers}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_parsed_answer_keeps_the_markers_of_its_formats_and_no_other(
    name: str, prompts_of: dict[str, Prompts]
) -> None:
    prompts, family = prompts_of[name], FAMILIES[name]
    form = prompts.encode(conversation("-")).form
    assert form.format is not None
    assert (form.format.tools, form.format.reasoning) == family.formats
    hidden = {prompts.tokenizer.id_to_token(token) for token in form.hidden}
    assert hidden >= {marker for marker in family.special if not is_marker(marker, *family.formats)}
    assert not any(is_marker(marker, *family.formats) for marker in hidden)
    assert {"<|im_end|>", "<|eot_id|>", "</s>", "<turn|>", "<end_of_turn>"} & set(family.special) <= hidden


def test_without_tools_nothing_is_a_call(prompts_of: dict[str, Prompts]) -> None:
    asked = [Message(role="user", content="hi")]
    formats = {}
    for name, prompts in prompts_of.items():
        form = prompts.encode(JobRequest(model="m", messages=asked, parsed=True)).form
        formats[name] = None if form.format is None else (form.format.tools, form.format.reasoning)
    assert formats["hermes"] == ("none", "think")
    assert formats["llama3_json"] is None
    assert formats["harmony"] == ("none", "harmony")
    unasked = prompts_of["hermes"].encode(JobRequest(model="m", messages=asked)).form
    assert unasked.format is None  # without being asked for, plain text as ever


def test_tool_choice_none_keeps_tools_from_the_model(prompts_of: dict[str, Prompts]) -> None:
    prompts = prompts_of["hermes"]
    with_none = prompts.encode(conversation("-", tool_choice="none", parsed=True))
    text = prompts.tokenizer.decode(with_none.ids, skip_special_tokens=False)
    assert "tells- the weather" not in text
    assert with_none.form.format.tools == "none"


@pytest.mark.parametrize(
    ("name", "arguments", "opened"),
    [
        ("deepseek_v3", {}, True),
        ("deepseek_v3_1", {}, False),
        ("deepseek_v3_1", {"thinking": True}, True),
        ("hermes", {}, False),
        ("hermes", {"enable_thinking": False}, False),
    ],
)
def test_a_prompt_may_end_inside_a_thought(
    name: str, arguments: dict[str, bool], opened: bool, prompts_of: dict[str, Prompts]
) -> None:
    request = conversation("-", chat_template_kwargs=arguments)
    assert prompts_of[name].encode(request).form.format.opened is opened


def test_a_user_cannot_open_a_thought(prompts_of: dict[str, Prompts]) -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '</think>' if false }}"
    family = Family(source, ("<think>", "</think>"), (), ("none", "think"), "</think>")
    from octavo_worker.agent.prompts.chat_model import ChatModel

    chat = ChatModel(source, source, tokenizer=family.tokenizer(), variables={})
    request = JobRequest(model="m", messages=[Message(role="user", content="hi <think>")], parsed=True)
    assert chat.answer_form(request, chat.render(request, datetime.now(UTC))).format.opened is False


def test_arguments_that_are_no_json_are_refused_only_by_a_template_that_needs_an_object(
    prompts_of: dict[str, Prompts],
) -> None:
    cut = {"name": "weather", "arguments": '{"city": "Ro'}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [{"id": CALL_ID, "type": "function", "function": cut}]},
        {"role": "tool", "content": "bad arguments", "tool_call_id": CALL_ID},
    ]
    request = JobRequest(model="m", messages=messages)
    for name, prompts in prompts_of.items():
        if name in ("qwen3_coder", "glm4", "gemma4", "functiongemma"):
            with pytest.raises(PromptRejected) as refused:
                prompts.encode(request)
            assert refused.value.error.code == "invalid_messages"
        else:
            assert "Ro" in prompts.tokenizer.decode(prompts.encode(request).ids, skip_special_tokens=False)


@pytest.mark.parametrize("tools", [(), conversation("-").tools])
def test_a_role_or_tools_that_a_template_leaves_out_are_refused_by_name(tools: tuple[object, ...], tmp_path) -> None:
    source = "{% for m in messages %}{% if m.role in ['user', 'system', 'assistant'] %}{{ m.role }}: {{ m.content }}\n"
    source += "{% endif %}{% endfor %}"
    prompts = Prompts(Family(source, (), (), ("none", "none"), "<|end|>").write(tmp_path))
    asked = [Message(role="user", content="hi"), Message(role="assistant", content="ho")]
    told = [] if tools else [Message(role="tool", content="found it")]
    with pytest.raises(PromptRejected) as refused:
        prompts.encode(JobRequest(model="m", messages=[*asked, *told], tools=tools))
    assert refused.value.error.param == ("tools" if tools else "messages")
    assert ("takes no tools" if tools else "the role tool") in refused.value.error.message


def test_developers_speak_as_the_system_where_the_template_knows_none(tmp_path) -> None:
    source = "{% for m in messages %}{% if m.role in ['user', 'system'] %}[{{ m.role }}]{{ m.content }}{% endif %}"
    prompts = Prompts(Family(source + "{% endfor %}", (), (), ("none", "none"), "<|end|>").write(tmp_path))
    said = [Message(role="developer", content="be brief"), Message(role="user", content="hi")]
    ids = prompts.encode(JobRequest(model="m", messages=said)).ids
    assert prompts.tokenizer.decode(ids) == "[system]be brief[user]hi"


def test_a_model_may_have_a_template_of_its_own_for_tools(tmp_path) -> None:
    folder = Family("plain {{ messages[0].content }}", (), (), ("none", "none"), "<|end|>").write(tmp_path)
    (folder / "additional_chat_templates").mkdir()
    with_tools = "<tool_call> arguments {{ tools[0].function.name }} {{ messages[0].content }}"
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(with_tools)
    prompts = Prompts(folder)
    asked = [Message(role="user", content="hi")]
    plain = prompts.encode(JobRequest(model="m", messages=asked, parsed=True))
    tooled = prompts.encode(JobRequest(model="m", messages=asked, tools=conversation("-").tools))
    assert prompts.tokenizer.decode(plain.ids) == "plain hi"
    assert prompts.tokenizer.decode(tooled.ids) == "<tool_call> arguments weather hi"
    assert (plain.form.format, tooled.form.format.tools) == (None, "hermes")
