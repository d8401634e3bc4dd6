"""Joining the process group, and the environment that is set before."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock, patch

import deepspeed
import pytest
import torch
from torch.distributed import distributed_c10d

from megatape.distributed.topology import Topology
from megatape.errors import UserError
from megatape.zero.setup import device, process_group
from megatape.zero.setup.internals import version_warning
from megatape.zero.setup.process_group import initialize_distributed

LAUNCHER_VARIABLES = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "9",
}
DEFAULTS = {
    "NCCL_LAUNCH_ORDER_IMPLICIT": "1",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "TRITON_CACHE_DIR": "",
    "TORCHINDUCTOR_CACHE_DIR": "",
}


def test_an_unknown_address_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch would retry an unknown address until the timeout of collectives, 35 minutes in a training run."""
    variables = LAUNCHER_VARIABLES | {"MASTER_ADDR": "no-such-host.invalid"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="MASTER_ADDR is 'no-such-host.invalid', which .* does not know"):
        initialize_distributed(Topology(1, 2, 1, local_size=2), timedelta(seconds=3), name_timeout=0.0)


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mock]:
    """Replace DeepSpeed's accelerator by one GPU, and undo a rank's changes to the environment and torch."""

    def device_name(number: int | None = None) -> str:
        if number is None:
            return "cuda"
        return f"cuda:{number}"

    accelerator = Mock()
    accelerator.device_name.side_effect = device_name
    accelerator.device_count.return_value = 1
    accelerator.current_device_name.return_value = "cuda:0"
    for module in (device, process_group):
        monkeypatch.setattr(module, "get_accelerator", lambda: accelerator)
    monkeypatch.setattr(process_group.deepspeed, "init_distributed", lambda *_, **__: None)
    monkeypatch.setattr(process_group.dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(process_group, "open_store", lambda *_: None)
    monkeypatch.setattr(process_group.deepspeed.ops, "__compatible_ops__", {})
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        monkeypatch.setattr(distributed_c10d, name, None)
    with patch.dict(os.environ, LAUNCHER_VARIABLES):
        for name in DEFAULTS:
            os.environ.pop(name, None)
        yield accelerator
    # Restore torch's default.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True


@pytest.mark.parametrize("launcher", ["SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"])
def test_deepspeed_binds_the_only_visible_gpu(monkeypatch: pytest.MonkeyPatch, accelerator: Mock, launcher: str) -> None:
    """`srun --gpus-per-task 1`: the second rank of a host sees one GPU, cuda:0, and DeepSpeed binds cuda:LOCAL_RANK."""
    bound = []

    def join(*_: object, **__: object) -> None:
        bound.append(accelerator.device_name(os.environ["LOCAL_RANK"]))
        # DeepSpeed's engine refuses other values (_configure_with_arguments).
        assert os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", os.environ["LOCAL_RANK"]) == os.environ["LOCAL_RANK"]

    monkeypatch.setenv(launcher, "1")
    monkeypatch.setattr(process_group.deepspeed, "init_distributed", join)
    initialize_distributed(Topology(1, 2, 1, local_size=2))
    accelerator.set_device.assert_called_once_with(0)
    assert bound == ["cuda:0"]


@pytest.mark.parametrize("tensor_size", [1, 2])
def test_environment_of_a_gpu(
    accelerator: Mock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tensor_size: int
) -> None:
    """The environment is set before the device is used, and never replaces a user's value. Rank 0 prints it once."""
    environment: dict[str, str] = {}
    accelerator.set_device.side_effect = lambda _: environment.update(os.environ)
    cache = tmp_path / f"megatape-{os.getuid()}"
    max_connections = None
    if tensor_size > 1:
        max_connections = "1"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    with caplog.at_level("INFO", logger=device.__name__):
        initialize_distributed(Topology(0, 2, 0, local_size=2), tensor_size=tensor_size)
    expected = DEFAULTS | {
        "PYTORCH_ALLOC_CONF": "max_split_size_mb:64",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "CUDA_DEVICE_MAX_CONNECTIONS": max_connections,
    }
    assert {name: environment.get(name) for name in DEFAULTS} == expected
    assert cache.stat().st_mode & 0o777 == 0o700
    (line,) = [record.message for record in caplog.records]
    assert "NCCL_LAUNCH_ORDER_IMPLICIT=1" in line
    assert "PYTORCH_ALLOC_CONF" not in line
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is False

    with caplog.at_level("INFO", logger=device.__name__):
        initialize_distributed(Topology(0, 2, 0, local_size=2), tensor_size=tensor_size)
    assert len(caplog.records) == 1


def test_the_kernel_cache_of_another_user_is_not_used(
    accelerator: Mock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every user may create that folder in /tmp, and its code would run as this user."""
    other = os.getuid() + 1
    (tmp_path / f"megatape-{other}").mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: other)
    initialize_distributed(Topology(1, 2, 1, local_size=2))
    for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        folder = Path(os.environ[variable]).parent
        assert folder.parent == tmp_path
        assert folder.name.startswith(f"megatape-{other}-")


@pytest.fixture
def join_with_version(
    accelerator: Mock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str, int], list[str]]:
    """join_with_version(installed, rank): join with a version of DeepSpeed. Return the warnings."""

    def join(installed: str, rank: int) -> list[str]:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(deepspeed, "__version__", installed)
        initialize_distributed(Topology(rank, 2, rank, local_size=2))
        return [record.message for record in caplog.records if record.levelname == "WARNING"]

    return join


@pytest.mark.parametrize("installed", ["0.20.1", "0.19.7"])
def test_rank_0_warns_of_an_untested_version_of_deepspeed(
    join_with_version: Callable[[str, int], list[str]], installed: str
) -> None:
    (warning,) = join_with_version(installed, 0)
    assert warning.startswith(f"DeepSpeed is {installed}, and only 0.19.8 was tested:")


@pytest.mark.parametrize(("installed", "rank"), [("0.20.1", 1), ("0.19.7", 1), ("0.19.8+cu130", 0), ("0.19.8+cu130", 1)])
def test_the_tested_version_and_other_ranks_have_no_warning(
    join_with_version: Callable[[str, int], list[str]], installed: str, rank: int
) -> None:
    assert join_with_version(installed, rank) == []


def test_the_tested_version_is_the_pinned_one() -> None:
    pins = (Path(__file__).parents[3] / "constraints.txt").read_text()
    (pinned,) = re.findall(r"^deepspeed==(\S+)$", pins, re.MULTILINE)
    assert version_warning(pinned) is None
