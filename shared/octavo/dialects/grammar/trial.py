"""A process that compiles grammars and says how that went: one may take hours, gigabytes, or the process down.

Reads grammars as the library takes them from stdin, each behind its length; answers likewise, in JSON: whether it is
refused, and the library's messages. Ends with its input.
"""

from __future__ import annotations

import json
import resource
import struct
import sys

import llguidance

from octavo.dialects.grammar.deep_threads import STACK_BYTES, DeepThreads
from octavo.dialects.grammar.grammars import library_limits
from octavo.dialects.grammar.recursion import endless_place

MEMORY_BYTES = STACK_BYTES + (1 << 30)
CPU_S = 300  # of a process whose parent has gone amid a grammar
LENGTH = struct.Struct(">I")
ENDLESS = "the schema requires itself, so no finite JSON obeys it: leave the property out of required, or allow null"


def attempt(source: str) -> tuple[bool, list[str]]:
    """Compiles a grammar. One without errors also builds the automaton that the first mask takes, over single bytes:
    that is where large ones explode, with any vocabulary."""
    if (place := _endless(source)) is not None:
        return True, [f"{ENDLESS}\n while processing {place}"]
    refused, messages = llguidance.LLMatcher.validate_grammar_with_warnings(source, limits=library_limits())
    if not refused:
        matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), source, log_level=0, limits=library_limits())
        if not matcher.is_error():
            matcher.compute_bitmask()
    return refused, messages


def _endless(source: str) -> str | None:
    """Where a JSON schema requires itself."""
    if '"$ref"' not in source or not source.startswith("{"):
        return None
    try:
        (grammar,) = json.loads(source)["grammars"]
    except RecursionError:  # the library has a limit of its own
        return None
    return endless_place(grammar.get("json_schema"))


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    with DeepThreads(1) as threads:
        while header := sys.stdin.buffer.read(LENGTH.size):
            source = sys.stdin.buffer.read(*LENGTH.unpack(header)).decode()
            answer = json.dumps(_answer(threads, source)).encode()
            sys.stdout.buffer.write(LENGTH.pack(len(answer)) + answer)
            sys.stdout.buffer.flush()


def _answer(threads: DeepThreads, source: str) -> tuple[bool, list[str]]:
    future = threads.submit(lambda: attempt(source))
    failure = future.exception()
    return future.result() if failure is None else (True, [f"the compiler failed: {failure!r}"])


if __name__ == "__main__":
    main()
