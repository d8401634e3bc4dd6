"""Launcher of ranks on this machine, for `megatape supervise --ranks`.

Unlike this launcher, `deepspeed` and torchrun import torch before they start a rank, which delays each restart by seconds. With
standby processes, a restart doesn't import torch and DeepSpeed at all.
"""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from megatape.distributed.launch.network import free_port
from megatape.imports import file_hashes
from megatape.run_folder import RunFolder
from megatape.software import source_hash, versions
from megatape.tools.cluster.supervise.first_step import FirstStep
from megatape.tools.cluster.supervise.local_ranks import LocalRanks
from megatape.tools.cluster.supervise.rank_process import RankProcess

LOG = logging.getLogger(__name__)


class LocalLauncher:
    """Starts the ranks of a run, again and again. As a context manager, ends its standby processes.

    Processes belong to a version of code and configuration. If either has changed since a standby process was started, the
    process is discarded, and the rank gets a new one.

    Args:
        command: Command line of a rank.
        num_ranks: Number of ranks.
        config: Configuration file.
        has_standby: Whether to keep a standby process for each rank.
        folder: Run directory.
    """

    def __init__(
        self,
        command: Sequence[str],
        num_ranks: int,
        config: Path,
        has_standby: bool,
        folder: RunFolder,
    ) -> None:
        self._command = command
        self._num_ranks = num_ranks
        self._config = config
        self._has_standby = has_standby
        self._folder = folder
        self._standby: list[RankProcess] = []
        # Versions of code and configuration when the standby processes were started.
        self._versions: dict[str, str] = {}
        self._first_step: FirstStep | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._discard_standby()
        if self._first_step is not None:
            self._first_step.stop()

    def start(self) -> LocalRanks:
        """Start the ranks, in standby processes if there are any."""
        self._discard_outdated()
        missing = self._num_ranks - len(self._standby)
        if missing:
            self._add_processes(missing)
        processes = self._standby
        self._standby = []
        shared = {
            "WORLD_SIZE": str(self._num_ranks),
            "LOCAL_WORLD_SIZE": str(self._num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        for rank, process in enumerate(processes):
            process.become(shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        if not self._has_standby:
            return LocalRanks(processes)
        if self._first_step is not None:
            self._first_step.stop()
        self._first_step = FirstStep(self._folder.metrics)
        return LocalRanks(processes, while_running=self._prepare_next_start)

    def _prepare_next_start(self) -> None:
        """Start standby processes after the first step, which their imports would delay. LocalRanks calls it repeatedly."""
        assert self._first_step is not None
        if self._first_step.is_made and not self._standby:
            self._add_processes(self._num_ranks)

    def _add_processes(self, number: int) -> None:
        """Start processes that wait for a rank."""
        # Take the versions first, so that a change during the imports is noticed.
        self._versions = self._present_versions()
        for _ in range(number):
            self._standby.append(RankProcess(self._command))

    def _discard_outdated(self) -> None:
        """Discard standby processes that have ended, or all of them if code or configuration have changed."""
        if not self._standby:
            return
        present = self._present_versions()
        names = {**self._versions, **present}
        changed = [name for name in names if present.get(name) != self._versions.get(name)]
        if changed:
            LOG.warning("supervise: %s changed: the standby processes are replaced", ", ".join(changed))
            self._discard_standby()
        waiting = []
        for process in self._standby:
            if process.status() is None:
                waiting.append(process)
            else:
                LOG.warning("supervise: standby process %d has ended with status %s", process.pid, process.status())
                process.discard()
        self._standby = waiting

    def _discard_standby(self) -> None:
        for process in self._standby:
            process.discard()
        self._standby = []

    def _present_versions(self) -> dict[str, str]:
        """Return the versions on which a rank's imports and configuration depend, by name for messages."""
        configuration = ""
        with suppress(OSError):
            configuration = hashlib.sha256(self._config.read_bytes()).hexdigest()
        versions_by_name = {
            f"the configuration {self._config}": configuration,
            "the code": source_hash(),
            "Python, torch or DeepSpeed": versions(),
        }
        for name, value in file_hashes().items():
            versions_by_name[f"the module {name}"] = value
        return versions_by_name
