"""Grammars are tried where they are submitted, so that a bad one is refused at once. Needs the extra `grammar`."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b

from octavo.dialects.grammar.deep_threads import DeepThreads
from octavo.dialects.grammar.grammars import Grammar, GrammarError
from octavo.dialects.grammar.trials import Trials
from octavo.terms.models import JobRequest

log = logging.getLogger(__name__)

_AT_ONCE = 3  # each is a process

Check = Callable[..., object]
"""Tries a grammar, and is asked by `is_wanted` whether it may go on."""


@dataclass
class _Attempt:
    """A grammar that is being tried, or waits for its turn, and how many ask for the answer."""

    answer: asyncio.Task[GrammarError | None]
    is_dropped: threading.Event
    askers: int = field(default=0)


class GrammarChecks:
    """Remembers the last `capacity` answers, by the digest of kind and text. A grammar that a tenant asks for several
    times at once is tried once; tenants take turns. What is not asked for any more ends."""

    def __init__(self, *, capacity: int = 1024, check: Check | None = None) -> None:
        self._trials = Trials()
        self._check = check or self._trials.validate
        self._capacity = capacity
        self._known: OrderedDict[bytes, GrammarError | None] = OrderedDict()
        self._attempts: dict[tuple[str, bytes], _Attempt] = {}
        self._threads: DeepThreads | None = None

    def close(self) -> None:
        """End its threads, each after what it does, and the processes that wait."""
        if self._threads is not None:
            self._threads.close()
        self._trials.close()

    def are_needed(self, request: JobRequest) -> bool:
        """True if the answer to a request must obey anything."""
        return next(_grammars(request, None, ""), None) is not None

    async def check_request(
        self,
        request: JobRequest,
        field: str | None = None,
        *,
        tenant: str = "",
        of_tools: str = "tools.{}.function.parameters",
    ) -> None:
        """`check` of all that the answer to a request must obey: the grammar that `field` gave, and the schemas of
        tools, which stand in `of_tools`."""
        for grammar, place in _grammars(request, field, of_tools):
            await self.check(grammar, place, tenant=tenant)

    async def check(self, grammar: Grammar | None, field: str | None = None, *, tenant: str = "") -> None:
        """Raises GrammarError about the `field` of a request if the grammar cannot be compiled, or takes too much of a
        processor, and Busy if this machine cannot tell. Where none can be tried that is left to the worker."""
        if grammar is None:
            return
        key = blake2b(f"{grammar.kind}\n{grammar.text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if key in self._known:
            self._known.move_to_end(key)
            error = self._known[key]
        else:
            error = await self._answer(tenant, key, grammar)
        if error is not None:
            raise GrammarError(error.message, code=error.code, param=field or "grammar")

    async def _answer(self, tenant: str, key: bytes, grammar: Grammar) -> GrammarError | None:
        attempt = self._attempts.get((tenant, key))
        if attempt is None:
            is_dropped = threading.Event()
            trying = asyncio.create_task(self._try(tenant, key, grammar, is_dropped))
            attempt = self._attempts[tenant, key] = _Attempt(trying, is_dropped)
        attempt.askers += 1
        try:
            return await asyncio.shield(attempt.answer)
        finally:
            attempt.askers -= 1
            if not attempt.askers and self._attempts.get((tenant, key)) is attempt:
                del self._attempts[tenant, key]
                attempt.is_dropped.set()
                attempt.answer.cancel()

    async def _try(self, tenant: str, key: bytes, grammar: Grammar, is_dropped: threading.Event) -> GrammarError | None:
        self._threads = self._threads or DeepThreads(_AT_ONCE)
        call = partial(self._outcome, grammar, lambda: not is_dropped.is_set())
        answer = await asyncio.wrap_future(self._threads.submit(call, tenant))
        self._known[key] = answer
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)
        return answer

    def _outcome(self, grammar: Grammar, is_wanted: Callable[[], bool]) -> GrammarError | None:
        try:
            self._check(grammar, is_wanted=is_wanted)
        except GrammarError as error:
            return error
        except (RuntimeError, OSError) as error:
            log.warning("grammars are not tried here: %s", error)
        return None


def _grammars(request: JobRequest, field: str | None, of_tools: str) -> Iterator[tuple[Grammar, str | None]]:
    if request.grammar is not None:
        yield request.grammar, field
    for place, tool in enumerate(request.offered_tools):
        if request.is_obeyed(tool):
            yield Grammar("json_schema", tool.parameters), of_tools.format(place)
