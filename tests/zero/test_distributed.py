"""Joining the process group, and this rank's GPU and number of threads."""

import os
import re
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock, patch

import deepspeed
import pytest
import torch
from torch.distributed import distributed_c10d

from megatape.distributed.topology import Topology
from megatape.errors import UserError
from megatape.zero import distributed
from megatape.zero.distributed import device_number, initialize_distributed, num_threads
from megatape.zero.internals import version_warning

DEFAULTS = {
    "NCCL_LAUNCH_ORDER_IMPLICIT": "1",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "TRITON_CACHE_DIR": "",
    "TORCHINDUCTOR_CACHE_DIR": "",
}


def test_unknown_address_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise torch would retry until the timeout of collectives, 35 minutes in a training run, even on a single host."""
    places = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "no-such-host.invalid", "MASTER_PORT": "9"}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="MASTER_ADDR is 'no-such-host.invalid', which .* does not know"):
        initialize_distributed(Topology(1, 2, 1, local_size=2), timedelta(seconds=3), name_timeout=0.0)


def test_device_of_a_local_rank() -> None:
    topology = Topology(5, 8, 1, local_size=4)
    assert device_number(topology, visible=4) == 1
    # The scheduler may show each rank only its own GPU.
    assert device_number(topology, visible=1) == 0
    with pytest.raises(ValueError, match="8 ranks on .*, which shows 4 GPUs"):
        device_number(Topology(5, 8, 5, local_size=8), visible=4)


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mock]:
    """Replace DeepSpeed's accelerator by one GPU, and undo a rank's changes to the environment and torch."""
    accelerator = Mock()
    accelerator.device_name.side_effect = lambda number=None: "cuda" if number is None else f"cuda:{number}"
    accelerator.device_count.return_value = 1
    accelerator.current_device_name.return_value = "cuda:0"
    monkeypatch.setattr(distributed, "get_accelerator", lambda: accelerator)
    monkeypatch.setattr(distributed.deepspeed, "init_distributed", lambda *_, **__: None)
    monkeypatch.setattr(distributed.dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(distributed, "open_store", lambda *_: None)
    monkeypatch.setattr(distributed.deepspeed.ops, "__compatible_ops__", {})
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        monkeypatch.setattr(distributed_c10d, name, None)
    places = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    with patch.dict(os.environ, places):
        for name in DEFAULTS:
            os.environ.pop(name, None)
        yield accelerator
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True  # as torch has it


@pytest.mark.parametrize("launcher", ["SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"])
def test_deepspeed_binds_the_only_visible_gpu(monkeypatch: pytest.MonkeyPatch, accelerator: Mock, launcher: str) -> None:
    """`srun --gpus-per-task 1`: the second rank of a host sees one GPU, cuda:0, and DeepSpeed binds cuda:LOCAL_RANK."""
    bound = []

    def join(*_: object, **__: object) -> None:
        bound.append(accelerator.device_name(os.environ["LOCAL_RANK"]))
        # DeepSpeed's engine refuses other values (_configure_with_arguments).
        assert os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", os.environ["LOCAL_RANK"]) == os.environ["LOCAL_RANK"]

    monkeypatch.setenv(launcher, "1")
    monkeypatch.setattr(distributed.deepspeed, "init_distributed", join)
    initialize_distributed(Topology(1, 2, 1, local_size=2))
    accelerator.set_device.assert_called_once_with(0)
    assert bound == ["cuda:0"]


@pytest.mark.parametrize("tensor_size", [1, 2])
def test_environment_of_a_gpu(
    accelerator: Mock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tensor_size: int
) -> None:
    """Before the device is used, and never in the place of a user's value; rank 0 prints it, once."""
    seen: dict[str, str] = {}
    accelerator.set_device.side_effect = lambda _: seen.update(os.environ)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    with caplog.at_level("INFO", logger=distributed.__name__):
        initialize_distributed(Topology(0, 2, 0, local_size=2), tensor_size=tensor_size)
    expected = DEFAULTS | {
        "PYTORCH_ALLOC_CONF": "max_split_size_mb:64",
        "TRITON_CACHE_DIR": f"{tmp_path}/megatape-{os.getuid()}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/megatape-{os.getuid()}/inductor",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1" if tensor_size > 1 else None,
    }
    assert {name: seen.get(name) for name in DEFAULTS} == expected
    assert (tmp_path / f"megatape-{os.getuid()}").stat().st_mode & 0o777 == 0o700
    [line] = [record.message for record in caplog.records]
    assert "NCCL_LAUNCH_ORDER_IMPLICIT=1" in line
    assert "PYTORCH_ALLOC_CONF" not in line
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is False
    with caplog.at_level("INFO", logger=distributed.__name__):
        initialize_distributed(Topology(0, 2, 0, local_size=2), tensor_size=tensor_size)
    assert len(caplog.records) == 1


def test_kernel_cache_of_another_user_is_not_used(accelerator: Mock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everybody may make that folder in /tmp: its code would run as this user."""
    other = os.getuid() + 1
    (tmp_path / f"megatape-{other}").mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: other)
    initialize_distributed(Topology(1, 2, 1, local_size=2))
    for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        folder = Path(os.environ[variable]).parent
        assert folder.parent == tmp_path
        assert folder.name.startswith(f"megatape-{other}-")


@pytest.mark.parametrize(("installed", "is_tested"), [("0.20.1", False), ("0.19.7", False), ("0.19.8+cu130", True)])
@pytest.mark.parametrize("rank", [0, 1])
def test_untested_version_of_deepspeed_is_a_warning(
    accelerator: Mock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    installed: str,
    is_tested: bool,
    rank: int,
) -> None:
    """Rank 0 warns at the start."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(deepspeed, "__version__", installed)
    initialize_distributed(Topology(rank, 2, rank, local_size=2))
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    expected = [f"DeepSpeed is {installed}, and only 0.19.8 was tested"] * (rank == 0 and not is_tested)
    assert [warning.partition(":")[0] for warning in warnings] == expected


def test_the_tested_version_is_the_pinned_one() -> None:
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text()
    (pinned,) = re.findall(r"^deepspeed==(\S+)$", pins, re.MULTILINE)
    assert version_warning(pinned) is None


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEGATAPE_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    assert num_threads(Topology(0, 1, 0)) == cores
    assert num_threads(Topology(0, 2 * cores, 0, local_size=2 * cores)) == 1
    monkeypatch.setenv("MEGATAPE_THREADS", "3")
    assert num_threads(Topology(0, 1, 0)) == 3
    for wrong in ("0", "-1", "two", ""):
        monkeypatch.setenv("MEGATAPE_THREADS", wrong)
        with pytest.raises(ValueError, match="MEGATAPE_THREADS is"):
            num_threads(Topology(0, 1, 0))
