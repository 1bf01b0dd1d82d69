"""A gate of attention's output."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import HeadGate
from octavo_worker.model.layers.linear import Linear


@dataclass(frozen=True, slots=True, eq=False)
class AttentionGate:
    """Factors of each head of attention's output, or of each of its values: `activation` of a product with the rows
    that attention reads, which is a part of attention's first one if there is no `product`. In float32."""

    activation: HeadGate
    product: Linear | None = None

    def apply(self, logits: Tensor, attended: Tensor) -> None:
        """Multiplies `attended[T, heads, head_dim]`. `logits` has a column for each head or for each value."""
        if attended.is_cuda:
            ops.gate_heads(attended, logits, self.activation)
            return
        rows, heads, _ = attended.shape
        attended.mul_(self._factors(logits.float().contiguous()).view(rows, heads, logits.shape[1] // heads))

    def _factors(self, logits: Tensor) -> Tensor:
        if self.activation == "softplus":  # torch's own gives an element other bits at the end of a tensor
            return logits.abs().neg_().exp_().log1p_().add_(logits.relu())
        return ops.sigmoid(logits)
