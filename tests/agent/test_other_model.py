"""Two workers with one served name and other weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from queue_client import Queue, expected
from waiting import STALL_S, eventually

import octavo_worker
from octavo.terms.messages import JobStatus
from octavo_worker.agent.digest import _samples, files_digest, served_digest

DEMO = Path(octavo_worker.__file__).parent / "bundled" / "demo"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copied: Path = shutil.copytree(DEMO, tmp_path / "demo")
    return copied


def digest(folder: Path, **options: object) -> bytes:
    return files_digest(folder, **{"load_format": "auto", "seed": 0, **options})  # type: ignore[arg-type]


def change_last_weight(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "quantize_config.json",
        "quant_config.json",
        "tokenizer.json",
        "generation_config.json",
        "chat_template.jinja",
    ],
)
def test_every_file_that_is_read_counts(folder: Path, name: str) -> None:
    before = digest(folder)
    (folder / name).write_text((folder / name).read_text() + "\n" if (folder / name).exists() else "{}")
    assert digest(folder) != before


def test_a_single_weight_counts_and_the_folder_does_not(folder: Path) -> None:
    assert digest(folder) == digest(DEMO)
    (folder / "README.md").write_text("not the model's business")
    (folder / "adapter_model.safetensors").write_bytes(b"not read")
    assert digest(folder) == digest(DEMO)
    change_last_weight(folder)
    assert digest(folder) != digest(DEMO)


def test_random_weights_are_known_by_their_seed(folder: Path) -> None:
    one, two = (digest(folder, load_format="dummy", seed=seed) for seed in (1, 2))
    assert len({one, two, digest(folder)}) == 3
    change_last_weight(folder)
    assert digest(folder, load_format="dummy", seed=1) == one


def test_numerics_and_what_a_worker_was_told_count() -> None:
    told: tuple[dict[str, int | None], ...] = ({"max_model_len": None}, {"max_model_len": 40}, {"max_model_len": 41})
    served = [served_digest(b"x", level, "llg 1", **length) for level in ("amx", "avx512") for length in told]
    assert len({*served, served_digest(b"x", "amx", "llg 2")}) == 7
    assert served[0] == served_digest(b"x", "amx llg 1"), "as workers of before announce it"


def test_large_weights_are_sampled_in_every_tensor(tmp_path: Path) -> None:
    sizes, header, end = [10, 5000, 100_000], {}, 0
    for size in sizes:
        header[f"t{size}"] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    written = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()

    def samples(content: bytes) -> list[bytes]:
        file = tmp_path / "x.safetensors"
        file.write_bytes(len(written).to_bytes(8, "little") + written + content)
        with file.open("rb") as opened:
            return list(_samples(opened))

    same = samples(bytes(end))
    assert sum(map(len, same[1:])) < 40_000
    for touched in (0, 9, 10, 5009, 5010, 5010 + 50_000, end - 1):
        assert samples(bytes(touched) + b"x" + bytes(end - touched - 1)) != same


def test_a_job_with_tokens_waits_for_a_worker_that_serves_the_same(queue: Queue, start_worker, folder: Path):
    """Before: it went on with the other worker's tokens, `completed`."""
    slow = "step_seconds=1"
    first = start_worker(slow, grace=0).wait_ready()
    job = queue.submit((7, 8, 9), sampling={"max_tokens": 60, "ignore_eos": True})
    eventually(lambda: queue.stored(job) > 3)
    change_last_weight(folder)
    start_worker(model=str(folder), served_name="demo").wait_ready()
    start_worker(max_model_len=40).wait_ready()  # where the text would end earlier
    first.process.terminate()
    first.process.wait(STALL_S)
    stored = queue.stored(job)
    fresh = queue.submit((1, 2), sampling={"max_tokens": 5, "ignore_eos": True})
    queue.wait(fresh)
    assert (queue.status(job), queue.stored(job)) == (JobStatus.QUEUED, stored)
    start_worker().wait_ready()
    assert list(queue.wait(job).token_ids) == expected([7, 8, 9], 60)


def test_an_engine_that_starts_again_on_other_files_ends_its_worker(queue: Queue, start_worker, folder: Path):
    worker = start_worker("crash_after=5", model=str(folder), served_name="demo").wait_ready()
    change_last_weight(folder)
    queue.submit((7, 8, 9), sampling={"max_tokens": 20, "ignore_eos": True})
    assert worker.process.wait(STALL_S) != 0
    assert "are others than at the start of this worker" in worker.log
