"""Grammars are tried where they are submitted, so that a bad one is refused at once. Needs the extra `grammar`."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b

from octavo.dialects.grammar.grammars import TOO_SLOW, Grammar, GrammarError
from octavo.dialects.grammar.trials import Trials
from octavo.terms.models import JobRequest

log = logging.getLogger(__name__)

_AT_ONCE = 2  # each is a process


class GrammarChecks:
    """Remembers the last `capacity` answers, by the digest of kind and text; one that may be a busy machine's fault is
    not remembered. A grammar that is asked for several times at once is tried once."""

    def __init__(self, *, capacity: int = 1024, check: Callable[[Grammar], object] | None = None) -> None:
        self._check = check or Trials().validate
        self._capacity = capacity
        self._known: OrderedDict[bytes, GrammarError | None] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[GrammarError | None]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def check_request(
        self, request: JobRequest, field: str | None = None, *, of_tools: str = "tools.{}.function.parameters"
    ) -> None:
        """Likewise for all that the answer to a request must obey: the grammar that `field` gave, and the schemas of
        tools, which stand in `of_tools`."""
        await self.check(request.grammar, field)
        for place, tool in enumerate(request.offered_tools):
            if request.is_obeyed(tool):
                await self.check(Grammar("json_schema", tool.parameters), of_tools.format(place))

    async def check(self, grammar: Grammar | None, field: str | None = None) -> None:
        """Raises GrammarError about the `field` of a request if the grammar cannot be compiled, or not in time. Where
        none can be tried that is left to the worker."""
        if grammar is None:
            return
        key = blake2b(f"{grammar.kind}\n{grammar.text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if key in self._known:
            self._known.move_to_end(key)
            error = self._known[key]
        else:
            if key not in self._running:
                self._running[key] = asyncio.create_task(self._try(key, grammar))
            error = await asyncio.shield(self._running[key])
        if error is not None:
            raise GrammarError(error.message, code=error.code, param=field or "grammar")

    async def _try(self, key: bytes, grammar: Grammar) -> GrammarError | None:
        try:
            async with self._turns:
                answer = await asyncio.to_thread(self._outcome, grammar)
        finally:
            del self._running[key]
        if answer is None or answer.code != TOO_SLOW:
            self._known[key] = answer
            while len(self._known) > self._capacity:
                self._known.popitem(last=False)
        return answer

    def _outcome(self, grammar: Grammar) -> GrammarError | None:
        try:
            self._check(grammar)
        except GrammarError as error:
            return error
        except (RuntimeError, OSError) as error:
            log.warning("grammars are not tried here: %s", error)
        return None
