"""Bias, penalties, forbidden tokens and masks against their definition; a GPU gives the CPU's bits."""

import numpy as np
import pytest
import torch
from gpus import devices

from octavo_kernels.adjust import Adjustment, adjust, pack


def by_definition(row, a, allowed=None):
    """In float64, token by token."""
    row = row.double()
    for token in range(len(row)):
        x, seen, count = row[token] + a.bias.get(token, 0.0), token in (*a.prompt, *a.output), a.output.count(token)
        if seen:
            x = x / a.repetition if x > 0 else x * a.repetition
        x -= a.presence * (count > 0) + a.frequency * count
        forbidden = token in a.forbidden or (a.masked and allowed is not None and not allowed[token])
        row[token] = -torch.inf if forbidden else x
    return row


def random_adjustment(rng, vocab, masked):
    def pick(most):
        return rng.integers(vocab, size=rng.integers(0, most)).tolist()

    return Adjustment(
        bias={token: float(rng.normal() * 5) for token in pick(6)},
        prompt=pick(30),
        output=pick(40),
        repetition=float(rng.choice([1.0, 1.3, 0.7])),
        presence=float(rng.choice([0.0, 0.4, -0.5])),
        frequency=float(rng.choice([0.0, 0.3, 1.1])),
        forbidden=pick(5),
        masked=masked and bool(rng.integers(2)),
    )


def random_batch(seed, rows=13, vocab=77):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(rows, vocab)).astype(np.float32) * 3)
    adjustments = [random_adjustment(rng, vocab, masked=True) for _ in range(rows)]
    bits = rng.integers(2, size=(rows, -(-vocab // 32) * 32), dtype=np.uint8)
    allowed = torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
    return logits, adjustments, bits[:, :vocab], allowed


@pytest.mark.parametrize("seed", range(5))
def test_definition(seed):
    logits, adjustments, bits, allowed = random_batch(seed)
    expected = [by_definition(row, a, b) for row, a, b in zip(logits, adjustments, bits, strict=True)]
    adjust(logits, torch.from_numpy(pack(adjustments)), allowed=allowed)
    torch.testing.assert_close(logits.double(), torch.stack(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("last", [3, 4, 9])
def test_a_token_that_comes_late_counts_like_any_other(last):
    options = {"prompt": [1, 3], "repetition": 1.7, "presence": 0.4, "frequency": 0.3}
    known, late = torch.linspace(-2, 3, 12)[None], torch.linspace(-2, 3, 12)[None]
    adjust(known, torch.from_numpy(pack([Adjustment(output=[4, 4, 5, last], **options)])))
    adjust(late, torch.from_numpy(pack([Adjustment(output=[4, 4, 5], **options)])), torch.tensor([last]))
    assert torch.equal(known, late)


def test_rows_that_ask_nothing_stay():
    logits = torch.randn(3, 40)
    expected = logits.clone()
    adjust(logits, torch.from_numpy(pack([Adjustment(output=[1], prompt=[2])] * 3)), torch.tensor([5, -1, 0]))
    assert torch.equal(logits, expected)


@pytest.mark.gpu
@pytest.mark.parametrize(("seed", "vocab"), [(0, 77), (1, 77), (2, 1000), (3, 70_001), (4, 128_256)])
def test_a_gpu_gives_the_same_bits(seed, vocab):
    logits, adjustments, _, allowed = random_batch(seed, vocab=vocab)
    message, latest = torch.from_numpy(pack(adjustments)), torch.randint(-1, min(vocab, 40), (13,))
    on_gpu = logits.cuda()
    adjust(on_gpu, message.cuda(), latest.cuda(), allowed.cuda())
    adjust(logits, message, latest, allowed)
    assert torch.equal(on_gpu.cpu(), logits)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("vocab", [31, 2048, 32_000, 128_256, 151_936, 201_088])
def test_masks_of_real_vocabularies(vocab, device):
    """One bit, all bits, none of the middle, any; and a row that has no mask."""
    words = -(-vocab // 32)
    rng = np.random.default_rng(vocab)
    bits = np.zeros((6, words * 32), np.uint8)
    bits[0, vocab - 1] = 1
    bits[1] = 1
    bits[2, :40] = bits[2, vocab - 40 :] = 1
    bits[3:] = rng.integers(2, size=(3, words * 32))
    allowed = torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
    logits = torch.from_numpy(rng.normal(size=(6, vocab)).astype(np.float32))
    expected = torch.where(torch.from_numpy(bits[:, :vocab]) == 1, logits, -torch.inf)
    expected[5] = logits[5]
    given = logits.to(device)
    message = torch.from_numpy(pack([Adjustment(masked=place < 5) for place in range(6)]))
    adjust(given, message.to(device), allowed=allowed.to(device))
    assert torch.equal(given.cpu(), expected)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("logits", torch.zeros(2, 40, dtype=torch.bfloat16), TypeError),
        ("logits", torch.zeros(40), ValueError),
        ("message", torch.zeros(12), TypeError),
        ("message", torch.zeros(11, dtype=torch.int32), ValueError),
        ("latest", torch.zeros(2, dtype=torch.int32), TypeError),
        ("latest", torch.zeros(3, dtype=torch.int64), ValueError),
        ("allowed", torch.zeros(2, 1, dtype=torch.int32), ValueError),
        ("allowed", torch.zeros(2, 2, dtype=torch.int32, device="meta"), ValueError),
    ],
)
def test_wrong_arguments(name, value, error):
    right = {"logits": torch.zeros(2, 40), "message": torch.from_numpy(pack([Adjustment()] * 2))}
    adjust(**right)
    with pytest.raises(error, match=rf"^{name} "):
        adjust(**{**right, name: value})
