"""The text of calls as data, for a grammar that makes a model write one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaggedArguments:
    """Arguments as a list of `before_key` KEY `before_value` VALUE `after_value`. Strings stand as they are, other
    values as JSON."""

    before_key: str
    before_value: str
    after_value: str


@dataclass(frozen=True)
class BareArguments:
    """Arguments as an object with bare keys, whose strings stand between two `quote`, without escapes."""

    quote: str


@dataclass(frozen=True)
class CallSyntax:
    """Syntax of a model's tool calls:

    `begin`, then calls with `separator` between them, then `end`; a call is `before_name` NAME `before_arguments`
    ARGUMENTS `after_arguments`. `{index}` in it stands for the number of the call, counted from 0. Arguments are a JSON
    object unless `arguments` says otherwise. `trigger` begins calls and nothing else: text is free until it comes.
    """

    trigger: str
    before_name: str
    before_arguments: str
    after_arguments: str
    begin: str = ""
    separator: str = ""
    end: str = ""
    arguments: TaggedArguments | BareArguments | None = None
