"""Chat templates: messages, and control tokens that users type."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from octavo.terms.conversation import Message
from octavo.terms.models import JobRequest
from octavo_worker.agent.prompts.template import ChatTemplate, TemplateFailed
from octavo_worker.agent.prompts.tokens import Prompts

NOW = datetime.now(UTC)
SPECIAL = ["<|start|>", "<|end|>", "</think>"]


def render(source: str, *said: str, **variables: str) -> list[tuple[str, bool]]:
    messages = [Message(role="user", content=text) for text in said]
    return ChatTemplate(source, special=SPECIAL, variables=variables).render(messages, at=NOW)


def test_control_tokens_that_users_type_are_pieces_of_their_own():
    pieces = render("{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}", "a<|end|>b", "c")
    assert pieces == [("<|start|>a", False), ("<|end|>", True), ("b<|end|><|start|>c<|end|>", False)]


def test_a_template_that_cuts_messages_at_a_token_keeps_its_own_tokens():
    source = "{% for m in messages %}<|start|>{{ m.content.split('</think>')[-1] }}<|end|>{% endfor %}"
    assert render(source, "hm</think>yes", "no") == [("<|start|>yes<|end|><|start|>no<|end|>", False)]
    assert render(source, "hm</think>y<|end|>s") == [("<|start|>y", False), ("<|end|>", True), ("s<|end|>", False)]


def test_what_is_not_there_is_none():
    assert render("{{ messages[0].content }} {{ documents is none and tools is none }}", "hi") == [("hi True", False)]


@pytest.mark.parametrize(
    "escape",
    [
        "{{ cycler.__init__.__globals__.os.system('exit 1') }}",
        "{{ raise_exception.__globals__['json'].dumps }}",
        "{{ (messages[0].content|attr('__class__')|attr('__mro__'))[1] }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '{x.__class__.__mro__}'.format_map({'x': 1}) }}",
        "{% include 'config.json' %}",
        "{% import 'harmful.py' as harmful %}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_does_not_leave_its_sandbox(escape: str):
    with pytest.raises(TemplateFailed, match=r"chat template (failed|does not compile)"):
        render(escape + "{{ messages[0].content }}", "hi")


def test_without_special_tokens_all_is_text():
    template = ChatTemplate("{{ messages[0].content }}", special=[], variables={})
    assert template.render([Message(role="user", content="<|end|>")], at=NOW) == [("<|end|>", False)]


def test_tokens_may_be_named_in_a_file_of_their_own(tmp_path):
    tokenizer = Tokenizer(WordLevel({"<s>": 0, "</s>": 1, "hi": 2, "[UNK]": 3}, "[UNK]"))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    config = {"chat_template": template, "bos_token": None, "eos_token": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "<s>"}))
    request = JobRequest(model="m", messages=(Message(role="user", content="hi"),))
    assert Prompts(tmp_path).encode(request).ids == [0, 2, 1]


STRINGS = {
    "plain": "{% for m in messages %}<{{ m.role }}>{{ m['content'] }}{% endfor %}",
    "trimmed": "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}",
    "either": "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }},{% endfor %}{% endif %}{% endfor %}",
    "strict": "{% for m in messages %}{% if m.content is not string %}{{ raise_exception('text only') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}",
}
PARTS = {
    "loop": "{% for m in messages %}<{{ m.role }}>{% for part in m['content'] %}{% if part['type'] == 'text' %}"
    "{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}",
    "filtered": "{% for m in messages %}<{{ m.role }}>"
    "{% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %}{% endfor %}",
    "first": "{% for m in messages %}<{{ m.role }}>{{ m.content[0].text }}{% endfor %}",
    "assigned": "{% for m in messages %}<{{ m.role }}>{% set content = m.content %}"
    "{% for part in content %}{{ part.get('text') }}{% endfor %}{% endfor %}",
    "macro": "{% macro said(parts) %}{% for part in parts %}{{ part.text }}{% endfor %}{% endmacro %}"
    "{% for m in messages %}<{{ m.role }}>{{ said(m.content) }}{% endfor %}",
}


@pytest.mark.parametrize("source", [*STRINGS.values(), *PARTS.values()], ids=[*STRINGS, *PARTS])
@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool", "developer"])
def test_every_message_is_in_the_prompt_whatever_form_the_template_takes(source, role):
    messages = [Message(role=role, content="one <|end|>"), Message(role="user", content="two")]
    pieces = ChatTemplate(source, special=SPECIAL, variables={}).render(messages, at=NOW)
    assert pieces == [(f"<{role}>one ", False), ("<|end|>", True), ("<user>two", False)]


def test_a_template_may_take_parts_of_users_and_strings_of_the_system():
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content.strip() }}:{% else %}"
        "{% for part in m.content %}{{ part.text }};{% endfor %}{% endif %}{% endfor %}"
    )
    messages = [Message(role=role, content=role) for role in ("system", "user", "assistant", "user")]
    text = ChatTemplate(source, special=[], variables={}).render(messages, at=NOW)
    assert text == [("system:user;assistant;user;", False)]


def test_a_template_that_insists_on_turns_is_tried_with_them():
    source = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}"
        "{% endif %}{% for part in m.content %}{{ part.text }};{% endfor %}{% endfor %}"
    )
    messages = [Message(role=role, content=role) for role in ("user", "assistant", "user")]
    assert ChatTemplate(source, special=[], variables={}).render(messages, at=NOW) == [("user;assistant;user;", False)]
