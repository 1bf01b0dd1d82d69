"""The last message of an assistant is continued: the prompt ends inside of it, and the rest is read from there."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from agent_desk import agent_desk, ready
from chat_templates import FAMILIES, HERMES
from pydantic import ValidationError
from waiting import until

from octavo.dialects.parsing import NONE, TOOL_FORMATS, Parser, continued_formats
from octavo.queue import wire
from octavo.terms.conversation import Message
from octavo.terms.models import JobRequest
from octavo_worker.agent.prompts.template import ChatTemplate, TemplateFailed
from octavo_worker.agent.prompts.tokens import Prompts
from octavo_worker.contract.messages import AddRequest

NOW = datetime.now(UTC)
TOOL = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
ASKED = {"role": "user", "content": "Say it."}


def asked(begun: str, **fields: object) -> JobRequest:
    messages = [ASKED, {"role": "assistant", "content": begun}]
    return JobRequest(model="m", messages=messages, continue_final_message=True, **fields)


def rendered(source: str, begun: str, *, special: tuple[str, ...] = ("<|end|>",)) -> list[tuple[str, bool]]:
    turns = [Message(role="user", content="hi"), Message(role="assistant", content=begun)]
    return ChatTemplate(source, special=special, variables={}).render(turns, at=NOW, continued=True)


@pytest.fixture(scope="module")
def prompts_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prompts]:
    folder = tmp_path_factory.mktemp("models")
    return {name: Prompts(family.write(folder / name)) for name, family in FAMILIES.items()}


@pytest.mark.parametrize("tools", [(), (TOOL,)], ids=["plain", "tools"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_prompt_ends_with_what_was_begun_as_the_whole_turn_would_have_it(
    name: str, tools: tuple[object, ...], prompts_of: dict[str, Prompts]
) -> None:
    prompts = prompts_of[name]
    begun = "The answer is"
    whole = JobRequest(
        model="m", messages=[ASKED, {"role": "assistant", "content": f"{begun} 42."}, ASKED], tools=tools
    )
    prompt = prompts.decode(prompts.encode(asked(begun, tools=tools)).ids)
    assert prompt.endswith(begun)
    assert prompts.decode(prompts.encode(whole).ids).startswith(f"{prompt} 42.")


@pytest.mark.parametrize("begun", ["a  ", "a\n", "", " a", "{"])
@pytest.mark.parametrize(
    "shown",
    ["m.content", "m['content'] | trim", "(m.content | trim) + '\n'", "m.content.split('</think>')[-1].strip()"],
)
def test_what_a_template_trims_stays_where_it_is_continued(shown: str, begun: str) -> None:
    source = f"{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ {shown} }}}}<|end|>{{% endfor %}}"
    text = "".join(text for text, _ in rendered(source, begun))
    assert text.endswith("<assistant>" + (begun if shown == "m.content" else begun.lstrip()))


def test_the_forms_of_content_that_templates_take() -> None:
    parts = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}"
    assert rendered(parts, "so far") == [("<user>hi;<assistant>so far", False)]
    as_json = "{% for m in messages %}{{ m | tojson(ensure_ascii=true) }}{% endfor %}"
    assert "".join(text for text, _ in rendered(as_json, "so far")).endswith('"content": "so far')
    twice = "{% for m in messages %}{{ m.content }}|{{ m.content }}{% endfor %}"
    assert rendered(twice, "so") == [("hi|hiso|so", False)]
    begins = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    assert rendered(begins, "so") == [("hiso", False)]
    asks = "{{ 'new ' if add_generation_prompt else 'on ' }}{% for m in messages %}{{ m.content }}{% endfor %}"
    assert rendered(asks, "so") == [("on hiso", False)]


def test_a_template_that_leaves_the_last_message_out_says_so(tmp_path: Path) -> None:
    with pytest.raises(TemplateFailed, match="cannot be continued"):
        rendered("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "so far")


def test_control_tokens_that_were_begun_with_are_text() -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|end|>{% endfor %}"
    assert rendered(source, "a<|end|>") == [("<user>hi<|end|><assistant>a", False), ("<|end|>", True)]
    assert rendered(source, "a\ue000\ue001\ue002") == [("<user>hi<|end|><assistant>a\ue000\ue001\ue002", False)]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "harmony"])
def test_behind_content_no_call_or_thought_is_read_that_would_have_to_come_first(
    name: str, prompts_of: dict[str, Prompts]
) -> None:
    form = prompts_of[name].encode(asked("So: ", tools=[TOOL], parsed=True)).form.format
    rest = '{"name": "weather", "parameters": {"city": "Rome"}}'
    thought = "<think>no thought</think>"
    for text in (f" {rest} ", f" {thought} "):
        if form is None:
            continue
        parsed = Parser(form.tools, form.reasoning, opened=form.opened).parse([text])
        assert (parsed.content, parsed.reasoning, parsed.calls) == (text, "", ())


def test_a_call_behind_what_was_begun_is_a_call(prompts_of: dict[str, Prompts]) -> None:
    form = prompts_of["hermes"].encode(asked("I look it up.", tools=[TOOL])).form.format
    assert form is not None
    text = '\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    (call,) = Parser(form.tools, form.reasoning, opened=form.opened).parse([text]).calls
    assert (call.name, call.arguments) == ("weather", '{"city": "Rome"}')


def test_a_thought_that_was_begun_goes_on(prompts_of: dict[str, Prompts]) -> None:
    form = prompts_of["hermes"].encode(asked("<think>\nWell, ", parsed=True)).form.format
    assert form is not None
    assert form.opened
    parsed = Parser(form.tools, form.reasoning, opened=form.opened).parse(["yes.</think>So."])
    assert (parsed.reasoning, parsed.content) == ("yes.", "So.")
    ended = prompts_of["hermes"].encode(asked("<think>\nWell.</think>\nSo", parsed=True)).form.format
    assert ended is None
    assert continued_formats("harmony", "harmony", "<|channel|>analysis<|message|>Well") == (
        "harmony",
        "harmony",
        False,
    )


def test_formats_that_call_only_at_the_beginning_call_no_more() -> None:
    leading = [name for name, form in TOOL_FORMATS.items() if form.leading]
    assert leading
    assert {continued_formats(name, NONE, "x")[0] for name in leading} == {NONE}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": [ASKED]}, "assistant"),
        ({"messages": None, "prompt": "a"}, "assistant"),
        ({"grammar": {"kind": "json_object"}}, "grammar"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{**TOOL, "strict": True}]}, "strict tools"),
        (
            {"messages": [ASKED, {"role": "assistant", "content": "a", "tool_calls": [{"name": "f", "id": "1"}]}]},
            "tool_calls",
        ),
        ({"messages": [ASKED, {"role": "assistant", "content": "", "reasoning_content": "hm"}]}, "thoughts"),
    ],
)
def test_what_does_not_go_together_is_named(fields: dict[str, object], named: str) -> None:
    given = {"model": "m", "messages": [ASKED, {"role": "assistant", "content": "a"}], "continue_final_message": True}
    JobRequest.model_validate(given)
    with pytest.raises(ValidationError, match=f"(?s)continue_final_message.*{named}"):
        JobRequest.model_validate({**given, **fields})


def test_it_survives_the_wire_and_costs_others_nothing_there() -> None:
    request = asked("a")
    assert wire.decode_request(wire.encode_request(request)) == request
    assert b"continue" not in wire.encode_request(request.model_copy(update={"continue_final_message": False}))


async def test_each_attempt_continues_the_same(redis_url: str, tmp_path: Path) -> None:
    prompts = Prompts(HERMES.write(tmp_path / "m"))
    requests, job_id = [], ""
    for number in range(2):
        async with agent_desk(redis_url, prompts=prompts, attached=False) as desk:
            desk.agent.attach(desk.engine, ready(vocab_size=5000))
            if number == 0:
                given = asked("<think>Well", parsed=True).model_dump(exclude_defaults=True, exclude={"model"})
                job_id = desk.queue.submit(None, **given)
            desk.agent.take(desk.claim())
            await until(lambda desk=desk: desk.engine.of(AddRequest))
            (request,) = desk.engine.of(AddRequest)
            requests.append(request)
            if number == 0:
                desk.generate(request, 5, 6)
                await until(lambda desk=desk, job_id=job_id: desk.queue.stored(job_id) == 2)
                await desk.agent.release()
    assert list(requests[0].prompt) == list(requests[1].prompt)
    assert prompts.decode(requests[1].prompt).endswith("<think>Well")
    assert list(requests[1].sequences[0].tokens) == [5, 6]
