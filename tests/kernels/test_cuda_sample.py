"""The GPU's sampler chooses the CPU's tokens, bit for bit; log-probabilities against float64."""

import pytest
import torch

from octavo_kernels import ops
from octavo_kernels.exchange.ranks import best_part, draw_part

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
        "top_p": pick([1.0, 0.95, 0.5, 0.0001, 0.99999]),
        "min_p": pick([0.0, 0.0, 0.05]),
    }
    for name, value in fixed.items():
        drawn[name] = torch.full_like(drawn[name], value)
    return drawn


def both(logits, options):
    """On either device; each must be given all of the vocabulary, wherever rows begin."""
    samples = ops.pack_samples(len(logits), **options)
    return ops.sample(logits, samples), ops.sample(logits.cuda(), samples.cuda()).cpu()


@pytest.mark.parametrize("vocab", [1, 5, 1003, 32_000, 128_256])
@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
def test_same_tokens_as_the_cpu(vocab, spread):
    rows = 120 if vocab < 100_000 else 24
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * spread
    cpu, gpu = both(logits, columns(rows, vocab))
    assert torch.equal(cpu, gpu)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_in_16_bits(dtype):
    """Many of them are equal; rows of an odd length begin anywhere."""
    for vocab in (4000, 4001, 128_256):
        logits = (torch.randn(30, vocab) * 3).to(dtype)
        options = columns(30, vocab)
        cpu, gpu = both(logits, options)
        assert torch.equal(cpu, gpu)
        assert torch.equal(ops.sample(logits.float(), ops.pack_samples(30, **options)), gpu)


@pytest.mark.parametrize("vocab", [9000, 128_256])
@pytest.mark.parametrize("rows", [3, 70, 140])
def test_filters_alone_and_together(rows, vocab):
    """Between those that few large logits decide and those that take the whole row."""
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows)) * 4
    for top_k, top_p, min_p in (
        (1, 1.0, 0.0), (50, 1.0, 0.0), (50, 0.9, 0.0), (50, 0.9, 0.05), (127, 0.5, 0.0), (128, 0.99, 0.0),
        (129, 0.99, 0.0), (0, 0.9, 0.0), (0, 0.97, 0.1), (0, 1.0, 0.1), (0, 1.0, 1e-5), (0, 0.0, 0.0), (50, 0.0, 1.0),
    ):  # fmt: skip
        cpu, gpu = both(logits, columns(rows, 5, temperature=0.9, top_k=top_k, top_p=top_p, min_p=min_p))
        assert torch.equal(cpu, gpu)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 100.0])
def test_rows_in_order(temperature):
    """The best token so far is beaten again and again, and samples say little of what is to come."""
    rising = torch.linspace(-20, 20, 100_000).repeat(8, 1)
    for logits in (rising, rising.flip(1), rising.roll(30_000, 1)):
        for top_k, top_p in ((0, 1.0), (40, 1.0), (40, 0.9), (0, 0.9)):
            cpu, gpu = both(logits, columns(8, 4, temperature=temperature, top_k=top_k, top_p=top_p, min_p=0.0))
            assert torch.equal(cpu, gpu)


def test_more_survivors_than_can_be_listed():
    logits = torch.randn(12, 128_256)
    for top_k, top_p in ((100_000, 1.0), (0, 0.9999), (120_000, 0.99)):
        cpu, gpu = both(logits, columns(12, 5, temperature=0.9, top_k=top_k, top_p=top_p, min_p=0.0))
        assert torch.equal(cpu, gpu)


@pytest.mark.parametrize("vocab", [50_000, 200_000])
def test_mostly_forbidden_tokens(vocab):
    """As a grammar leaves them."""
    logits = torch.full((40, vocab), float("-inf"))
    allowed = torch.randint(vocab, (40, 30))
    logits.scatter_(1, allowed, torch.randn(40, 30) * 5)
    for seed in range(3):
        cpu, gpu = both(logits, columns(40, seed))
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
        torch.randn(20, 5000) * 1e30,
        torch.cat((torch.full((20, 3), 1e-3), torch.randn(20, 20_000).abs() * -3), 1),
        torch.cat((torch.full((20, 1), 500.0), torch.randn(20, 20_000)), 1),
    ],
    ids=["flat", "two levels", "two tokens", "nothing", "signed zeros", "wide", "huge", "around zero", "outlier"],
)
def test_hard_rows(logits):
    for seed in range(3):
        cpu, gpu = both(logits, columns(20, seed))
        assert torch.equal(cpu, gpu)


@pytest.mark.parametrize("rows", [1, 20, 300])
@pytest.mark.parametrize("vocab", [1, 300, 128_256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_without_a_number_gives_no_token(rows, vocab, dtype):
    """Every second row is one of numbers, which it leaves alone."""
    logits = torch.randn(rows, vocab).to(dtype)
    logits[::4], logits[2::4] = float("nan"), float("-inf")
    logits[::4, ::3] = float("-inf")
    logits[::4, vocab // 2] = float("nan")
    for top_k, top_p, min_p in ((0, 1.0, 0.0), (50, 1.0, 0.0), (5000, 0.9, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.05)):
        for temperature in (0.0, 0.7, 1.0):
            options = columns(rows, 9, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
            cpu, gpu = both(logits, options)
            assert torch.equal(cpu, gpu)
            assert (gpu[::2] == -1).all()
            assert (gpu[1::2] >= 0).all()
    chosen = ops.logprobs(logits.cuda(), torch.full((rows,), -1, device="cuda"))[0]
    assert chosen.isnan().all()


@pytest.mark.parametrize("rows", [40, 300])
def test_a_row_does_not_depend_on_the_batch(rows):
    """Nor, so, on how many blocks share it."""
    logits, options = torch.randn(rows, 9000), columns(rows, 3)
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [4000, 4001])
def test_logprobs_of_logits_in_16_bits(dtype, vocab):
    logits = (torch.randn(9, vocab, device="cuda") * 4).to(dtype)
    tokens = torch.randint(vocab, (9,), device="cuda")
    for narrow, wide in zip(ops.logprobs(logits, tokens, 7), ops.logprobs(logits.float(), tokens, 7), strict=True):
        assert torch.equal(narrow, wide)


def test_tokens_go_where_they_are_wanted():
    logits, samples = torch.randn(6, 500).cuda(), ops.pack_samples(6, **columns(6, 1)).cuda()
    kept = torch.full((8,), -1, device="cuda")
    assert ops.sample(logits, samples, out=kept[1:7]).data_ptr() == kept[1:].data_ptr()
    assert kept.tolist() == [-1, *ops.sample(logits, samples).tolist(), -1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("border", [32, 2016, 64_128])
def test_parts_give_the_tokens_of_whole_rows(border, dtype):
    """Without filters, for few rows, of which several blocks search each, and for many; some parts have nothing."""
    for rows in (1, 7, 150):
        logits = (torch.randn(rows, 2 * border - 11) * 4).to(dtype)
        logits[::5, :border], logits[2::5, border:], logits[3::7] = -torch.inf, -torch.inf, -torch.inf
        options = columns(rows, rows)
        parts = [logits[:, :border].cuda(), logits[:, border:].cuda()]
        samples = ops.pack_samples(rows, **options).cuda()
        candidates = torch.stack([draw_part(part, samples, at) for part, at in zip(parts, (0, border), strict=True)])
        bare = {name: value for name, value in options.items() if name not in ("top_k", "top_p", "min_p")}
        found = best_part(candidates, torch.empty(rows, dtype=torch.int64, device="cuda"))
        assert torch.equal(found.cpu(), ops.sample(logits, ops.pack_samples(rows, **bare)))
