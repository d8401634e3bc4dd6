"""Several hosts on one machine: network namespaces joined by a bridge, each with its own name, addresses and ssh daemon.

    head 10.77.0.1          the login node: holds the bridge, starts jobs
    n1   10.77.0.11, n2 10.77.0.12      compute nodes

They share the file system. Nothing outside the namespaces changes: host names and ssh settings are mounted over /etc for
their processes only, and processes left at the end are killed.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.helpers.processes.load import scaled
from tests.helpers.processes.workers import ROOT

NODES = {"n1": "10.77.0.11", "n2": "10.77.0.12"}
HEAD = "10.77.0.1"
COMMANDS = ("ip", "nsenter", "unshare", "mount", "ssh", "ssh-keygen", "/usr/sbin/sshd", "pdsh", "mpirun")


def missing(*more: str) -> str:
    """Return the reason preventing these hosts from being set up here, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [command for command in (*COMMANDS, *more) if shutil.which(command, path=environment()["PATH"]) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (.ci/run has the Debian packages)"
    probe = subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True)
    return f"no namespaces here: {probe.stderr.strip()}" if probe.returncode else ""


class Hosts:
    """Context manager starting and stopping the hosts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix = f"megatape-{os.getpid()}"
        self.daemons: list[subprocess.Popen[str]] = []
        self._write_files()

    def __enter__(self) -> Self:
        try:
            for host in ("head", *NODES):
                _call("ip", "netns", "add", self._namespace(host))
                self._ip("head" if host == "head" else host, "link", "set", "lo", "up")
            self._ip("head", "link", "add", "br0", "type", "bridge")
            self._ip("head", "addr", "add", f"{HEAD}/24", "dev", "br0")
            self._ip("head", "link", "set", "br0", "up")
            for host, address in NODES.items():
                peer = ("peer", "name", "eth0", "netns", self._namespace(host))
                self._ip("head", "link", "add", f"to-{host}", "type", "veth", *peer)
                self._ip("head", "link", "set", f"to-{host}", "master", "br0", "up")
                self._ip(host, "addr", "add", f"{address}/24", "dev", "eth0")
                self._ip(host, "link", "set", "eth0", "up")
                self._ip(host, "route", "add", "default", "via", HEAD)
            for host in NODES:
                self.start_sshd(host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def run(self, host: str, *command: str, timeout: float = 120, **settings: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on a host and wait; kill it after `timeout` seconds. settings: cwd, variables (added environment)."""
        process = self.start(host, *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **settings)
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise AssertionError(f"on {host}: {' '.join(command)}: killed after {timeout:.0f} s\n{output[-6000:]}") from None
        return subprocess.CompletedProcess(command, process.returncode, output, "")

    def start(
        self, host: str, *command: str, variables: dict[str, str] | None = None, **settings: Any
    ) -> subprocess.Popen[str]:
        """Start a command on a host, in its own process group."""
        files = {f"hosts-{host}": "hosts", "nsswitch.conf": "nsswitch.conf", "ssh_config": "ssh/ssh_config"}
        mounts = " && ".join(f"mount --bind {self.folder / name} /etc/{place}" for name, place in files.items())
        script = f'hostname {host} && {mounts} && exec "$@"'
        entered = [
            "nsenter",
            f"--net=/run/netns/{self._namespace(host)}",
            "unshare",
            "--uts",
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
        ]
        return subprocess.Popen(
            [*entered, *command],
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            env=environment() | (variables or {}),
            **{"cwd": ROOT, **settings},
        )

    def start_daemon(self, host: str, name: str, *command: str, **settings: Any) -> subprocess.Popen[str]:
        """Start a command running until the end, writing its output to NAME-HOST.log."""
        with (self.folder / f"{name}-{host}.log").open("w") as log:
            process = self.start(host, *command, stdout=log, stderr=subprocess.STDOUT, **settings)
        self.daemons.append(process)
        return process

    def start_sshd(self, host: str) -> None:
        self.start_daemon(host, "sshd", "/usr/sbin/sshd", "-D", "-e", "-f", str(self.folder / "sshd_config"))

    def processes(self, host: str) -> list[int]:
        """Return the ids of all processes on a host."""
        command = ["ip", "netns", "pids", self._namespace(host)]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=scaled(20))
        return [int(number) for number in listed.stdout.split()]

    def kill(self, host: str) -> None:
        """Kill everything on a host at once, like a power cut."""
        for _ in range(20):
            numbers = self.processes(host)
            for number in numbers:
                try:
                    os.kill(number, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if not numbers:
                return
            time.sleep(0.1)
        raise AssertionError(f"processes {numbers} on {host} cannot be killed")

    def close(self) -> None:
        for host in (*NODES, "head"):
            if Path(f"/run/netns/{self._namespace(host)}").exists():
                self.kill(host)
                _call("ip", "netns", "del", self._namespace(host))
        for process in self.daemons:
            process.wait(timeout=scaled(20))

    def _namespace(self, host: str) -> str:
        return f"{self.prefix}-{host}"

    def _ip(self, host: str, *arguments: str) -> None:
        _call("ip", "-n", self._namespace(host), *arguments)

    def _write_files(self) -> None:
        """Write host names, settings of the ssh client and daemon, and keys."""
        addresses = {"localhost": "127.0.0.1", "head": HEAD} | NODES
        for host in ("head", *NODES):
            names = dict(addresses)
            if host in NODES:
                # Debian's installer maps a node's name to 127.0.1.1, an address unreachable from other hosts.
                names[host] = "127.0.1.1"
            lines = [f"{address} {name}" for name, address in names.items()]
            (self.folder / f"hosts-{host}").write_text("\n".join(lines) + "\n")
        # There is no name server: looking up an address would take several five-second timeouts.
        (self.folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
        key = self.folder / "key"
        host_key = self.folder / "host_key"
        for path in (key, host_key):
            _call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))
        client = {
            "IdentityFile": key,
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "BatchMode": "yes",
            "ConnectTimeout": 5,
        }
        daemon = {
            "HostKey": host_key,
            "AuthorizedKeysFile": f"{key}.pub",
            "StrictModes": "no",
            "UsePAM": "no",
            "PidFile": "none",
            "PermitRootLogin": "yes",
            "MaxStartups": "100",
        }
        for name, settings in (("ssh_config", client), ("sshd_config", daemon)):
            (self.folder / name).write_text("".join(f"{option} {value}\n" for option, value in settings.items()))
        Path("/run/sshd").mkdir(exist_ok=True)  # the daemon requires it; Debian creates it when the service starts


def environment() -> dict[str, str]:
    """Return a user's shell environment: our commands, the project, one thread per process, and no rank variables."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}{os.pathsep}/usr/sbin:/sbin"
    return inherited | {"OMP_NUM_THREADS": "1", "MEGATAPE_THREADS": "1", "PYTHONPATH": str(ROOT), "PATH": path}


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(30))
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
