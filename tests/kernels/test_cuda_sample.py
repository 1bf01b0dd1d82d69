"""The GPU's sampler chooses the CPU's tokens, bit for bit; log-probabilities against float64."""

import pytest
import torch

from octavo_kernels import ops

pytestmark = pytest.mark.gpu


def columns(rows: int, seed: int, **fixed):
    generator = torch.Generator().manual_seed(seed)

    def pick(values):
        return torch.tensor(values)[torch.randint(len(values), (rows,), generator=generator)]

    drawn = {
        "seeds": torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator),
        "indices": pick([0, 1, 5]).int(),
        "positions": torch.randint(0, 100_000, (rows,), generator=generator).int(),
        "temperature": pick([1.0, 0.6, 1.7, 0.01, 0.0]),
        "top_k": pick([0, 1, 10, 50, 5000]).int(),
        "top_p": pick([1.0, 0.95, 0.5, 0.0001]),
        "min_p": pick([0.0, 0.0, 0.05]),
    }
    for name, value in fixed.items():
        drawn[name] = torch.full_like(drawn[name], value)
    return drawn


def both(logits, options):
    return ops.sample(logits, **options), ops.sample(logits.cuda(), **{k: v.cuda() for k, v in options.items()}).cpu()


@pytest.mark.parametrize("vocab", [1, 5, 1003, 32_000, 128_256])
@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
def test_same_tokens_as_the_cpu(vocab, spread):
    rows = 120 if vocab < 100_000 else 24
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * spread
    cpu, gpu = both(logits, columns(rows, vocab))
    assert torch.equal(cpu, gpu)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_same_noise_without_filters(temperature):
    logits = torch.randn(300, 4001) * 2
    options = columns(300, 7, temperature=temperature, top_k=0, top_p=1.0, min_p=0.0)
    cpu, gpu = both(logits, options)
    assert torch.equal(cpu, gpu)
    assert len(gpu.unique()) > 100


@pytest.mark.parametrize(
    "logits",
    [
        torch.zeros(20, 50_000),  # one bin holds more tokens than shared memory
        torch.zeros(20, 50_000).index_fill(1, torch.arange(0, 50_000, 7), 1e-3),
        torch.full((20, 3000), float("-inf")).index_fill(1, torch.tensor([5, 2999]), 1.0),
        torch.full((20, 300), float("-inf")),
        torch.cat((torch.zeros(20, 100), -torch.zeros(20, 100)), 1),
        torch.randn(20, 5000) * 1000,
        torch.cat((torch.full((20, 1), 500.0), torch.randn(20, 20_000)), 1),
    ],
    ids=["flat", "two levels", "two tokens", "nothing", "signed zeros", "wide", "outlier"],
)
def test_hard_rows(logits):
    for seed in range(3):
        cpu, gpu = both(logits, columns(20, seed))
        assert torch.equal(cpu, gpu)


def test_a_row_does_not_depend_on_the_batch():
    logits, options = torch.randn(40, 9000), columns(40, 3)
    together = both(logits, options)[1]
    for i in range(0, 40, 7):
        alone = both(logits[i : i + 1], {k: v[i : i + 1] for k, v in options.items()})[1]
        assert alone.item() == together[i].item()


def test_logprobs():
    logits = torch.randn(9, 50_000) * 4
    logits[:, 100:110] = 30.0  # ties: the lowest ids first
    tokens = torch.randint(50_000, (9,))
    chosen, ids, values = (x.cpu() for x in ops.logprobs(logits.cuda(), tokens.cuda(), 20))
    expected = logits.double().log_softmax(-1)
    torch.testing.assert_close(chosen.double(), expected.gather(1, tokens[:, None])[:, 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(values.double(), expected.topk(20).values, atol=1e-5, rtol=1e-5)
    assert torch.equal(ids, ops.logprobs(logits, tokens, 20)[1])
