"""The Lua sources: every transition includes what it uses, and says what it takes and gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import octavo
from octavo.queue.scripts import script

LUA = Path(octavo.__file__).parent / "queue" / "lua"
TRANSITIONS = sorted(path.stem for path in LUA.glob("*.lua"))
DEFINITION = re.compile(r"^( *)local (?:function )?(\w+(?:, \w+)*)")
SHARED = {  # what the parts define for others
    name
    for path in LUA.glob("lib/*.lua")
    for line in path.read_text().splitlines()
    if (found := DEFINITION.match(line)) and not found[1]
    for name in found[2].split(", ")
}


def code_lines(source: str) -> list[str]:
    """Lines without comments and strings."""
    return [re.sub(r"--.*|'[^']*'", "", line) for line in source.splitlines()]


@pytest.mark.parametrize("name", TRANSITIONS)
def test_a_transition_defines_what_it_uses_before_it_uses_it(name: str) -> None:
    defined: dict[str, int] = {}  # by name: the depth at which it can be seen
    for line in code_lines(script(name).source):
        depth = len(line) - len(line.lstrip())
        if found := DEFINITION.match(line):
            for local in found[2].split(", "):
                defined[local] = min(depth, defined.get(local, depth))
        for used in set(re.findall(r"(?<![.:\w])[A-Za-z_]\w*", line)) & SHARED:
            assert used in defined, f"{used} is not included"
            assert defined[used] <= depth, f"{used} is included in another block"


@pytest.mark.parametrize("name", TRANSITIONS)
def test_a_scope_holds_each_function_once(name: str) -> None:
    functions = [line for line in code_lines(script(name).source) if line.startswith("local function")]
    assert len(functions) == len(set(functions))


@pytest.mark.parametrize("name", TRANSITIONS)
def test_the_head_of_a_transition_lists_what_goes_in_and_out(name: str) -> None:
    source = (LUA / f"{name}.lua").read_text()
    head = source[: source.index("--- @include")]
    assert head.startswith("#!lua")
    assert re.findall(r"^-- (KEYS|ARGV|Reply) ", head, re.MULTILINE) == ["KEYS", "ARGV", "Reply"]
    heard = re.search(r"\b(publish|bury|XADD|tell_gateways)\b", script(name).source) is not None
    assert ("-- Events  " in head) == heard
