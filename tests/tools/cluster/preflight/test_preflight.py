"""The check before a run: its results on two hosts, and its error if one is missing."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from megatape.config import parse_config
from megatape.distributed.launch.network import free_port
from megatape.tools.cluster.preflight.bandwidth import measure
from megatape.tools.cluster.preflight.preflight import Timeouts, preflight
from tests.helpers.cluster.cluster_runs import write_config
from tests.helpers.cluster.hosts import Hosts
from tests.helpers.processes.load import scaled
from tests.helpers.processes.workers import ROOT, run_workers

MPIRUN = ("mpirun", "--allow-run-as-root")


def measure_rightly_and_wrongly(payload: Any, topology: Any) -> list[list[Any]]:
    import torch
    import torch.distributed as dist

    right = measure(torch.device("cpu"), topology)
    original = dist.all_to_all_single
    dist.all_to_all_single = lambda output, value: output.copy_(value)  # type: ignore[assignment, misc]  # a network that moves nothing
    wrong = measure(torch.device("cpu"), topology)
    dist.all_to_all_single = original
    return [[[rate.name, rate.correct, rate.bandwidth > 1e6] for rate in rates] for rates in (right, wrong)]


def test_collectives_are_checked(tmp_path: Path) -> None:
    for right, wrong in run_workers(
        "tests.tools.cluster.preflight.test_preflight:measure_rightly_and_wrongly", 2, None, tmp_path
    ):
        names = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]
        assert right == [[name, True, True] for name in names]
        assert [correct for _, correct, _ in wrong] == [True, True, True, False]


def test_two_healthy_hosts(hosts: Hosts, cluster_config: dict[str, Any], tmp_path: Path) -> None:
    config = write_config(tmp_path, cluster_config)
    (tmp_path / "hostfile").write_text("n1 slots=1\nn2 slots=1\n")
    started = time.monotonic()
    command = ("deepspeed", "--hostfile", str(tmp_path / "hostfile"), "--launcher", "pdsh", "launch/preflight.py")
    done = hosts.run("n1", *command, "--config", str(config))
    assert done.returncode == 0, done.stdout
    assert "all checks passed" in done.stdout, done.stdout
    assert "eth0 10.77.0.11" in done.stdout
    assert "eth0 10.77.0.12" in done.stdout
    assert done.stdout.count("correct") == 4
    assert time.monotonic() - started < 60
    # The check leaves no files.
    assert not list((tmp_path / "run").iterdir())


def test_torchrun_on_two_hosts(hosts: Hosts, cluster_config: dict[str, Any], tmp_path: Path) -> None:
    """torchrun's agents serve the store that the ranks join."""
    config = write_config(tmp_path, cluster_config)
    agents = []
    for number, host in enumerate(("n1", "n2")):
        command = (
            "torchrun",
            "--nnodes",
            "2",
            "--nproc-per-node",
            "1",
            "--node-rank",
            str(number),
            "--master-addr",
            "10.77.0.11",
        )
        whole = (*command, "--master-port", "29600", "launch/preflight.py", "--config", str(config))
        agents.append(hosts.start(host, *whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    outputs = [agent.communicate(timeout=scaled(90))[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    assert "all checks passed" in outputs[0]
    assert "eth0 10.77.0.12" in outputs[0]


def test_another_version_configuration_and_interface_on_a_host(
    hosts: Hosts, cluster_config: dict[str, Any], tmp_path: Path
) -> None:
    config = write_config(tmp_path, cluster_config)
    other = tmp_path / "other"
    for part in ("megatape", "launch"):
        shutil.copytree(ROOT / part, other / part)
    (other / "megatape" / "__init__.py").write_text('"""Another version."""\n')
    here = ("-np", "1", "--host", "n1", "-x", "PYTHONPATH", sys.executable, "launch/preflight.py", "--config", str(config))
    there = ("-np", "1", "--host", "n2", "-x", "PYTHONPATH", "-x", "GLOO_SOCKET_IFNAME=eth9", sys.executable)
    changed = (str(other / "launch" / "preflight.py"), "--config", str(config), "--set", "training.steps=5")
    started = time.monotonic()
    done = hosts.run("n1", *MPIRUN, *here, ":", *there, *changed)
    assert done.returncode == 2, done.stdout
    for text in (
        "versions of megatape differ",
        "configurations differ",
        "rank 1 (n2)",
        "GLOO_SOCKET_IFNAME is eth9: n2 has no eth9",
    ):
        assert text in done.stdout, done.stdout
    assert time.monotonic() - started < 60


def test_missing_host(hosts: Hosts, cluster_config: dict[str, Any], tmp_path: Path) -> None:
    """If a host does not exist, an error soon names the missing rank. Rank 0 waits for 10 s instead of 25."""
    config = write_config(tmp_path, cluster_config)
    (tmp_path / "hostfile").write_text("n1 slots=1\nn3 slots=1\n")
    (tmp_path / "impatient.py").write_text(
        "import functools\nimport sys\nfrom megatape.commands.cli.main import main\n"
        "from megatape.tools.cluster.preflight import preflight\n"
        "timeouts = preflight.Timeouts(arrival=10.0)\n"
        "preflight.preflight = functools.partial(preflight.preflight, timeouts=timeouts)\n"
        "sys.exit(main(['preflight', *sys.argv[1:]]))\n"
    )
    started = time.monotonic()
    command = ("deepspeed", "--hostfile", str(tmp_path / "hostfile"), "--launcher", "pdsh", str(tmp_path / "impatient.py"))
    done = hosts.run("n1", *command, "--config", str(config))
    assert done.returncode != 0
    assert "1 of 2 ranks did not arrive within 10 s: 1; ranks arrived from n1" in done.stdout, done.stdout
    assert "n3: ssh: Could not resolve hostname n3" in done.stdout
    assert time.monotonic() - started < 60


def start_ranks(config: Path, *second: str, freezes: bool = False) -> "list[subprocess.Popen[str]]":
    """Start two ranks on this machine. They wait for answers for 8 s instead of 20.

    Args:
        config: File of the configuration.
        second: Further words of the second rank's command.
        freezes: Whether the second rank freezes once the ranks have joined the store.
    """
    code = (
        "import functools, os, signal, sys; "
        "from megatape.tools.cluster.preflight import preflight; from megatape.commands.cli.main import main; "
        "timeouts = preflight.Timeouts(answer=8.0, file=1.0); "
        "preflight.preflight = functools.partial(preflight.preflight, timeouts=timeouts); "
    )
    frozen = "preflight.inspect_host = lambda *_: os.kill(os.getpid(), signal.SIGSTOP); " if freezes else ""
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        subprocess.Popen(
            [sys.executable, "-c", f"{code}{own}sys.exit(main(sys.argv[1:]))", "preflight", "--config", str(config), *words],
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
        for rank, (own, words) in enumerate([("", ()), (frozen, second)])
    ]


def test_another_folder_on_a_rank(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A file reveals the other folder, although the collectives work."""
    config = write_config(tmp_path, raw_config)
    ranks = start_ranks(config, "--set", f"run.directory={tmp_path}/elsewhere")
    first, _ = [rank.communicate(timeout=scaled(120))[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [2, 2], first
    for text in ("configurations differ", "all-to-all      correct", "NOT SHARED", "a file of the main rank is not visible on"):
        assert text in first, first


def test_an_error_of_the_user_is_no_fault_of_the_network(raw_config: dict[str, Any], tmp_path: Path) -> None:
    config = write_config(tmp_path, raw_config)
    done = subprocess.run(
        [sys.executable, "-m", "megatape", "preflight", "--config", str(config)],
        env=os.environ | {"MEGATAPE_THREADS": "0"},
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=scaled(120),
    )
    text = done.stdout + done.stderr
    assert done.returncode == 2, text
    assert "MEGATAPE_THREADS is '0': give at least 1" in text, text
    assert "cannot exchange data" not in text, text


@pytest.mark.slow
def test_frozen_rank(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The other ranks still report."""
    first, frozen = start_ranks(write_config(tmp_path, raw_config), freezes=True)
    try:
        text, _ = first.communicate(timeout=scaled(120))
    finally:
        frozen.kill()
        frozen.communicate()
    assert first.returncode == 2, text
    assert "cannot exchange data" in text, text
    assert "rank 1 (): no answer within 8 s" in text, text
    assert "not compared" in text, text
    assert "not checked" in text, text
    assert "differ" not in text, text
    assert "nan" not in text, text


@pytest.mark.slow
def test_rank_0_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raw_config: dict[str, Any]
) -> None:
    timeouts = Timeouts(name=0.0, arrival=2.0)
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "9",
    }.items():
        monkeypatch.setenv(name, value)
    assert preflight(parse_config(raw_config, "test"), timeouts) == 2
    assert "rank 0 did not answer at 127.0.0.1 port 9 within 2 s" in capsys.readouterr().err
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    assert preflight(parse_config(raw_config, "test"), timeouts) == 2
    assert "error: MASTER_ADDR is 'no-such-host.invalid', which " in capsys.readouterr().err
