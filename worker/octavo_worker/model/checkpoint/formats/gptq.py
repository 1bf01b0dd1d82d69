"""GPTQ (arXiv 2210.17323) as AutoGPTQ and GPTQModel write it, versions 1 and 2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo_kernels.products.weights import Codes, QuantisedWeight, Scheme
from octavo_worker.model.checkpoint.formats.columns import ordered, sorted_by_group
from octavo_worker.model.checkpoint.formats.fields import signed, unpack
from octavo_worker.model.checkpoint.formats.stored import HEAD, SCALES, Part, Wanted
from octavo_worker.model.errors import CheckpointError, UnsupportedModel

ONES = {4: 0x11111111, 8: 0x01010101}
VERSIONS = {"gptq": 1, "gptq_v2": 2}


@dataclass(frozen=True, slots=True)
class Gptq:
    """`bits` and `group_size` (-1: the whole depth) as the config states them for all modules, or in `dynamic` for
    those whose names match a pattern: the first that does counts."""

    bits: int
    group_size: int
    is_sorted: bool
    version: int
    dynamic: Mapping[str, Mapping[str, Any]]
    has_head: bool = False

    @classmethod
    def stated(cls, config: Mapping[str, Any]) -> Gptq:
        """The method of a config. Raises `UnsupportedModel` for other bits or layouts."""
        layout = config.get("checkpoint_format", config.get("format")) or "gptq"
        if layout not in VERSIONS:
            raise UnsupportedModel(
                f"GPTQ weights in the layout {layout!r} are made for one kernel; save them as 'gptq' or 'gptq_v2'."
            )
        dynamic = config.get("dynamic") or {}
        bits = int(config["bits"])
        for each in (bits, *(int(rule["bits"]) for rule in dynamic.values() if "bits" in rule)):
            if each not in ONES:
                raise UnsupportedModel(f"GPTQ weights of {each} bits have no kernel; give a checkpoint of 4 or 8 bits.")
        return cls(
            bits=bits,
            group_size=int(config["group_size"]),
            is_sorted=not config.get("desc_act"),
            version=VERSIONS[layout],
            dynamic=dynamic,
            has_head=bool(config.get("lm_head")),
        )

    def stored(self, part: Part) -> GptqPart | None:
        """The form of a part. Raises `CheckpointError` where its tensors and the config disagree."""
        if not part.found.keys() & {"qweight", "qzeros", "scales", "g_idx"}:
            return None
        pattern, rule = self._rule(part.name)
        if pattern.startswith("-:"):
            raise CheckpointError(f"tensor '{part.name}.qweight' is quantised, but 'dynamic' says {pattern!r}.")
        is_sorted = not rule.get("desc_act", not self.is_sorted)
        return GptqPart(part, self._scheme(rule, part.depth), is_sorted, self.version)

    def scheme(self, name: str, depth: int) -> Scheme | None:
        pattern, rule = self._rule(name)
        is_dense = pattern.startswith("-:") or (name == HEAD and not self.has_head)
        return None if is_dense else self._scheme(rule, depth)

    def _rule(self, name: str) -> tuple[str, Mapping[str, Any]]:
        """The pattern of `dynamic` that matches, and what it states; empty: none does."""
        for pattern, rule in self.dynamic.items():
            if re.match(pattern.removeprefix("+:").removeprefix("-:"), name):
                return pattern, rule
        return "", {}

    def _scheme(self, rule: Mapping[str, Any], depth: int) -> Scheme:
        bits, size = int(rule.get("bits", self.bits)), int(rule.get("group_size", self.group_size))
        return Scheme(Codes.INT4 if bits == 4 else Codes.INT8, size if 0 < size < depth else depth)


@dataclass(frozen=True, slots=True)
class GptqPart:
    """Element `[n, k]` is `(q[k, n] - z[g_idx[k], n]) * scales[g_idx[k], n]`. `qweight` has the bits of eight or four
    q a word along the depth, `qzeros` those of z along the rows. Version 1 stores z - 1: what it subtracts from is the
    whole word, so a field of 0 borrows from the next one."""

    part: Part
    scheme: Scheme
    is_sorted: bool
    version: int

    @property
    def bits(self) -> int:
        return 4 if self.scheme.codes is Codes.INT4 else 8

    @property
    def wanted(self) -> dict[str, Wanted]:
        rows, depth, a_word = self.part.rows, self.part.depth, 32 // self.bits
        groups = -(-depth // self.scheme.group)
        wanted = {
            "qweight": Wanted([(depth // a_word, rows)], [torch.int32], {"depth": a_word, "rows": 1}),
            "qzeros": Wanted([(groups, rows // a_word)], [torch.int32], {"depth": self.scheme.group, "rows": a_word}),
            "scales": Wanted([(groups, rows)], SCALES, {"depth": self.scheme.group, "rows": 1}),
        }
        if "g_idx" in self.part.found or (not self.is_sorted and groups > 1):
            wanted["g_idx"] = Wanted([(depth,)], [torch.int32], {"groups": 1})
        return wanted

    def weight(self, raw: dict[str, Tensor]) -> QuantisedWeight:
        order = self._order(raw.get("g_idx"))
        codes = raw.pop("qweight").T.contiguous().view(torch.uint8)
        zeros = unpack(self._zero_words(raw["qzeros"]), self.bits)
        if self.bits == 8:
            codes, zeros = signed(codes), signed(zeros)
        return QuantisedWeight(self.scheme, ordered(codes, order), raw["scales"].float(), zeros, order)

    def _order(self, groups: Tensor | None) -> Tensor | None:
        if groups is None:
            return None
        name = f"{self.part.name}.g_idx"
        order = sorted_by_group(name, groups, self.scheme.group)
        if order is not None and self.is_sorted:
            raise CheckpointError(f"tensor {name!r} is not sorted, but quantization_config has no desc_act.")
        return order

    def _zero_words(self, words: Tensor) -> Tensor:
        if self.version == 2:
            return words
        whole = (words.long() + ONES[self.bits]) & 0xFFFFFFFF
        return torch.where(whole >= 1 << 31, whole - (1 << 32), whole).to(torch.int32)
