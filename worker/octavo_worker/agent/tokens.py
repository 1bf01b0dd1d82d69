"""From what a user wrote to token ids, and the checks that a prompt must pass before it costs anything."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from octavo.models import JobError, JobRequest, Message, PrefixPin
from octavo_worker.agent.template import ChatTemplate, TemplateFailed
from octavo_worker.agent.vocabulary import TokenBytes
from octavo_worker.files import end_ids, read_json

_USERS_SAY = ("0", "z", "\n")  # continuations of a prefix: tokens common to all do not depend on it
_SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class PromptRejected(Exception):
    """The job can never run on this model; `error` is what its submitter gets to read."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error = JobError(code=code, message=message, param=param)


class Prompts:
    """Tokeniser and chat template of the model in `folder` (Hugging Face layout). Thread-safe after construction.

    Text is encoded with special tokens disabled, so that nothing a user types becomes a control token; only the
    chat template and the tokeniser's own post-processor add those. A folder without `tokenizer.json` serves
    token-id prompts only, and `tokenizer` is None.
    """

    def __init__(self, folder: Path) -> None:
        config = read_json(folder / "tokenizer_config.json")
        self.tokenizer: Tokenizer | None = None
        self._bytes: TokenBytes | None = None
        self._template: ChatTemplate | None = None
        if (folder / "tokenizer.json").exists():
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._literal = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._literal.encode_special_tokens = True
            for tokenizer in (self.tokenizer, self._literal):  # training leftovers: a prompt is never cut or padded
                tokenizer.no_truncation()
                tokenizer.no_padding()
            self._bytes = TokenBytes(self.tokenizer)
            self._template = self._find_template(folder, config)
        self.end_ids = end_ids(folder)

    def encode(self, request: JobRequest) -> list[int]:
        """Token ids of the job's prompt; one id is at least there. Raises PromptRejected."""
        if request.messages is not None:
            ids, param = self._encode_messages(request.messages), "messages"
        elif isinstance(request.prompt, str):
            ids, param = self._encode_text(request.prompt, request.add_special_tokens), "prompt"
        else:
            ids, param = list(request.prompt or ()), "prompt"
        if not ids:
            raise PromptRejected("empty_prompt", "the prompt has no tokens: give at least one character", param)
        return ids

    def encode_prefix(self, pin: PrefixPin) -> list[int]:
        """The tokens with which every prompt begins that has this prefix: what differs with its continuation is left
        off. Raises PromptRejected."""
        if pin.system is not None:
            system = Message(role="system", content=pin.system)
            prompts = [self._encode_messages([system, Message(role="user", content=said)]) for said in _USERS_SAY]
        elif isinstance(pin.prompt, str):
            prompts = [self._encode_text(pin.prompt + said, True) for said in _USERS_SAY]
        else:
            prompts = [list(pin.prompt or ())]
        first, others = prompts[0], prompts[1:]
        same = (all(other[i : i + 1] == [token] for other in others) for i, token in enumerate(first))
        return [token for token, _ in zip(first, takewhile(bool, same), strict=False)]

    def names(self, ids: Sequence[int]) -> list[str]:
        """What the tokenizer calls each id; empty for an unknown one. Raises PromptRejected."""
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
        """What a token stands for: maybe part of a character. Empty without a tokenizer or for an unknown id."""
        return self._bytes.of(token) if self._bytes is not None else b""

    def _encode_text(self, text: str, add_special_tokens: bool) -> list[int]:
        if self.tokenizer is None:
            raise PromptRejected(
                "no_tokenizer", "this model has no tokenizer: send the prompt as a list of token ids", "prompt"
            )
        return self._literal.encode(text, add_special_tokens=add_special_tokens).ids

    def _encode_messages(self, messages: Sequence[Message]) -> list[int]:
        if self.tokenizer is None:
            raise PromptRejected(
                "no_tokenizer", "this model has no tokenizer: send a prompt as a list of token ids instead", "messages"
            )
        if self._template is None:
            raise PromptRejected(
                "no_chat_template", "this model has no chat template: send a prompt instead", "messages"
            )
        try:
            pieces = self._template.render(messages)
        except TemplateFailed as error:
            raise PromptRejected("invalid_messages", str(error), "messages") from error
        ids: list[int] = []
        for text, typed_by_user in pieces:
            tokenizer = self._literal if typed_by_user else self.tokenizer
            ids += tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _find_template(self, folder: Path, config: dict[str, Any]) -> ChatTemplate | None:
        assert self.tokenizer is not None
        source = config.get("chat_template")
        if (folder / "chat_template.jinja").exists():
            source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        if isinstance(source, list):  # several named templates
            source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
        if not source:
            return None
        added = self.tokenizer.get_added_tokens_decoder().values()
        named = read_json(folder / "special_tokens_map.json")
        texts = {name: _token_text(config.get(name)) or _token_text(named.get(name)) for name in _SPECIAL_NAMES}
        variables = {name: text for name, text in texts.items() if text}
        return ChatTemplate(source, special=[token.content for token in added if token.special], variables=variables)


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


def _token_text(value: Any) -> str | None:
    return value.get("content") if isinstance(value, dict) else value
