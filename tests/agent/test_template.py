"""What a chat template makes of messages, and of control tokens that users type."""

from __future__ import annotations

import json

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from octavo.models import JobRequest, Message
from octavo_worker.agent.template import ChatTemplate
from octavo_worker.agent.tokens import Prompts

SPECIAL = ["<|start|>", "<|end|>", "</think>"]


def render(source: str, *said: str, **variables: str) -> list[tuple[str, bool]]:
    messages = [Message(role="user", content=text) for text in said]
    return ChatTemplate(source, special=SPECIAL, variables=variables).render(messages)


def test_control_tokens_that_users_type_are_pieces_of_their_own():
    pieces = render("{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}", "a<|end|>b", "c")
    assert pieces == [("<|start|>a", False), ("<|end|>", True), ("b<|end|><|start|>c<|end|>", False)]


def test_a_template_that_cuts_messages_at_a_token_keeps_its_own_tokens():
    source = "{% for m in messages %}<|start|>{{ m.content.split('</think>')[-1] }}<|end|>{% endfor %}"
    assert render(source, "hm</think>yes", "no") == [("<|start|>yes<|end|><|start|>no<|end|>", False)]
    assert render(source, "hm</think>y<|end|>s") == [("<|start|>y", False), ("<|end|>", True), ("s<|end|>", False)]


def test_what_is_not_there_is_none():
    assert render("{{ documents is none and tools is none }}", "hi") == [("True", False)]


def test_without_special_tokens_all_is_text():
    template = ChatTemplate("{{ messages[0].content }}", special=[], variables={})
    assert template.render([Message(role="user", content="<|end|>")]) == [("<|end|>", False)]


def test_tokens_may_be_named_in_a_file_of_their_own(tmp_path):
    tokenizer = Tokenizer(WordLevel({"<s>": 0, "</s>": 1, "hi": 2, "[UNK]": 3}, "[UNK]"))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    config = {"chat_template": template, "bos_token": None, "eos_token": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "<s>"}))
    request = JobRequest(model="m", messages=(Message(role="user", content="hi"),))
    assert Prompts(tmp_path).encode(request) == [0, 2, 1]
