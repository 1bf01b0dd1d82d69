"""One sequence of a job: its tokens, their text, and what it owes."""

from __future__ import annotations

from typing import cast

from octavo.terms.messages import AnswerFormat, Chunk, FinishReason, TokenLogprob
from octavo_worker.agent.prompts.call_marks import CallMarks
from octavo_worker.agent.prompts.thinking import ThinkingBudget
from octavo_worker.agent.text import TextStream


class GeneratedSequence:
    """Tokens of one sequence, and the text that became certain with each of them.

    `request_id` is that of the engine's request that computes it. `format` goes with its first token.
    """

    def __init__(
        self,
        index: int,
        text: TextStream,
        *,
        request_id: str,
        format: AnswerFormat | None = None,
        budget: ThinkingBudget | None = None,
        calls: CallMarks | None = None,
    ) -> None:
        self.index = index
        self.request_id = request_id
        self.ids: list[int] = []
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.score = 0.0  # sum of the engine's log-probabilities, if it sends any
        self.finish_reason: FinishReason | None = None
        self.placed = 0  # tokens that have their place in the stream
        self._text = text
        self._format = format
        self._budget = budget
        self.calls = calls

    @property
    def owed(self) -> list[int]:
        """Tokens that come next, whatever the engine says."""
        return self._budget.owed if self._budget is not None and self.finish_reason is None else []

    def restore(self, chunk: Chunk) -> None:
        """Take over what an earlier owner published, replaying it so that text continues as if never interrupted."""
        self.ids += chunk.token_ids
        self.texts += chunk.texts
        self.logprobs += chunk.logprobs or ()
        self.finish_reason = chunk.finish_reason
        for token, text in zip(chunk.token_ids, chunk.texts, strict=True):
            self._text.feed(token)
            if self._budget is not None:
                self._budget.take(text)
            if self.calls is not None:
                self.calls.take(text)

    def add(self, token: int, logprob: TokenLogprob | None, ended: str | None) -> None:
        """Append one token; `ended` is the engine's verdict, a stop string may end the sequence before it."""
        self.ids.append(token)
        self.texts.append(self._text.feed(token, ended))
        if self._budget is not None:
            self._budget.take(self.texts[-1])
        if self.calls is not None:
            self.calls.take(self.texts[-1])
        is_complete = self._text.stopped or ended == "complete"
        self.finish_reason = "stop" if is_complete else cast("FinishReason | None", ended)
        if logprob is not None:
            self.logprobs.append(logprob)

    def chunk(self, first: int, end: int) -> Chunk:
        """Tokens `first` to `end` (excluded). The finish reason travels with the last token."""
        return Chunk(
            index=self.index,
            token_ids=tuple(self.ids[first:end]),
            texts=tuple(self.texts[first:end]),
            logprobs=tuple(self.logprobs[first:end]) if self.logprobs else None,
            finish_reason=self.finish_reason if end == len(self.ids) else None,
            format=self._format if first == 0 else None,
        )
