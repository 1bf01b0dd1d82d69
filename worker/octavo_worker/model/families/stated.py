"""Fields of config.json, with their types, that make it readable without transformers."""

from __future__ import annotations

from octavo_worker.model.config_file import Stated

FIELDS: dict[str, tuple[type, ...]] = {
    "vocab_size": (int,),
    "hidden_size": (int,),
    "intermediate_size": (int,),
    "num_hidden_layers": (int,),
    "num_attention_heads": (int,),
    "num_key_value_heads": (int,),
    "max_position_embeddings": (int,),
    "rms_norm_eps": (float,),
    "hidden_act": (str,),
    "tie_word_embeddings": (bool,),
}
MULTIPLIERS = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
STATED = Stated(FIELDS)
