"""Check of the order of samples when a run resumes."""

from pathlib import Path
from typing import Any

from megatape.data.training.order import SampleOrder
from megatape.errors import UserError


def check_order(origin: Path, state: dict[str, Any], order: SampleOrder) -> None:
    """Check that the order of samples is that of the run's last step before a checkpoint.

    Args:
        origin: Folder of the checkpoint.
        state: State of the checkpoint.
        order: Order of the samples that follow.

    Raises:
        UserError: The order has other samples in that step.
    """
    last = state.get("last_step")
    if not last:  # written by an earlier version
        return
    found = order.digest(range(last["first"], last["last"] + 1))
    if found != last["digest"]:
        raise UserError(
            f"{origin}: samples {last['first']:,} to {last['last']:,}, of its last step, had the digest {last['digest']}; this "
            f"version of MegaTAPE would take others there ({found}), so the run would see some samples twice and some never: "
            "continue with the version that wrote the checkpoint"
        )
