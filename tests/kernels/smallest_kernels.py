"""Launches each kernel of the newest families once, on the smallest shapes that reach all of its code, for
compute-sanitizer: `tests/kernels/sanitize.sh --smallest`, which takes minutes where `every_kernel.py` takes hours.

Each shape has a depth of more than one stage, rows and columns beyond a whole tile, and, where blocks share a depth or
a state, two of them. Arguments name the pieces to run, by default all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from coded_alone import coded, coded_wide
from coded_weights import FORMS
from experts_alone import coded_experts, experts
from recurrent_alone import conv_steps, delta_steps, ssm_steps
from w8a8_alone import w8a8_products
from wide_alone import wide_heads

from octavo_kernels.products.choice import W8A8Kernel, W8A8Launch
from octavo_kernels.products.coded_choice import CodedKernel, CodedLaunch
from octavo_kernels.products.weights import Codes

KINDS = [next(form for form in FORMS if form[0] is kind) for kind in Codes]
"""A form of each kind of codes."""
BF16 = torch.bfloat16


def small_recurrent() -> None:
    for cut in range(1, 6):
        delta_steps(1, 2, BF16, cut)
    ssm_steps(2, 4, BF16, 256)
    conv_steps(136, BF16)


def small_coded_wide() -> None:
    """Whole tiles of each kind of codes, and one whose depth two pairs share."""
    launches = [CodedLaunch(CodedKernel.WIDE, 64, cluster, 2) for cluster in (1, 1, 1, 1, 2)]
    coded_wide(KINDS, launches, columns=288, depth=200)


def small_w8a8() -> None:
    """In the smallest tile of one consumer and of two, in blocks and not."""
    wide = [W8A8Launch(W8A8Kernel.WIDE, n, tokens, 64 * n - 16) for n, tokens in ((1, 16), (2, 128))]
    kinds = [W8A8Launch(W8A8Kernel.ROW), *wide]
    w8a8_products(kinds, 20, [(144, 272)])


PIECES: dict[str, Callable[[], None]] = {
    "recurrent": small_recurrent,
    "wide_heads": lambda: wide_heads([(1, 70), (3, 20)], heads=8),
    "coded": lambda: coded(KINDS, (1, 9, 40), depth=328),
    "coded_wide": small_coded_wide,
    "w8a8_products": small_w8a8,
    "experts": lambda: experts((3, 70)),
    "coded_experts": lambda: coded_experts(KINDS, (2, 20)),
}


def main() -> None:
    torch.manual_seed(0)
    for name in sys.argv[1:] or PIECES:
        PIECES[name]()
        torch.cuda.synchronize()
        print(f"{name} launched", flush=True)


if __name__ == "__main__":
    main()
