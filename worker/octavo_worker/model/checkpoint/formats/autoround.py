"""AutoRound (arXiv 2309.05516) in its own config: its packings are those of GPTQ and AWQ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from octavo_worker.model.checkpoint.formats.awq import Awq
from octavo_worker.model.checkpoint.formats.gptq import Gptq
from octavo_worker.model.errors import UnsupportedModel

GPTQ_PACKINGS = ("auto_round:auto_gptq", "auto_round:gptq", "auto_gptq")
AWQ_PACKINGS = ("auto_round:auto_awq", "auto_round:awq", "auto_awq")
DENSE_BITS = 16


def autoround(config: Mapping[str, Any]) -> Gptq | Awq:
    """The method of a config, with the layers of `extra_config`, whose keys are names or patterns. Raises
    `UnsupportedModel` for other packings or types."""
    packing = str(config.get("packing_format") or GPTQ_PACKINGS[0])
    if packing not in (*GPTQ_PACKINGS, *AWQ_PACKINGS):
        raise UnsupportedModel(
            f"AutoRound weights in the packing {packing!r} are not loaded; export them with the format 'auto_round' in "
            "the packing of 'auto_gptq' or 'auto_awq', or with 'llm_compressor'."
        )
    kinds = (config.get("data_type") or "int", int(config.get("act_bits") or DENSE_BITS))
    if kinds[0] != "int" or kinds[1] < DENSE_BITS:
        raise UnsupportedModel(
            f"AutoRound weights of type {kinds[0]!r} with activations of {kinds[1]} bits have no kernel in this "
            "packing; export them with the format 'llm_compressor'."
        )
    extra: Mapping[str, Mapping[str, Any]] = config.get("extra_config") or {}
    return _awq(config, extra) if packing in AWQ_PACKINGS else _gptq(config, extra)


def _gptq(config: Mapping[str, Any], extra: Mapping[str, Mapping[str, Any]]) -> Gptq:
    rules = {}
    for name, rule in extra.items():
        kept = {key: value for key, value in rule.items() if key in ("bits", "group_size") and value is not None}
        if int(kept.get("bits", config["bits"])) >= DENSE_BITS:
            rules[f"-:{_pattern(name)}"] = dict[str, Any]()
        else:
            rules[f"+:{_pattern(name)}"] = kept
    has_head = any(name.endswith("lm_head") for name in extra)  # else it is dense, whatever the config says of others
    stated = {"bits": config["bits"], "group_size": config["group_size"], "dynamic": rules, "lm_head": has_head}
    return Gptq.stated(stated)


def _awq(config: Mapping[str, Any], extra: Mapping[str, Mapping[str, Any]]) -> Awq:
    dense = [name for name, rule in extra.items() if int(rule.get("bits", config["bits"])) >= DENSE_BITS]
    for name, rule in extra.items():
        own = tuple(int(rule.get(key, config[key])) for key in ("bits", "group_size"))
        if name not in dense and own != (int(config["bits"]), int(config["group_size"])):
            raise UnsupportedModel(
                f"AutoRound weights in AWQ's packing have the same bits and groups everywhere, but {name} has others; "
                "export them in the packing of 'auto_gptq'."
            )
    stated = {"bits": config["bits"], "group_size": config["group_size"], "modules_to_not_convert": dense}
    return Awq.stated(stated)


def _pattern(name: str) -> str:
    return name if re.search(r"[*+?^$|()\[\]\\]", name) else f"{re.escape(name)}$"
