"""Where a model comes from: the bundled one, a folder, or the hub."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import STALL_S

from octavo_worker.contract.files import ModelNotFound, model_folder, served_name


def test_demo_is_bundled_with_its_draft() -> None:
    assert (model_folder("demo") / "model.safetensors").is_file()
    assert (model_folder("demo-draft") / "model.safetensors").is_file()
    assert sum(path.stat().st_size for path in model_folder("demo-draft").iterdir()) < 2 << 20


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        model_folder(str(tmp_path))


def test_a_name_that_is_no_folder_and_no_hub_id_is_refused() -> None:
    with pytest.raises(ModelNotFound, match="hub id like"):
        model_folder("./no-such-folder")


def test_an_unreachable_hub_is_reported_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match="give its folder"):
        model_folder("nobody/no-such-model")


def test_a_model_is_served_under_the_last_part_of_its_name(tmp_path: Path) -> None:
    assert served_name(str(tmp_path / ".")) == tmp_path.name
    assert served_name("someone/some-model") == "some-model"


def test_ctrl_c_ends_a_download_that_hangs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hub:
        hub.settimeout(STALL_S)
        address = f"http://127.0.0.1:{hub.getsockname()[1]}"
        worker = subprocess.Popen(
            [sys.executable, "-m", "octavo_worker", "--model", "nobody/no-such-model"],
            env={**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"},
        )
        with hub.accept()[0]:
            worker.send_signal(signal.SIGINT)
            try:
                assert worker.wait(STALL_S) == -signal.SIGINT
            finally:
                worker.kill()
