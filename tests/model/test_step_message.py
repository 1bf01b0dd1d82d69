"""The packer's messages, unpacked by the CPU's reading of them, are the batch that `ragged_batch` builds from the plan;
and, on a GPU, the kernel reads them as the CPU does."""

import pickle
import random
from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pytest
import torch
from gpus import devices

from octavo_kernels.step import SAMPLE, StepInputs, WindowInputs, carry, unpack_step
from octavo_worker.contract.messages import EngineSampling
from octavo_worker.contract.step import UNKNOWN, SampleSpec, SequenceStep, StepError, StepPlan
from octavo_worker.model.batch import ragged_batch
from octavo_worker.runner.cuda.packer import Packer, filtered_places
from octavo_worker.runner.cuda.shapes import RaggedShape, StepSizes

ROWS, BLOCKS, BLOCK, VOCAB, TOKENS, FIRST_HOST_BLOCK, WINDOW = 6, 12, 16, 500, 256, 5000, 40
SAMPLES = 4 * ROWS  # of decodes with several tokens


class AsItIs:
    """Pads no step."""

    def of(self, step: StepSizes) -> RaggedShape:
        return RaggedShape(0, False, False)


def make_packer(rows: int = ROWS, first_host_block: int | None = None, *, windows: bool = False) -> Packer:
    return Packer(
        rows=rows,
        block_size=BLOCK,
        vocab_size=VOCAB,
        shapes=AsItIs(),
        first_host_block=first_host_block,
        windows=windows,
    )


def room(*, windows: bool = False) -> np.ndarray:
    """For a message."""
    return np.zeros(Packer.capacity(ROWS, SAMPLES, TOKENS, BLOCKS, windows=windows), np.int32)


class Device:
    """State that a device keeps from step to step."""

    def __init__(self, device: str = "cpu", *, windows: bool = False) -> None:
        self.tables = torch.zeros((ROWS, BLOCKS), dtype=torch.int32, device=device)
        self.sampled = torch.zeros(ROWS, dtype=torch.int64, device=device)
        apart = WindowInputs.allocate(ROWS, SAMPLES, TOKENS, BLOCKS, torch.device(device)) if windows else None
        self.inputs = StepInputs.allocate(SAMPLES, TOKENS, BLOCKS, torch.device(device), windows=apart)

    def unpack(self, message: np.ndarray, sequences: int) -> StepInputs:
        sent = torch.from_numpy(message.copy()).to(self.tables.device)
        unpack_step(sent, self.tables, self.sampled, self.inputs, sequences, BLOCK)
        return self.inputs


def records(inputs: StepInputs) -> np.ndarray:
    """How each sample is drawn."""
    return inputs.samples.numpy().view(SAMPLE)[:, 0]


