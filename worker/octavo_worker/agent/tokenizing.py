"""Questions to the tokenizer of a model. Any worker of it answers, while it generates or loads."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from octavo.queue import wire
from octavo.queue.connection import answered
from octavo.queue.keys import Keys
from octavo.terms.errors import MalformedMessage
from octavo.terms.messages import JobError, TokenizerAnswer, TokenizerQuestion
from octavo_worker.agent.prompts.tokens import PromptRejected, Prompts

log = logging.getLogger(__name__)

_PATIENCE_S = 5.0  # below what the connection allows a blocking command
_ANSWER_TTL_S = 10
_RETRY_S = 1.0


class TokenizerDesk:
    """Takes one question at a time, so that those of a busy worker go to others. Their text is never logged."""

    def __init__(self, connection: redis.asyncio.Redis, keys: Keys, model: str, prompts: Prompts) -> None:
        self._connection = connection
        self._keys = keys
        self._name = keys.questions(model)
        self._prompts = prompts

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                async with answered():
                    found: Any = await self._connection.blpop([self._name], timeout=_PATIENCE_S)
                if found is not None:
                    await self._reply(wire.decode_question(found[1]))
            except MalformedMessage:
                log.warning("a question to the tokenizer cannot be read: dropped")
            except (RedisError, OSError) as error:
                log.debug("questions cannot be read: %s", type(error).__name__)
                await asyncio.sleep(_RETRY_S)

    async def _reply(self, question: TokenizerQuestion) -> None:
        try:
            answer = await asyncio.to_thread(self._answer, question)
        except PromptRejected as rejected:
            answer = TokenizerAnswer(error=rejected.error)
        except MalformedMessage as error:
            answer = TokenizerAnswer(
                error=JobError("malformed_message", f"this version cannot read it: {error.message}")
            )
        except Exception as error:  # a tokenizer's own: without an answer the next worker would be asked, and the next
            log.error("a tokenizer failed: %s", type(error).__name__)  # its text may quote the prompt
            answer = TokenizerAnswer(error=JobError("internal_error", "the worker could not tokenize this"))
        name = self._keys.answer(question.answer_id)
        pipeline = self._connection.pipeline(transaction=False)
        pipeline.rpush(name, wire.encode_answer(answer))
        pipeline.expire(name, _ANSWER_TTL_S)
        await pipeline.execute()

    def _answer(self, question: TokenizerQuestion) -> TokenizerAnswer:
        """Raises PromptRejected, MalformedMessage."""
        if question.token_ids is not None:
            return TokenizerAnswer(text=self._prompts.decode(question.token_ids))
        ids = self._prompts.encode(wire.decode_request(question.request or b"")).ids
        names = self._prompts.names(ids) if self._prompts.tokenizer is not None else []
        return TokenizerAnswer(tuple(ids), tuple(names))
