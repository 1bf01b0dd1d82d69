"""From token ids to text, one final piece a token. Used by the agent: needs `tokenizers`, not torch.

Everything here is a pure function of the ids fed so far, so a worker that takes a job over replays the published ids
and continues with the very pieces the first one would have made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from octavo.dialects.parsing import AnswerStops, Parser, StopStrings

_CONTEXT_TOKENS = 8
_INCOMPLETE = "\ufffd"
_MOST_BYTES = 4  # of a character
_LATER_BYTE = re.compile("<0x[89AB][0-9A-F]>", re.IGNORECASE)
"""A token of a vocabulary with byte fallback: a byte of a character behind its first."""


class Detokenizer:
    """Incremental decoding: text appears once its characters are complete and is never taken back.

    The end of the prompt is context, so that a first word keeps its leading space where the prompt left off. A
    character that the prompt leaves incomplete is no part of it: what follows decodes as if that were not there. Tokens
    of `hidden` have no text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        hidden: Set[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._skip_special = skip_special_tokens
        self._context = self._end_of(prompt)  # complete text just before `_pending`
        self._pending: list[int] = []  # ids whose text is not out yet
        self._stream = self._new_stream(self._context)

    def feed(self, token: int) -> str:
        """The text that became certain with `token`."""
        if token in self._hidden:
            return ""
        self._pending.append(token)
        text = self._step(token)
        if not text:
            return ""
        self._context, self._pending = self._pending, []
        return text

    def flush(self) -> str:
        """The text of an incomplete end, with replacement characters."""
        before = self._decode(self._context)
        text = self._decode(self._context + self._pending)
        pending, self._pending = self._pending, []
        return text[len(before) :] if text.startswith(before) else self._decode(pending)

    def _end_of(self, prompt: Sequence[int]) -> list[int]:
        """The last tokens, as far back as there is a text, that begin and end with a whole character: a run of single
        bytes decodes as a whole or not at all. Empty if the prompt has no such end."""
        for end in range(len(prompt), max(0, len(prompt) - 4 * _CONTEXT_TOKENS), -1):
            start, text = end, ""
            while start > 0 and not text:
                start = self._character_at(prompt, max(0, start - _CONTEXT_TOKENS))
                text = self._decode(list(prompt[start:end]))
            if not text.endswith(_INCOMPLETE):
                return list(prompt[start:end])
        return []

    def _character_at(self, prompt: Sequence[int], place: int) -> int:
        """Where the character begins that has a byte there."""
        first = max(0, place - _MOST_BYTES + 1)
        while place > first and _LATER_BYTE.fullmatch(self._tokenizer.id_to_token(prompt[place]) or ""):
            place -= 1
        return place

    def _step(self, token: int) -> str | None:
        try:
            return self._stream.step(self._tokenizer, token)
        except Exception:  # tokenizers raises no narrower class
            # Byte-fallback decoders may re-read bytes that are out already, and then give up. Out is out: go on without
            # them.
            self._stream = self._new_stream([])
            return self._stream.step(self._tokenizer, self._pending)

    def _new_stream(self, context: Sequence[int]) -> DecodeStream:
        return DecodeStream(ids=list(context), skip_special_tokens=self._skip_special)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip_special)


class TextStream:
    """The text of one sequence: incremental decoding, then stop strings.

    Without a tokenizer all text is empty, and so is that of `hidden` tokens. The text of the first `min_tokens` tokens
    takes no part in stop strings; with a `parser` these act on the content that it finds. A token that ended its
    sequence as a stop id adds no text unless `include_stop` is set.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        prompt: Sequence[int] = (),
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        hidden: Set[int] = frozenset(),
        min_tokens: int = 0,
        parser: Parser | None = None,
    ) -> None:
        self._detokenizer = None
        if tokenizer is not None:
            self._detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=skip_special_tokens, hidden=hidden)
        self._stops: StopStrings | AnswerStops = StopStrings(stop, include=include_stop)
        if parser is not None and stop:
            self._stops = AnswerStops(stop, parser, include=include_stop)
        self._include_stop = include_stop
        self._exempt = min_tokens

    @property
    def stopped(self) -> bool:
        """A stop string is complete: the sequence ends here with reason "stop", later tokens have no text."""
        return self._stops.hit

    def feed(self, token: int, finish_reason: str | None = None) -> str:
        """The text that became certain with `token`; all that is left if it is the last, as `finish_reason` says."""
        if self._detokenizer is None or self.stopped:
            return ""
        silent = finish_reason == "stop" and not self._include_stop
        text = "" if silent else self._detokenizer.feed(token)
        if finish_reason is not None:
            text += self._detokenizer.flush()
        piece = self._match(text)
        if finish_reason is not None and not self.stopped:
            piece += self._stops.flush()
        return piece

    def _match(self, text: str) -> str:
        if self._exempt > 0:
            self._exempt -= 1
            return self._stops.pass_by(text)
        return self._stops.feed(text)
