"""Finds weights and optimizer state that change between two updates, as after a memory fault.

Replicas show a fault of one rank. From ZeRO stage 1 on, most state has no replica, but nothing may change it between two
updates. So a rank compares it with itself.
"""

import torch
from torch import Tensor

from megatape.distributed.topology import name_ranks
from megatape.distributed.values.exchange import gather_values
from megatape.errors import TrainingDiverged, flag
from megatape.zero.state.checksums import checksum
from megatape.zero.state.kinds import WEIGHT
from megatape.zero.state.zero_state import ZeroState

# Kind of the weights with which passes compute, besides the kinds of ZeroState.
COMPUTE_WEIGHT = "compute weight"


class MemoryCheck:
    """Checks after passes that nothing has changed since the last update.

    Each check reads this rank's weights and optimizer state twice: after an update, and after the next passes.

    Args:
        state: Engine state.
        interval: Number of updates from one check to the next. 1 checks all, 0 none.
    """

    def __init__(self, state: ZeroState, interval: int) -> None:
        self._state = state
        self._interval = interval
        self._num_updates = 0
        # Checksums after the last update, by kind and name; empty if it is not checked.
        self._recorded: dict[tuple[str, str], Tensor] = {}
        self._num_loads = 0
        # Whether each recorded checksum differed in the last check, bool [checksums] on the device, or None without a check.
        self._changed: Tensor | None = None

    def after_update(self) -> None:
        """Record checksums, if it is time. Call it after each update, even a skipped one."""
        self._num_updates += 1
        self._recorded = {}
        if self._interval and self._num_updates % self._interval == 0:
            self._recorded = self._checksums()
            self._num_loads = self._state.num_loads

    def num_changed(self) -> Tensor | float:
        """Return the number of this rank's tensors that have changed since the update, a tensor on the device or 0."""
        self._changed = None
        if not self._is_recorded:
            return 0.0
        before = torch.stack(list(self._recorded.values()))
        now = torch.stack(list(self._checksums().values()))
        self._changed = before != now
        return self._changed.sum()

    def fail(self) -> None:
        """Name the ranks whose memory has changed, according to the last `num_changed`. Collective.

        Memory is not read again: after a transient fault, a second read could equal the recorded checksums.

        Raises:
            TrainingDiverged: Always, on all ranks.
        """
        changed = []
        if self._changed is not None:
            for (kind, name), has_changed in zip(self._recorded, self._changed.tolist(), strict=True):
                if has_changed:
                    changed.append(f"{kind} of {name}")
        changed_by_rank = gather_values(changed, self._state.topology)
        ranks = [rank for rank, names in enumerate(changed_by_rank) if names]
        first = changed_by_rank[ranks[0]][0]
        raise TrainingDiverged(
            f"the {first} on {name_ranks(ranks)} has changed between two updates, so the memory of that host or device is at "
            "fault. The weights in memory are corrupted; check the hosts of these ranks and continue with "
            f"{flag('resume')} auto"
        )

    @property
    def _is_recorded(self) -> bool:
        """Whether there are checksums, and no checkpoint was loaded since."""
        return bool(self._recorded) and self._num_loads == self._state.num_loads

    def _checksums(self) -> dict[tuple[str, str], Tensor]:
        """Return the checksum of each of this rank's tensors, on the device, by kind and name."""
        state = self._state
        checksums = {}
        for kind, names in state.names_by_kind.items():
            for name in names:
                checksums[kind, name] = checksum(state.piece(name, kind).values).to(state.device)
        for name in state.names_by_kind[WEIGHT]:
            checksums[COMPUTE_WEIGHT, name] = checksum(state.compute_weight(name)).to(state.device)
        return checksums
