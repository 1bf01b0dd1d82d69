"""Stop rules on token ids. Stop strings belong to `decoding.text`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo_worker.contract.messages import EngineSampling


@dataclass(frozen=True, slots=True)
class StopRules:
    """`stop_ids` end a sequence once it has more than `min_tokens` tokens, those of `ends` always; `limit` tokens end
    it in any case."""

    stop_ids: frozenset[int]
    min_tokens: int
    limit: int
    ends: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        sampling: EngineSampling,
        *,
        prompt_len: int,
        max_model_len: int,
        vocab_size: int,
        ends: frozenset[int] = frozenset(),
    ) -> StopRules:
        """The tighter of `max_tokens` and the context that the prompt leaves. Ids outside the vocabulary drop out.
        `ends`: what ends the text of a grammar, which allows it where it may come."""
        limit = min(sampling.max_tokens, max_model_len - prompt_len)
        stop_ids = frozenset(token for token in sampling.stop_token_ids if 0 <= token < vocab_size)
        return cls(stop_ids | ends, sampling.min_tokens, limit, ends)

    def finish_reason(self, token: int, count: int) -> str | None:
        """The reason to finish if `token`, the `count`-th of its sequence, is the last; it stays in the output. None:
        go on."""
        if token in self.stop_ids and (count > self.min_tokens or token in self.ends):
            return "stop"
        return "length" if count >= self.limit else None

    def forbidden(self, count: int) -> Sequence[int]:
        """Ids that may not follow `count` tokens."""
        return tuple(self.stop_ids) if count < self.min_tokens else ()
