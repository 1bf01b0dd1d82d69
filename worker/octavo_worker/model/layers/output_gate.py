"""A gate of attention's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from octavo_kernels import ops
from octavo_worker.model.layers.linear import Linear
from octavo_worker.model.layers.norm import Input


@dataclass(frozen=True, slots=True, eq=False)
class AttentionGate:
    """Factors of each head of attention's output, or of each of its values: `activation` of a product with the rows
    that attention reads. In float32."""

    product: Linear
    activation: Literal["sigmoid", "softplus"]

    def factors(self, rows: Tensor) -> Tensor:
        logits = self.product.apply(Input(rows)).float()
        if self.activation == "softplus":  # torch's own gives an element other bits at the end of a tensor
            return logits.abs().neg_().exp_().log1p_().add_(logits.relu_())
        return logits.sigmoid_() if logits.is_cuda else ops.sigmoid(logits)

    @staticmethod
    def apply(factors: Tensor, attended: Tensor) -> None:
        """Multiplies `attended[T, heads, head_dim]`."""
        rows, heads, _ = attended.shape
        attended.mul_(factors.view(rows, heads, factors.shape[1] // heads))
