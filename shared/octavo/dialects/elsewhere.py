"""Fields of other servers that would change an answer, by what to do instead. No dialect takes them for hints."""

from __future__ import annotations

from typing import Any

from octavo.dialects.field_table import Refusal

_DRAWN = "tokens are not chosen in this way here: leave it out"
_WORDS = "forbid tokens by logit_bias, or write structured_outputs with regex or grammar"
_FORM = "write it as response_format, or as structured_outputs with json, regex, choice or grammar (Lark)"
_TEXT = "prompts are text and token ids: leave it out"
_PROMPT = "write it into the messages or the prompt: nothing is added to them here"
_TEMPLATE = "the model's own chat template is used: send chat_template_kwargs for its variables"
_ADAPTER = "no adapters are loaded here: name a model that has it in its weights"
_SHAPE = "answers have no such form here: leave it out"

_BY_ADVICE: dict[str, dict[str, tuple[Any, ...]]] = {
    _DRAWN: {
        **dict.fromkeys(("logit_processors", "logits_processors", "custom_logit_processor", "custom_params"), ()),
        **dict.fromkeys(("vllm_xargs", "samplers", "sampler_seq", "watermark", "temperature_last"), ()),
        **dict.fromkeys(("mirostat", "top_a", "xtc_probability", "dry_multiplier", "dynatemp_range"), (0,)),
        **dict.fromkeys(("smoothing_factor", "epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size"), (0,)),
        **dict.fromkeys(("typical_p", "tfs_z"), (1,)),
        "top_n_sigma": (0, -1),
    },
    _WORDS: dict.fromkeys(("bad_words", "allowed_token_ids", "banned_tokens"), ()),
    _FORM: dict.fromkeys(("grammar", "json_schema", "regex", "ebnf", "format", "guideline"), ()),
    _TEXT: dict.fromkeys(
        ("images", "image_data", "audio", "audio_data", "video_data", "input_embeds", "prompt_embeds", "input_ids"), ()
    ),
    _PROMPT: {
        **dict.fromkeys(("system", "system_prompt", "instructions", "context", "documents", "suffix", "input"), ()),
        **dict.fromkeys(("safe_prompt", "prompt_mode", "prefix", "session_params", "raw"), ()),
    },
    _TEMPLATE: dict.fromkeys(("chat_template", "template"), ()),
    _ADAPTER: dict.fromkeys(("lora", "lora_adapter", "lora_path", "lora_request", "adapter_id"), ()),
    _SHAPE: {
        **dict.fromkeys(("return_token_ids", "return_tokens_as_token_ids", "return_hidden_states", "no_stop_trim"), ()),
        **dict.fromkeys(("detokenize", "separate_reasoning"), (True,)),
        "reasoning_format": ("auto", "deepseek", "parsed"),
        "n_probs": (0,),
    },
    "send temperature 0 to have the likeliest token always": {"do_sample": (True,)},
    "a prompt that is too long is refused, and never cut": {"truncate_prompt_tokens": (-1,)},
    "send what is in it beside the other fields": {"extra_body": (), "options": (), "parameters": ()},
    "the limit is called max_tokens": dict.fromkeys(
        ("n_predict", "num_predict", "max_new_tokens", "max_length", "max_tokens_to_sample"), (-1,)
    ),
    "it is called repetition_penalty": {"repeat_penalty": (1,)},
    "it is called seed": {"random_seed": ()},
    "it is called stop": dict.fromkeys(("stop_sequences", "stopping_strings", "stop_regex"), ()),
    "a beam search is asked for by beam_width": {"num_beams": (1,), "use_beam_search": ()},
    "it is called n": {"num_return_sequences": (1,)},
    "nothing is searched here: leave it out": {"web_search_options": (), "web_search": ()},
}
ELSEWHERE = {name: Refusal(advice, neutral) for advice, names in _BY_ADVICE.items() for name, neutral in names.items()}
"""By name, at the top of a body."""
