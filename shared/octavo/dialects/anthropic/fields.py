"""Fields of the Messages API that need no code: hints, and those that would change an answer."""

from __future__ import annotations

from octavo.dialects.field_table import Refusal

_CITED = ("messages.content", "messages.content.content", "system")
HINTS = frozenset(
    {
        *("metadata.user_id", "service_tier", "thinking.display", "context_management"),
        *("tools.eager_input_streaming", "output_config.task_budget"),
        *(f"{place}.citations" for place in _CITED),
    }
)
"""Known hints by their paths; every unknown field is another."""

_CHAT = Refusal("/v1/chat/completions takes it")
_FORMAT = Refusal("send output_config.format")

REFUSED = {
    **dict.fromkeys(("seed", "logit_bias", "ignore_eos", "stop_token_ids", "include_stop_str_in_output"), _CHAT),
    **dict.fromkeys(("beam_width", "length_penalty", "early_stopping", "logprobs", "prompt_logprobs"), _CHAT),
    **dict.fromkeys(("priority", "timeout_s", "queue_timeout_s", "modalities"), _CHAT),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p", "min_tokens"), Refusal(_CHAT.advice, (0,))),
    **dict.fromkeys(("n", "best_of", "repetition_penalty"), Refusal(_CHAT.advice, (1,))),
    **dict.fromkeys(("skip_special_tokens", "add_special_tokens", "include_reasoning"), Refusal(_CHAT.advice, (True,))),
    "top_logprobs": Refusal(_CHAT.advice, (0,)),
    **dict.fromkeys(("response_format", "structured_outputs", "json_schema", "grammar", "regex", "format"), _FORMAT),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), _FORMAT),
    "stop": Refusal("it is called stop_sequences"),
    **dict.fromkeys(
        ("max_completion_tokens", "max_tokens_to_sample"), Refusal("the limit is called max_tokens", (-1,))
    ),
    **dict.fromkeys(("functions", "function_call"), Refusal("send tools with input_schema, and tool_choice")),
    "parallel_tool_calls": Refusal("send tool_choice with disable_parallel_tool_use", (True,)),
    **dict.fromkeys(("reasoning", "thinking_budget"), Refusal("send thinking, or output_config.effort")),
    "prompt": Refusal("send messages"),
    "output_config.schema": Refusal("send output_config.format with schema"),
    "tools.parameters": Refusal("the schema of a tool is called input_schema"),
    "messages.tool_calls": Refusal("send blocks of the type tool_use"),
    "messages.tool_call_id": Refusal("send a block of the type tool_result"),
    "messages.reasoning_content": Refusal("send a block of the type thinking"),
}
"""Fields that would change an answer, by their paths."""
