"""Memory available to a rank, as reported by the kernel and control groups."""

from pathlib import Path

import pytest
import torch

from megatape.training.startup.memory.available_memory import available_memory, host_capacity, host_memory


def test_memory_of_the_host(tmp_path: Path) -> None:
    """Free memory is the minimum over the host and all control groups, counting their page cache as free."""
    proc = tmp_path / "proc"
    groups = tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 4000 kB\nMemFree: 1 kB\nMemAvailable: 3000 kB\nSwapFree: 500 kB\n")
    assert host_memory(proc, groups) == 3500 * 1024
    assert host_capacity(proc, groups) == 4000 * 1024
    inner = groups / "job/step"
    inner.mkdir(parents=True)
    (proc / "self/cgroup").write_text("0::/job/step\n")
    for folder, limit in ((inner, "max"), (inner.parent, str(2000 * 1024))):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{1500 * 1024}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {60 * 1024}\nactive_file {40 * 1024}\n")
    assert host_memory(proc, groups) == 600 * 1024
    assert host_capacity(proc, groups) == 2000 * 1024
    old = groups / "memory/job"
    old.mkdir(parents=True)
    (proc / "self/cgroup").write_text("4:cpu:/job\n3:memory:/job\n")
    (old / "memory.limit_in_bytes").write_text(f"{900 * 1024}\n")
    (old / "memory.usage_in_bytes").write_text(f"{700 * 1024}\n")
    assert host_memory(proc, groups) == 200 * 1024
    assert host_capacity(proc, groups) == 900 * 1024


def test_ranks_share_their_host() -> None:
    if torch.cuda.is_available():
        pytest.skip("each rank has a GPU")
    assert 0 < available_memory(4) < 0.5 * available_memory(1)
