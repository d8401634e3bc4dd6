"""deepspeed's pdsh launcher and mpirun on two hosts have the losses of one process on one host."""

import sys
from pathlib import Path
from typing import Any

from tests.helpers.cluster.cluster_runs import check_losses, write_config
from tests.helpers.cluster.hosts import Hosts

PRETRAIN = ("launch/pretrain.py", "--config")


def test_hostfile_tensor_ranks_inside(
    hosts: Hosts, cluster_config: dict[str, Any], one_host: list[float], tmp_path: Path
) -> None:
    """Two ranks on each host train with T = 2 inside hosts, data parallelism across hosts, and stage 3.

    The interface is set in .deepspeed_env, the only variables that DeepSpeed passes on.
    """
    config = write_config(tmp_path, cluster_config, parallel={"tp": 2}, zero={"stage": 3})
    (tmp_path / "hostfile").write_text("n1 slots=2\nn2 slots=2\n")
    (tmp_path / "env").write_text("GLOO_SOCKET_IFNAME=eth0\n")
    command = ("deepspeed", "--hostfile", str(tmp_path / "hostfile"), "--launcher", "pdsh", "--master_addr", "10.77.0.11")
    done = hosts.run("n1", *command, *PRETRAIN, str(config), variables={"DS_ENV_FILE": str(tmp_path / "env")})
    assert done.returncode == 0, done.stdout
    check_losses(tmp_path / "run", one_host)


def test_mpirun_tensor_ranks_across_data_ranks_inside(
    hosts: Hosts, cluster_config: dict[str, Any], one_host: list[float], tmp_path: Path
) -> None:
    """Ranks are assigned to hosts round-robin, so T = 2 spans hosts: 0 and 2 are on one host, 1 and 3 on the other."""
    config = write_config(tmp_path, cluster_config, parallel={"tp": 2}, zero={"stage": 3})
    command = ("mpirun", "--allow-run-as-root", "-np", "4", "--host", "n1:2,n2:2", "--map-by", "node", "-x", "PYTHONPATH")
    done = hosts.run("n1", *command, sys.executable, *PRETRAIN, str(config))
    assert done.returncode == 0, done.stdout
    check_losses(tmp_path / "run", one_host)
