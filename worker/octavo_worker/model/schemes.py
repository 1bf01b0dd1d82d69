"""What schemes of quantised weights are called."""

from __future__ import annotations

from octavo_kernels.weights import Activations, Scheme


def name_of(scheme: Scheme, depth: int) -> str:
    """Of a weight of that depth: its codes; `g` and the size of its groups, unless a row is one; `a8` if activations
    are turned into codes of the same kind, and the size of their groups, if they have such."""
    parts = [scheme.codes.name.lower()]
    if scheme.group < depth:
        parts.append(f"g{scheme.group}")
    if scheme.activations is not Activations.AS_GIVEN:
        grouped = f"g{scheme.activation_group}" if 0 < scheme.activation_group < depth else ""
        parts.append(f"a8{grouped}")
    return "-".join(parts)
