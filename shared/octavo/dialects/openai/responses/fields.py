"""Fields of the Responses API that need no code: hints, and those that would change an answer."""

from __future__ import annotations

from octavo.dialects.field_table import Refusal
from octavo.dialects.openai.fields import REFUSED as OF_CHAT

HINTS = frozenset(
    {
        *("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier"),
        *("max_tool_calls", "stream_options.include_obfuscation", "text.verbosity"),
        *("reasoning.summary", "reasoning.generate_summary", "tools.format", "client_metadata"),
    }
)
"""Known hints by their paths; every unknown field is another."""

_FORMAT = "send text.format"
_CHAT = "/v1/chat/completions takes it"

REFUSED = {
    **{name: refusal for name, refusal in OF_CHAT.items() if "." not in name},
    "messages": Refusal("send them as input"),
    "system": Refusal("send it as instructions"),
    "conversation": Refusal("name the response before it as previous_response_id"),
    "prompt": Refusal("send the text as instructions and input"),
    **dict.fromkeys(("response_format", "json_schema", "grammar", "regex", "format"), Refusal(_FORMAT)),
    **dict.fromkeys(("structured_outputs", "guided_json", "guided_choice"), Refusal(f"{_FORMAT}, or {_CHAT}")),
    **dict.fromkeys(("guided_regex", "guided_grammar"), Refusal(_CHAT)),
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "n_predict", "num_predict", "max_new_tokens"),
        Refusal("the limit is called max_output_tokens", (-1,)),
    ),
    "n": Refusal("a response is one answer: /v1/chat/completions takes it", (1,)),
    "best_of": Refusal(_CHAT, (1,)),
    **dict.fromkeys(("beam_width", "length_penalty", "early_stopping"), Refusal(_CHAT)),
    "logprobs": Refusal("include message.output_text.logprobs"),
    "include_reasoning": Refusal(_CHAT, (True,)),
    "text.format.json_schema": Refusal("its members stand in text.format itself: name, schema, strict"),
    "input.audio": Refusal("prompts are text: leave it out"),
}
"""Fields that would change an answer, by their paths."""
