"""Models that read images, sound or video besides text: of their folders the text model is served.

Towers, and what joins them to the text model, are named row by row and never read. All other tensors belong to the text
model, which refuses a surplus one, and lacks nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo_worker.model.checkpoint.names import Names
from octavo_worker.model.config_file import ModelConfig

PLACES = ("model.language_model.", "model.text_model.")
"""Prefixes of the text model without its head, in files of the newer form."""
WHOLE = "language_model."
"""Prefix of the text model with its head, in files of the older form."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """`towers` are the modules beside the text model, whose tensors have such names at the top or below `model.`."""

    towers: tuple[str, ...]

    def names(self, text: Names) -> Names:
        """Names of the text model's tensors in the wrapper's files."""
        inner = tuple(place + prefix.removeprefix("model.") for place in PLACES for prefix in text.prefixes[:1])
        older = tuple(WHOLE + prefix for prefix in text.prefixes)
        heads = (*text.heads, *(WHOLE + head for head in text.heads))
        return replace(text, prefixes=(*inner, *older, *text.prefixes), heads=heads, towers=self.towers)


SEEN = Wrapper(("vision_tower", "multi_modal_projector"))
TILED = Wrapper(("vision_tower", "multi_modal_projector", "image_newline"))
HEARD = Wrapper(("audio_tower", "multi_modal_projector"))
CONNECTED = Wrapper(("vision_model", "connector"))
VISUAL = Wrapper(("visual",))

WRAPPERS: dict[str, Wrapper] = {
    "audioflamingo3": HEARD,
    "aya_vision": SEEN,
    "cohere2_vision": SEEN,
    "deepseek_vl": Wrapper(("vision_model", "aligner")),
    "exaone4_5": VISUAL,
    "gemma3": SEEN,
    "gemma4": Wrapper(("vision_tower", "audio_tower", "embed_vision", "embed_audio")),
    "gemma4_unified": Wrapper(("vision_embedder", "embed_vision", "embed_audio")),
    "glm46v": VISUAL,
    "glm4v": VISUAL,
    "glm4v_moe": VISUAL,
    "glmasr": HEARD,
    "got_ocr2": SEEN,
    "hyperclovax_vision_v2": Wrapper(("vision_model", "projector")),
    "idefics2": CONNECTED,
    "idefics3": CONNECTED,
    "internvl": SEEN,
    "kimi_k25": Wrapper(("vision_tower", "mm_projector")),
    "lighton_ocr": Wrapper(("vision_encoder", "vision_projection")),
    "llava": SEEN,
    "llava_next": TILED,
    "llava_next_video": TILED,
    "llava_onevision": TILED,
    "mistral3": SEEN,
    "ovis2": Wrapper(("vision_tower", "visual_embeddings_table")),
    "qwen2_5_vl": VISUAL,
    "qwen2_audio": HEARD,
    "qwen2_vl": VISUAL,
    "qwen3_5": Wrapper(("visual", "mtp")),
    "qwen3_5_moe": Wrapper(("visual", "mtp")),
    "qwen3_vl": VISUAL,
    "qwen3_vl_moe": VISUAL,
    "smolvlm": CONNECTED,
    "video_llama_3": Wrapper(("vision_model", "projector")),
    "video_llava": Wrapper(("video_tower", "image_tower", "multi_modal_projector")),
    "vipllava": SEEN,
    "voxtral": HEARD,
}
"""By the `model_type` of their config.json."""
BOTH_DIRECTIONS = ("paligemma", "colpali")
"""Models that read the whole prompt in both directions, and are causal in their answers only."""


def is_tied(outer: ModelConfig, text: ModelConfig) -> bool:
    """True if the head is the embedding. Where the two configs disagree, the outer one counts."""
    stated = getattr(outer, "tie_word_embeddings", None)
    return bool(getattr(text, "tie_word_embeddings", False) if stated is None else stated)
