"""A Slurm cluster on the hosts of this folder: the controller on head, a slurmd with four CPUs and two GPUs on each node.

The GPUs are device files that nothing opens. Slurm counts and assigns them, and the ranks compute on the CPU.
"""

import os
import stat
import subprocess
from pathlib import Path

from tests.helpers.cluster.hosts import NODES, Hosts
from tests.helpers.processes.waiting import wait_until

# Seconds between two questions to Slurm, each a process.
POLL_INTERVAL = 0.2
COMMANDS = ("/usr/sbin/munged", "/usr/sbin/slurmctld", "/usr/sbin/slurmd", "sbatch", "srun")

CONFIGURATION = """
ClusterName=test
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmdSpoolDir={folder}/%n/spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
TmpFS={folder}/%n/tmp
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
ReturnToService=2
SlurmdTimeout=10
MessageTimeout=5
KillWait=20
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=n[1-2] CPUs=4 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=n[1-2] MaxTime=INFINITE State=UP PriorityTier=2
"""


class Slurm:
    """A running cluster. It ends when its hosts end."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts = hosts
        self.folder = folder
        for name in ("munge", "state", *(f"{node}/{part}" for node in NODES for part in ("spool", "tmp"))):
            (folder / name).mkdir(parents=True)
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf")}
        (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder))
        for number in range(2):
            os.mknod(folder / f"gpu{number}", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
        munge = folder / "munge"
        munge.chmod(0o711)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o600)
        files = [f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")]
        hosts.start_daemon(
            "head", "munged", "/usr/sbin/munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *files
        )
        wait_until((munge / "socket").exists, "munged's socket", 20)
        hosts.start_daemon("head", "slurmctld", "/usr/sbin/slurmctld", "-D", "-i", variables=self.variables)
        for node in NODES:
            self.start_slurmd(node)
        self.wait_until_idle()

    def start_slurmd(self, node: str) -> None:
        self.hosts.start_daemon(node, "slurmd", "/usr/sbin/slurmd", "-D", "-N", node, variables=self.variables)

    def run(self, *command: str, timeout: float = 180) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node."""
        return self.hosts.run("head", *command, variables=self.variables, timeout=timeout)

    def state(self, job: str) -> str:
        """Return a job's state: PENDING, RUNNING, COMPLETED, CANCELLED ..."""
        shown = self.run("scontrol", "show", "job", job).stdout
        return shown.partition("JobState=")[2].partition(" ")[0]

    def wait_for_state(self, job: str, state: str, timeout: float = 180) -> None:
        wait_until(
            lambda: self.state(job) == state,
            f"job {job} {state}",
            timeout,
            details=lambda: self.explain(job),
            interval=POLL_INTERVAL,
        )

    def wait_until_idle(self) -> None:
        wait_until(self._is_idle, "idle nodes", 60, details=self.explain, interval=POLL_INTERVAL)

    def _is_idle(self) -> bool:
        shown = self.run("sinfo", "--noheader", "--partition=main", "--format=%T").stdout
        return shown.split() == ["idle"]

    def explain(self, job: str = "") -> str:
        """Return information to debug a failure."""
        logs = [self.folder / "slurmctld.log", *(self.folder / node / "slurmd.log" for node in NODES)]
        texts = [self.run("sinfo").stdout]
        if job:
            texts.append(self.run("scontrol", "show", "job", job).stdout)
        texts += [f"--- {path}\n{path.read_text()[-2000:]}" for path in logs if path.exists()]
        return "\n".join(texts)
