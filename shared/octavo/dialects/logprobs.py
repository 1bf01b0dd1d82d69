"""Log-probabilities as JSON. A token is bytes: it may be half a character."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.dialects.openai.logprobs import finite, token_text
from octavo.terms.messages import TokenLogprob, TopLogprob


def logprobs_json(logprobs: Sequence[TokenLogprob] | None) -> list[dict[str, Any]] | None:
    """The job API's form: ids, text, bytes, natural log-probability, alternatives best first."""
    if logprobs is None:
        return None
    return [{**_entry(item), "top": [_entry(top) for top in item.top]} for item in logprobs]


def _entry(item: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {
        "token_id": item.token_id,
        "token": token_text(item.token),
        "bytes": list(item.token),
        "logprob": finite(item.logprob),
    }
