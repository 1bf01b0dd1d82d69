"""With OCTAVO_CHECK=1 a wrong index raises an error that names the argument, on either device."""

import runpy

import pytest
import torch
from gpus import devices

from octavo_kernels import checks, ops

I32, I64 = torch.int32, torch.int64
BLOCKS, BLOCK, HEAD = 4, 16, 64


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    monkeypatch.setattr(checks, "ENABLED", True)


@pytest.fixture(params=devices())
def device(request):
    return request.param


class Arguments:
    """Right ones, of which a test spoils one."""

    def __init__(self, device):
        self.device = device
        self.cache = ops.empty_cache(BLOCKS, 2, 2, BLOCK, HEAD, torch.bfloat16, device).zero_()

    def zeros(self, *shape):
        return torch.zeros(shape, dtype=torch.bfloat16, device=self.device)

    def index(self, values, dtype):
        return torch.tensor(values, dtype=dtype, device=self.device)

    def write(self, slots=(0, 63, -1)):
        ops.write_kv(
            self.zeros(3, 2, HEAD), self.zeros(3, 2, HEAD), self.cache[:, 1], self.index(slots, I64), BLOCK
        )  # fmt: skip

    def rope(self, slots=(0, 63, -1), positions=(0, 7, 3)):
        ops.rope_write_kv(
            self.zeros(3, 8 * HEAD), self.zeros(3, 4, HEAD), self.cache[:, 1], self.index(slots, I64),
            self.index(positions, I64), torch.zeros(8, HEAD, device=self.device), block_size=BLOCK,
        )  # fmt: skip

    def attend(self, tables=((0, 3), (1, -7)), lengths=(32, 16), starts=(0, 1, 3), window=0):
        q = self.zeros(3, 4, HEAD)
        ops.paged_attention(
            q, self.cache[:, 1], self.index(tables, I32), self.index(lengths, I32), self.index(starts, I32),
            torch.zeros_like(q), 1.0, BLOCK, window,
        )  # fmt: skip

    def copy(self, pairs=((0, 3),)):
        ops.copy_blocks(self.cache, self.index(pairs, I64))

    def swap(self, pairs=((3, 1),)):
        target = torch.zeros(2, *self.cache.shape[1:], dtype=self.cache.dtype)
        ops.swap_blocks(self.cache, target.pin_memory() if self.device == "cuda" else target, torch.tensor(pairs))

    def score(self, tokens=(0, 4)):
        ops.logprobs(torch.zeros(2, 5, device=self.device), self.index(tokens, I64))


@pytest.mark.parametrize(
    ("operation", "name", "wrong", "message"),
    [
        ("write", "slots", (0, 64, -1), r"^slots\[1\] is 64, but slots lie between -1 and 63"),
        ("rope", "slots", (0, 1, -2), r"^slots\[2\] is -2"),
        ("rope", "positions", (0, 8, 0), r"^positions\[1\] is 8, but rows of cos_sin lie between 0 and 7"),
        ("attend", "tables", ((0, 4), (1, 0)), r"^block_tables\[0, 1\] is 4, but block ids lie between 0 and 3"),
        ("attend", "tables", ((0, 1), (-1, 0)), r"^block_tables\[1, 0\] is -1"),
        ("attend", "lengths", (33, 16), r"^context_lens\[0\] is 33, but lengths that block_tables covers"),
        ("attend", "starts", (0, 1, 4), r"^query_start\[2\] is 4, but places of the rows of q"),
        ("attend", "starts", (0, 2, 1), r"^query_start\[1\] is -1, but its differences"),
        ("copy", "pairs", ((0, 1), (4, 2)), r"^pairs\[1, 0\] is 4"),
        ("swap", "pairs", ((0, 2),), r"^pairs\[0\] is 2, but block ids of target lie between 0 and 1"),
        ("score", "tokens", (0, 5), r"^tokens\[1\] is 5"),
    ],
)
def test_wrong_values(device, operation, name, wrong, message):
    arguments = Arguments(device)
    getattr(arguments, operation)()
    with pytest.raises(ValueError, match=message):
        getattr(arguments, operation)(**{name: wrong})


def test_blocks_that_nobody_sees_may_be_anything(device):
    arguments = Arguments(device)
    arguments.attend(tables=((-9, 3), (1, -7)), window=8)
    with pytest.raises(ValueError, match=r"^block_tables\[0, 0\] is -9"):
        arguments.attend(tables=((-9, 3), (1, -7)), window=17)


@pytest.mark.gpu
def test_a_captured_graph_goes_unchecked():
    arguments = Arguments("cuda")
    pairs = arguments.index([[0, 3]], I64)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        ops.copy_blocks(arguments.cache, pairs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.copy_blocks(arguments.cache, pairs)


@pytest.mark.parametrize(("setting", "enabled"), [("1", True), ("0", False), (None, False)])
def test_the_environment_decides(setting, enabled, monkeypatch):
    monkeypatch.delenv("OCTAVO_CHECK", raising=False)
    if setting is not None:
        monkeypatch.setenv("OCTAVO_CHECK", setting)
    assert runpy.run_path(checks.__file__)["ENABLED"] is enabled
