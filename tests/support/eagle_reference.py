"""An EAGLE-3 head in a few lines of torch: a whole text in one pass, without a cache, in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb


@dataclass
class ReferenceHead:
    """`taps` count the target's `hidden_states` as transformers does: 0 are the embeddings, i comes after layer i."""

    values: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    target: PreTrainedModel
    taps: Sequence[int]
    at: str = "midlayer."

    def drafts(self, text: Sequence[int], count: int, choose: Callable[[Tensor, int], int]) -> list[int]:
        """`count` tokens after `text`; `choose` gets logits of the target's vocabulary and a position."""
        known = torch.tensor([list(text)])
        hidden = self.target(known, output_hidden_states=True).hidden_states
        features = torch.cat([hidden[tap][0] for tap in self.taps], dim=1) @ self.tensors["fc.weight"].T
        features, tokens, drawn = features[:-1], list(text[1:]), list[int]()
        for number in range(count):
            states = self.states(features, torch.tensor(tokens))
            token = choose(self.logits(states[-1]), len(text) + number)
            features, tokens = torch.cat((features, states[-1:])), [*tokens, token]
            drawn.append(token)
        return drawn

    def states(self, features: Tensor, tokens: Tensor) -> Tensor:
        embed = self.tensors.get("embed_tokens.weight", self.target.get_input_embeddings().weight)
        embedded = self.norm(embed[tokens], f"{self.at}input_layernorm")
        states = features + self.attention(torch.cat((embedded, self.norm(features, f"{self.at}hidden_norm")), dim=1))
        x = self.norm(states, f"{self.at}post_attention_layernorm")
        gate, up = (self.times(x, f"{self.at}mlp.{part}_proj") for part in ("gate", "up"))
        return states + self.times(torch.nn.functional.silu(gate) * up, f"{self.at}mlp.down_proj")

    def attention(self, x: Tensor) -> Tensor:
        config = LlamaConfig(**{name: value for name, value in self.values.items() if name != "architectures"})
        q, k, v = (
            self.times(x, f"{self.at}self_attn.{part}_proj").view(1, len(x), -1, config.head_dim).transpose(1, 2)
            for part in ("q", "k", "v")
        )
        q, k = apply_rotary_pos_emb(q, k, *LlamaRotaryEmbedding(config)(x, torch.arange(len(x))[None]))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.times(y[0].transpose(0, 1).flatten(1), f"{self.at}self_attn.o_proj")

    def logits(self, state: Tensor) -> Tensor:
        known = self.times(self.norm(state, "norm"), "lm_head")
        if "d2t" not in self.tensors:
            return known
        logits = torch.full((self.values["vocab_size"],), -torch.inf)
        for own, (logit, distance) in enumerate(zip(known, self.tensors["d2t"].tolist(), strict=True)):
            logits[own + distance] = logit
        return logits

    def times(self, x: Tensor, name: str) -> Tensor:
        return x @ self.tensors[f"{name}.weight"].T

    def norm(self, x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.values["rms_norm_eps"])
        return x * scale * self.tensors[f"{name}.weight"]
