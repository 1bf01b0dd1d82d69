"""A process that compiles one grammar and says how that went: a grammar may take hours, gigabytes, or the process down.

Reads the grammar as the library takes it from stdin; writes whether it is refused, and the library's messages, as JSON.
"""

from __future__ import annotations

import json
import resource
import sys

import llguidance

from octavo.deep_threads import STACK_BYTES, DeepThreads
from octavo.grammar import library_limits

MEMORY_BYTES = STACK_BYTES + (1 << 30)


def attempt(source: str) -> tuple[bool, list[str]]:
    """Of a grammar without errors, the automaton that the first mask takes is built too, over single bytes: that is
    where large ones explode, whatever the vocabulary is."""
    refused, messages = llguidance.LLMatcher.validate_grammar_with_warnings(source, limits=library_limits())
    if not refused:
        matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), source, log_level=0, limits=library_limits())
        if not matcher.is_error():
            matcher.compute_bitmask()
    return refused, messages


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source = sys.stdin.buffer.read().decode()
    with DeepThreads(1) as threads:
        answer = threads.submit(lambda: attempt(source))
        failure = answer.exception()
    print(json.dumps(answer.result() if failure is None else (True, [f"the compiler failed: {failure!r}"])))


if __name__ == "__main__":
    main()
