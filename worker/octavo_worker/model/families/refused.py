"""Arithmetic that neither the decoder nor paged attention beside transformers' code has, by the models that need it."""

from __future__ import annotations

SCAN = "the selective scan of Mamba1"
DELTA = "Kimi delta attention (KDA)"
INDEX = "attention that chooses keys by an index"
STREAMS = "hyper-connections between several residual streams"

NOT_COMPUTED: dict[str, str] = {
    "axk2": INDEX,
    "bailing_hybrid": DELTA,
    "deepseek_v32": INDEX,
    "deepseek_v4": STREAMS,
    "dots3_note": INDEX,
    "falcon_mamba": SCAN,
    "gemma3n": "images and sound around a text part of several residual streams (AltUp)",
    "glm5_next": STREAMS,
    "glm_moe_dsa": INDEX,
    "hy_v4": STREAMS,
    "jamba": SCAN,
    "kimi_linear": DELTA,
    "mamba": SCAN,
    "minimax": "lightning attention",
    "minimax_m3_vl": INDEX,
    "mistral_large4": INDEX,
    "qwen4_exp": INDEX,
    "recurrent_gemma": "the gated linear recurrence of RG-LRU",
    "rwkv": "the time mixing of RWKV",
    "xlstm": "the matrix memory of xLSTM",
    "zamba": SCAN,
    "zamba2": "blocks that several layers share",
}
"""By the `model_type` of their config.json."""
