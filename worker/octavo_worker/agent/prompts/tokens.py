"""From what a user wrote to token ids, and the checks that a prompt must pass before it costs anything."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import BPE

from octavo.terms.conversation import Message
from octavo.terms.errors import shortened
from octavo.terms.messages import JobError
from octavo.terms.models import JobRequest
from octavo.terms.structured import Grammar
from octavo.terms.workers import PrefixPin
from octavo_worker.agent.prompts.answer_form import AnswerForm, EncodedPrompt
from octavo_worker.agent.prompts.chat_model import ChatModel
from octavo_worker.agent.prompts.fence import Piece
from octavo_worker.agent.prompts.template import TemplateFailed
from octavo_worker.agent.prompts.tool_grammar import NoToolGrammar
from octavo_worker.agent.prompts.vocabulary import TokenBytes
from octavo_worker.contract.files import end_ids, read_text

_USERS_SAY = ("0", "z", "\n")  # continuations of a prefix: tokens common to all do not depend on it


class PromptRejected(Exception):
    """The job can never run on this model; `error` is what its submitter gets to read."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error = JobError(code=code, message=shortened(message), param=param)


class Prompts:
    """Tokeniser and chat template of the model in `folder` (Hugging Face layout). Thread-safe after construction.

    Text is encoded with special tokens disabled, so that nothing a user types becomes a control token; only the
    chat template and the tokeniser's own post-processor add those. A folder without `tokenizer.json` serves
    token-id prompts only, and `tokenizer` is None.
    """

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Tokenizer | None = None
        self._bytes: TokenBytes | None = None
        self._chat: ChatModel | None = None
        if (folder / "tokenizer.json").exists():
            described = read_text(folder / "tokenizer.json")
            self.tokenizer, self._literal = Tokenizer.from_str(described), Tokenizer.from_str(described)
            self._literal.encode_special_tokens = True
            for tokenizer in (self.tokenizer, self._literal):  # training leftovers: a prompt is never cut or padded
                tokenizer.no_truncation()
                tokenizer.no_padding()
                if isinstance(tokenizer.model, BPE):
                    tokenizer.model.dropout = None  # nor are merges left out by chance
            self._bytes = TokenBytes(self.tokenizer)
            self._added = set(self.tokenizer.get_added_tokens_decoder())
            self._chat = ChatModel.of_folder(folder, self.tokenizer)
        self.end_ids = end_ids(folder)

    @property
    def switches(self) -> tuple[str, ...]:
        """Variables of thinking that requests may set."""
        return () if self._chat is None else self._chat.switches

    def encode(self, request: JobRequest, *, at: datetime | None = None) -> EncodedPrompt:
        """Token ids of the job's prompt; one id is at least there. `at`, by default now, is what a chat template takes
        for the time: with it the same request gives the same ids. Raises PromptRejected."""
        form, grammar = AnswerForm(), request.grammar
        if request.messages is not None:
            pieces = self._rendered(request, at or datetime.now(UTC))
            ids, param = self._encode_pieces(pieces), "messages"
            if request.is_parsed and self._chat is not None:
                form = self._chat.answer_form(request, pieces)
                grammar = self._grammar(self._chat, request, form)
        elif isinstance(request.prompt, str):
            ids, param = self._encode_text(request.prompt, request.add_special_tokens), "prompt"
        else:
            ids, param = list(request.prompt or ()), "prompt"
        if not ids:
            raise PromptRejected("empty_prompt", "the prompt has no tokens: give at least one character", param)
        return EncodedPrompt(ids, form, grammar)

    def encode_prefix(self, pin: PrefixPin) -> list[int]:
        """The tokens with which every prompt begins that has this prefix: what differs with its continuation is left
        off. Raises PromptRejected."""
        if pin.system is not None:
            system = Message(role="system", content=pin.system)
            asked = [(system, Message(role="user", content=said)) for said in _USERS_SAY]
            requests, now = [JobRequest(model=pin.model, messages=messages) for messages in asked], datetime.now(UTC)
            prompts = [self._encode_pieces(self._rendered(request, now)) for request in requests]
        elif isinstance(pin.prompt, str):
            prompts = [self._encode_text(pin.prompt + said, True) for said in _USERS_SAY]
        else:
            prompts = [list(pin.prompt or ())]
        first, others = prompts[0], prompts[1:]
        same = (all(other[i : i + 1] == [token] for other in others) for i, token in enumerate(first))
        return [token for token, _ in zip(first, takewhile(bool, same), strict=False)]

    def names(self, ids: Sequence[int]) -> list[str]:
        """The tokenizer's name of each id; empty for an unknown one. Raises PromptRejected."""
        tokenizer = self._text_tokenizer()
        return [tokenizer.id_to_token(token) or "" for token in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens included. Raises PromptRejected."""
        return self._text_tokenizer().decode(list(ids), skip_special_tokens=False)

    def _text_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise PromptRejected("no_tokenizer", "this model has no tokenizer: it takes and gives token ids only")
        return self.tokenizer

    def token_bytes(self, token: int) -> bytes:
        """Bytes of a token: maybe part of a character. Empty without a tokenizer or for an unknown id."""
        return self._bytes.of(token) if self._bytes is not None else b""

    def _encode_text(self, text: str, add_special_tokens: bool) -> list[int]:
        if self.tokenizer is None:
            raise PromptRejected(
                "no_tokenizer", "this model has no tokenizer: send the prompt as a list of token ids", "prompt"
            )
        return self._literal.encode(text, add_special_tokens=add_special_tokens).ids

    def _rendered(self, request: JobRequest, at: datetime) -> list[Piece]:
        if self.tokenizer is None:
            raise PromptRejected(
                "no_tokenizer", "this model has no tokenizer: send a prompt as a list of token ids instead", "messages"
            )
        if self._chat is None:
            raise PromptRejected(
                "no_chat_template", "this model has no chat template: send a prompt instead", "messages"
            )
        try:
            return self._chat.render(request, at)
        except TemplateFailed as error:
            raise PromptRejected("invalid_messages", str(error), error.param) from error

    def _grammar(self, chat: ChatModel, request: JobRequest, form: AnswerForm) -> Grammar | None:
        try:
            return chat.grammar(request, form)
        except NoToolGrammar as error:
            raise PromptRejected("no_grammar", str(error), "tool_choice") from error

    def _encode_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        assert self.tokenizer is not None
        ids: list[int] = []
        for text, typed_by_user in pieces:
            ids += self._spelled(text) if typed_by_user else self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _spelled(self, marker: str) -> list[int]:
        """A marker as the text that it is. Added tokens that are not special are found in any text, so in two parts."""
        ids = self._literal.encode(marker, add_special_tokens=False).ids
        if self._added.isdisjoint(ids):
            return ids
        parts = (marker[:1], marker[1:])
        return [token for part in parts for token in self._literal.encode(part, add_special_tokens=False).ids]


def check_ids(ids: Sequence[int], *, request: JobRequest, max_model_len: int, vocab_size: int) -> None:
    """Raises PromptRejected unless the model can run these ids and has room for one more token."""
    param = "messages" if request.messages is not None else "prompt"
    room = max_model_len if request.sampling.max_tokens == 0 else max_model_len - 1
    if len(ids) > room:
        raise PromptRejected(
            "context_length_exceeded",
            # OpenAI's words: clients tell this error by them.
            f"This model's maximum context length is {max_model_len} tokens, at least {max_model_len - room} of which "
            f"must be left for the answer. However, your {param} resulted in {len(ids)} tokens. Please reduce the "
            f"length of the {param}.",
            param,
        )
    if (largest := max(ids)) >= vocab_size:
        raise PromptRejected(
            "invalid_token_id", f"token id {largest} is not in the vocabulary of {vocab_size} tokens", param
        )
    if (largest := max(request.sampling.logit_bias, default=0)) >= vocab_size:
        raise PromptRejected(
            "invalid_token_id", f"token id {largest} is not in the vocabulary of {vocab_size} tokens", "logit_bias"
        )