class Run:
    """A sequence as the scheduler would run it: chunks, then decodes; its tables grow, their tails may be copied, the
    oldest blocks of some go to the host, and layers with a window give up what it has left."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.number, self.rng = number, rng
        self.table: list[int] = []
        self.windows: list[int] = []
        self.on_host = 0
        self.is_oversized = rng.random() < 0.5
        self.done = 0
        self.params = EngineSampling(
            seed=rng.randrange(-(2**63), 2**63), max_tokens=9, temperature=rng.random(), top_k=rng.randrange(900),
            top_p=rng.random(), min_p=rng.random(),
        )  # fmt: skip

    def step(self, count: int, samples: int, *, each: bool = False) -> SequenceStep:
        """`count` tokens; `samples` of the last one, or of `each`."""
        rng, table = self.rng, list(self.table)
        for tail in (table, self.windows):
            if self.done % BLOCK and rng.random() < 0.2:
                tail[-1] = rng.randrange(1, 1000)
        left = max(0, self.done + 1 - WINDOW) // BLOCK
        self.windows = [0] * left + self.windows[left:]
        if self.is_oversized and rng.random() < 0.3:
            more = rng.randrange(self.done // BLOCK - self.on_host + 1)
            hosts = [FIRST_HOST_BLOCK + rng.randrange(1, 1000) for _ in range(more)]
            table[self.on_host : self.on_host + more] = hosts
            self.on_host += more
        end = self.done + count
        grown = -(-end // BLOCK) - len(table)
        self.table, self.windows = ([*old, *rng.choices(range(1, 1000), k=grown)] for old in (table, self.windows))
        specs = [SampleSpec(self.params, 0 if each else index, [], []) for index in range(samples)]
        tokens = [rng.randrange(VOCAB) for _ in range(count)]
        rows = tuple(sorted(rng.sample(range(count), samples))) if each else ()
        more = {"run_id": self.number, "row_context": self.number * 1000, "window_table": self.windows}
        step = SequenceStep(tokens, self.done, self.table, specs, rows, **more)  # type: ignore[arg-type]
        self.done = end
        return step


def random_plans(seed: int, steps: int, calm: float = 0.0) -> Iterator[StepPlan]:
    """Plans of up to `ROWS` sequences that come, sit out and go. Decodes of one token, or of several to be verified.
    With the probability `calm` a step is one of the same decodes as another before."""
    rng = random.Random(seed)
    runs: list[Run] = []
    kept: list[tuple[Run, int]] = []
    number = 0
    for _ in range(steps):
        runs = [run for run in runs if run.done < BLOCK * BLOCKS - 40 and rng.random() > 0.1 * (1 - calm)]
        if kept and rng.random() < calm and all(run in runs for run, _ in kept):
            repeated = [run.step(n, rng.randint(1, n), each=True) for run, n in kept]
            yield StepPlan(repeated, len(repeated))
            continue
        while len(runs) < ROWS and rng.random() < 0.5:
            number += 1
            runs.append(Run(number, rng))
        chosen = [run for run in runs if rng.random() < 0.8]
        decodes = [run for run in chosen if run.done and rng.random() < 0.8]
        prompts = [run for run in chosen if run not in decodes]
        longest = rng.choice([1, 4])
        counts = [rng.randint(1, longest) for _ in decodes]
        if rng.random() < 0.5 or any(run not in runs for run, _ in kept):
            kept = list(zip(decodes, counts, strict=True))
        steps_of_decodes = [run.step(n, rng.randint(1, n), each=True) for run, n in zip(decodes, counts, strict=True)]
        chunks = [run.step(rng.randrange(1, 33), rng.randrange(2)) for run in prompts]
        if chosen:
            yield StepPlan([*steps_of_decodes, *chunks], len(decodes))


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("calm", [0.0, 0.7])
@pytest.mark.parametrize("seed", range(8))
def test_the_device_sees_what_the_plan_says(seed: int, calm: float, windows: bool) -> None:
    packer = make_packer(first_host_block=FIRST_HOST_BLOCK, windows=windows)
    device, message = Device(windows=windows), room(windows=windows)
    host_steps = several = 0
    for plan in random_plans(seed, 150 if calm else 60, calm):
        steps, packed = plan.sequences, packer.pack(plan, message)
        got, count, tokens = device.unpack(packed.words, len(steps)), len(steps), packed.sizes.tokens
        want = ragged_batch(steps, BLOCK, VOCAB)
        assert packed.sizes.on_host.tolist() == [step.block_table[0] >= FIRST_HOST_BLOCK for step in steps]
        assert packed.sizes.decodes == plan.num_decodes
        host_steps += packed.sizes.reads_host
        several += any(len(step.samples) > 1 for step in steps)
        assert torch.equal(got.token_ids[:tokens], want.token_ids)
        assert torch.equal(got.positions[:tokens], want.positions)
        assert torch.equal(got.slots[:tokens], want.slots)
        assert want.row_context is not None
        assert torch.equal(got.row_context[:tokens], want.row_context)
        assert torch.equal(got.context_lens[:count], want.context_lens)
        assert torch.equal(got.query_start[: count + 1], want.query_start)
        for row, table, length in zip(got.block_tables, want.block_tables, want.context_lens.tolist(), strict=False):
            used = -(-length // BLOCK)
            assert torch.equal(row[:used], table[:used])
        assert (got.windows is not None) == windows
        if got.windows is not None:
            assert want.windows is not None
            assert torch.equal(got.windows.slots[:tokens], want.windows.slots)
            for row, step in zip(got.windows.block_tables, steps, strict=False):
                first, used = max(0, step.start + 1 - WINDOW) // BLOCK, -(-step.end // BLOCK)
                assert row[first:used].tolist() == list(step.window_table[first:used])
        starts = want.query_start.tolist()
        rows = [start + row for start, step in zip(starts, steps, strict=False) for row in step.rows]
        samples = [step.sample_row(number) for step in steps for number in range(len(step.samples))]
        assert got.sample_rows[: len(rows)].tolist() == rows
        drawn = records(got)[: len(rows)]
        assert drawn["position"].tolist() == [sample.position for sample in samples]
        assert drawn["position"].tolist() == (want.positions[rows] + 1).tolist()
        assert drawn["index"].tolist() == [sample.index for sample in samples]
        assert drawn["seed"].tolist() == [sample.params.seed for sample in samples]
        assert drawn["top_k"].tolist() == [min(sample.params.top_k, VOCAB) for sample in samples]
        assert drawn["min_p"].tolist() == pytest.approx([sample.params.min_p for sample in samples])
    assert host_steps > 10
    assert several > 10


def test_a_decode_sends_one_block_however_long_the_context() -> None:
    packer = make_packer()
    message = np.zeros(Packer.capacity(ROWS, SAMPLES, TOKENS, BLOCKS), np.int32)
    run = Run(1, random.Random(1))
    run.is_oversized = False
    first = len(packer.pack(StepPlan([run.step(150, 1)], 0), message).words)
    assert len(packer.pack(StepPlan([run.step(1, 1)], 1), message).words) == first - 149 - 9


def test_only_what_went_to_the_host_and_what_is_behind_it_is_sent_again() -> None:
    packer = make_packer(first_host_block=FIRST_HOST_BLOCK)
    message = np.zeros(Packer.capacity(ROWS, SAMPLES, TOKENS, BLOCKS), np.int32)

    def decode(start: int, on_host: int) -> int:
        table = [FIRST_HOST_BLOCK + 1 + n for n in range(on_host)] + list(range(on_host, 10))
        return len(packer.pack(StepPlan([SequenceStep([7], start, table, run_id=1)], 1), message).words)

    decode(140, 3)
    assert decode(141, 3) == decode(142, 3)
    assert decode(143, 4) == decode(142, 3) + 5, "entries 3 to 8, where 8 is always sent"


def test_parallel_samples_of_one_prompt_have_their_indices() -> None:
    packer, device = make_packer(), Device()
    message = np.zeros(Packer.capacity(ROWS, SAMPLES, TOKENS, BLOCKS), np.int32)
    steps = [Run(1, random.Random(1)).step(3, 0), Run(2, random.Random(2)).step(4, 3)]
    packer.pack(StepPlan(steps, 0), message)
    got = device.unpack(message, 2)
    assert records(got)["index"][:3].tolist() == [0, 1, 2]
    assert got.sample_rows[:3].tolist() == [6, 6, 6]


def test_padding_is_written_nowhere() -> None:
    packer, device, message = make_packer(windows=True), Device(windows=True), room(windows=True)
    assert device.inputs.windows is not None
    device.inputs.windows.slots.fill_(7)  # of a step before
    packer.pack(StepPlan([Run(1, random.Random(1)).step(1, 1)], 1), message)
    got = device.unpack(message, 4)
    assert got.slots[:4].tolist()[1:] == [-1, -1, -1]
    assert got.windows is not None
    assert got.windows.slots[:4].tolist()[1:] == [-1, -1, -1]
    assert got.windows.slots[0] > 0
    assert got.context_lens[:4].tolist() == [1, 0, 0, 0]
    assert got.query_start[:5].tolist() == [0, 1, 2, 3, 4]
    assert records(got)["temperature"][1:4].tolist() == [0, 0, 0]


@pytest.mark.parametrize("device", devices())
def test_a_sample_without_a_token_reads_no_embedding_before_the_first(device: str) -> None:
    there, message = Device(device), np.zeros(Packer.capacity(ROWS, SAMPLES, TOKENS, BLOCKS), np.int32)
    there.sampled[:2] = torch.tensor([-1, 9])
    steps = [SequenceStep([-1], 4, [1], run_id=1, follows=0), SequenceStep([-1], 7, [2], run_id=2, follows=1)]
    packed = make_packer().pack(StepPlan(steps, 2), message)
    assert there.unpack(packed.words, 2).token_ids[:2].tolist() == [0, 9]


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_a_token_outside_the_vocabulary_blames_its_sequence(token: int) -> None:
    packer = make_packer()
    steps = [SequenceStep([3], 0, [1]), SequenceStep([2, token], 0, [2])]
    with pytest.raises(StepError) as caught:
        packer.pack(StepPlan(steps, 0), np.zeros(Packer.capacity(ROWS, SAMPLES, TOKENS, BLOCKS), np.int32))
    assert caught.value.sequence == 1


GUESSES = range(60, 100)


def guessing(drafts: list[int]) -> list[SequenceStep]:
    spec = SampleSpec(EngineSampling(seed=2, max_tokens=9), 0, [7], [])
    rows = tuple(range(1 + len(drafts)))
    return [SequenceStep([8], 4, [1], [spec]), SequenceStep([5, *drafts], 1, [2], [spec] * len(rows), rows)]


def test_drafts_that_the_device_guesses_are_taken_from_their_places() -> None:
    packer = Packer(rows=ROWS, block_size=BLOCK, vocab_size=VOCAB, shapes=AsItIs(), guesses=GUESSES)
    device, message = Device(), np.zeros(Packer.capacity(ROWS, SAMPLES, TOKENS, BLOCKS), np.int32)
    device.sampled = torch.arange(100) + 200
    packed = packer.pack(StepPlan(guessing([~61, ~99]), 2), message)
    assert device.unpack(packed.words, 2).token_ids[:4].tolist() == [8, 5, 261, 299]


@pytest.mark.parametrize("drafts", [[~61, ~100], [~59, ~60], [VOCAB, ~60], [UNKNOWN, UNKNOWN]])
def test_a_draft_without_a_place_blames_its_sequence(drafts: list[int]) -> None:
    packer = Packer(rows=ROWS, block_size=BLOCK, vocab_size=VOCAB, shapes=AsItIs(), guesses=GUESSES)
    with pytest.raises(StepError) as caught:
        packer.pack(StepPlan(guessing(drafts), 2), np.zeros(1000, np.int32))
    assert caught.value.sequence == 1


def test_more_sequences_than_rows_are_refused() -> None:
    packer = make_packer(2)
    steps = [SequenceStep([3], 0, [block]) for block in (1, 2, 3)]
    with pytest.raises(ValueError, match="made for 2"):
        packer.pack(StepPlan(steps, 0), np.zeros(1000, np.int32))


def penalised(output: list[int]) -> SampleSpec:
    return SampleSpec(EngineSampling(seed=1, max_tokens=9, presence_penalty=0.5), 0, [1, 2, 3], output)


def test_samples_that_ask_for_more_come_with_their_rows() -> None:
    """Three of a decode whose first token the device alone knows, behind a decode that asks for nothing."""
    message = np.zeros(Packer.capacity(ROWS, SAMPLES, TOKENS, BLOCKS), np.int32)
    plain = SampleSpec(EngineSampling(seed=2, max_tokens=9), 0, [7], [])
    steps = [
        SequenceStep([5, 6], 1, [1], [plain] * 2, (0, 1), run_id=1),
        SequenceStep([-1, 60, 61], 5, [2], [penalised([4, 5])] * 3, (0, 1, 2), run_id=2, follows=1),
    ]
    packed = make_packer().pack(StepPlan(steps, 2), message)
    assert [special.place for special in packed.special] == [2, 3, 4]
    assert [special.row.position for special in packed.special] == [6, 7, 8]
    assert [list(special.row.output) for special in packed.special] == [[4, 5], [4, 5, 60], [4, 5, 60, 61]]
    assert [special.follows for special in packed.special] == [2, 2, 2], "the place of the unknown token"


def test_what_is_packed_again_or_elsewhere_is_the_same() -> None:
    """Nothing but the plan goes into the message, and nothing but the packed step to other ranks."""
    packers = [make_packer(first_host_block=FIRST_HOST_BLOCK) for _ in range(2)]
    message = [np.zeros(Packer.capacity(ROWS, SAMPLES, TOKENS, BLOCKS), np.int32) for _ in range(2)]
    for plan in random_plans(3, 40):
        one = packers[0].pack(plan, message[0])
        other = packers[1].pack(pickle.loads(pickle.dumps(plan)), message[1])
        received = pickle.loads(pickle.dumps(one))
        for again in (other, received):
            assert again.words.tolist() == one.words.tolist()
            assert again.samples == one.samples
            assert again.shape == one.shape
            assert again.special == one.special


def test_a_plan_of_swaps_alone_has_no_message() -> None:
    packed = make_packer().pack(StepPlan([], 0, swap_out=[(3, 5001)]), np.zeros(0, np.int32))
    assert len(packed.words) == packed.sizes.sequences == 0
    assert packed.shape is None
    assert packed.swap_out == [(3, 5001)]


@pytest.mark.gpu
@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_kernel_reads_messages_as_the_cpu_does(seed: int, windows: bool) -> None:
    packer, message = make_packer(windows=windows), room(windows=windows)
    cpu, gpu = Device("cpu", windows=windows), Device("cuda", windows=windows)
    for plan in random_plans(seed, 60):
        steps, packed = plan.sequences, packer.pack(plan, message)
        padded = random.Random(seed).randrange(len(steps), ROWS + 1)
        if padded > len(steps) and any(len(s.tokens) > 1 for s in steps):
            padded = len(steps)
        one, other = (device.unpack(packed.words, padded) for device in (cpu, gpu))
        used = [-(-int(length) // BLOCK) for length in one.context_lens[: len(steps)]]
        total = packed.sizes.tokens + padded - len(steps)
        for name, a in tensors(one).items():
            b = tensors(other)[name].cpu()
            if name.endswith("block_tables"):
                for row, blocks in enumerate(used):
                    assert torch.equal(a[row, :blocks], b[row, :blocks]), name
            elif name.endswith(("token_ids", "positions", "slots", "row_context")):
                assert torch.equal(a[:total], b[:total]), name
            else:
                size = padded + (name == "query_start")
                assert torch.equal(a[:size], b[:size]), name


def tensors(inputs: StepInputs) -> dict[str, torch.Tensor]:
    """By name, without what a model of no states or of one group lacks."""
    found = {field.name: getattr(inputs, field.name) for field in fields(inputs)[:-2]}
    if inputs.windows is not None:
        found |= {f"windows.{name}": getattr(inputs.windows, name) for name in ("block_tables", "slots")}
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("words", [1, 128, 10_000])
def test_words_are_carried_to_the_device_and_back(words):
    sent, back = torch.arange(words, dtype=torch.int32).pin_memory(), torch.zeros(words, dtype=torch.int32).pin_memory()
    there = torch.zeros(words, dtype=torch.int32, device="cuda")
    for shift in range(20):  # what was there before must not be seen
        sent.add_(shift)
        carry(sent, there)
        carry(there, back)
        torch.cuda.synchronize()
        assert torch.equal(back, sent)
    with pytest.raises(ValueError, match="one size"):
        carry(sent[1:], there)


def test_places_with_filters_are_found_in_the_message() -> None:
    message = np.zeros(Packer.capacity(ROWS, SAMPLES, TOKENS, BLOCKS), np.int32)
    asked: list[dict[str, float]] = [
        {},
        {"top_p": 0.9},
        {"top_p": 0.9, "temperature": 0.0},
        {"top_k": VOCAB},
        {"top_k": 5},
        {"min_p": 0.1},
    ]
    params = [EngineSampling(seed=1, max_tokens=9, **each) for each in asked]  # type: ignore[arg-type]
    steps = [SequenceStep([5], 3, [1], [SampleSpec(each, 0, [], [])], run_id=1 + i) for i, each in enumerate(params)]
    packed = make_packer().pack(StepPlan(steps, len(steps)), message)
    assert filtered_places(packed.words, VOCAB).tolist() == [1, 4, 5]
