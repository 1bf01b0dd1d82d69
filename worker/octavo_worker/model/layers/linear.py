"""Linear layers: a matrix in the form in which it is stored, and the products with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import Addend, Experts, Gate, Product
from octavo_worker.model.layers.buffers import Buffers
from octavo_worker.model.layers.norm import AddNorm, Input


class Linear(ABC):
    """`[T, depth]` to `[T, columns]`. A kind of Linear (another form of its weights, a part of them on each rank) has
    an `apply` of its own, and overrides the others where it has kernels for them."""

    @property
    def forms(self) -> frozenset[str]:
        """Forms in which its quantised weights are stored and multiplied, in words."""
        return frozenset()

    @property
    def is_mixed(self) -> bool:
        """True if parts of it are stored in unlike forms."""
        return False

    @property
    def reads_context(self) -> bool:
        """True if its products depend on the context of rows (`Input.context`)."""
        return False

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of its weights: those that a product reads."""

    @property
    def copy_bytes(self) -> int:
        """Bytes that `keep_copy` takes; 0: it does nothing."""
        return 0

    def keep_copy(self) -> None:  # noqa: B027 (most kinds have nothing to copy)
        """Keeps the weights in 16 bits as well, for products of many rows, which are faster so."""

    @abstractmethod
    def apply(self, x: Input, out: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        """The product, plus the bias, plus `residual` (which may be `out`)."""

    def add_scaled(self, x: Input, total: Tensor, factor: float) -> bool:
        """Adds `factor` times the product to `total`, with one rounding, where a kernel does; returns whether one
        did."""
        return False

    def gated(self, x: Input, kind: Gate, out: Tensor, scratch: Tensor) -> Tensor:
        """The gate's activation times the second half of a product whose first half is the gate. `scratch` is where the
        product goes if it has to be stored."""
        return ops.act_and_mul(self.apply(x, scratch), kind, out=out)

    def grouped(self, x: Tensor, starts: Tensor) -> Tensor:
        """Products of several experts, whose matrices lie one below the other: see `ops.grouped_linear`."""
        raise NotImplementedError(f"{type(self).__name__} is no matrix of several experts")

    def experts(self) -> Experts:
        """Several experts' matrices for a GPU's kernels."""
        raise NotImplementedError(f"{type(self).__name__} is no matrix of several experts on a GPU")

    def into_norm(self, x: Input, b: Buffers, add_norm: AddNorm) -> Input:
        """A sublayer's last product, added to the residual stream `b.hidden`, and normalised for the next sublayer.

        The norm may be left to the next product. A Linear split by depth sums its ranks' products here, before all
        that follows.
        """
        if add_norm.is_plain:
            self.apply(x, b.hidden, residual=b.hidden)
            return add_norm.after_sum(b)
        if add_norm.is_multiple and self.add_scaled(x, b.hidden, add_norm.multiplier):
            return add_norm.after_sum(b)
        return add_norm.add(b, Addend(self.apply(x, b.delta)))


@dataclass(frozen=True, slots=True)
class Products:
    """How a model computes its products on a GPU: see `ops.Product`. One `counter` is enough for all layers."""

    uniform: bool = False
    counter: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Dense(Linear):
    """`weight[columns, depth]` and `bias[columns]` in the type of the activations. `stored` are the forms of the codes
    that the weight was made of."""

    weight: Tensor
    bias: Tensor | None = None
    products: Products = Products()
    stored: frozenset[str] = frozenset()

    @property
    def forms(self) -> frozenset[str]:
        return self.stored

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def apply(self, x: Input, out: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        return ops.linear(self._product(x, out, residual))

    def add_scaled(self, x: Input, total: Tensor, factor: float) -> bool:
        ops.linear(self._product(x, total, total)._replace(factor=factor))
        return True

    def gated(self, x: Input, kind: Gate, out: Tensor, scratch: Tensor) -> Tensor:
        return ops.gated_linear(self._product(x, out), kind, scratch)

    def grouped(self, x: Tensor, starts: Tensor) -> Tensor:
        return ops.grouped_linear(x, self.weight, starts, self.bias)

    def experts(self) -> Experts:
        return Experts(self.weight, self.bias)

    def _product(self, x: Input, out: Tensor | None, residual: Tensor | None = None) -> Product[Tensor]:
        uniform, counter = self.products.uniform, self.products.counter
        return Product(
            x.rows, self.weight, self.bias, out=out, residual=residual, norm=x.norm, normed=x.normed, uniform=uniform,
            counter=counter,
        )  # fmt: skip
