"""Decides whether a run records forward and backward pass as CUDA graphs (training.cuda_graphs)."""

from collections.abc import Callable

import torch

from megatape.config import Config
from megatape.errors import UserError
from megatape.utils.pytorch.recorder import CudaRecorder, Recorder
from megatape.zero.graph_limits import records_passes
from megatape.zero.passes.replays import Recording


def graph_recording(
    config: Config,
    world_size: int,
    device: torch.device,
    make_recorder: Callable[[], Recorder] | None = None,
) -> Recording | None:
    """Return how a run records its passes, or None if it does not.

    Args:
        config: Configuration of the run.
        world_size: Number of ranks.
        device: Device of this rank.
        make_recorder: Returns a recorder for the device. By default there is one for GPUs only.

    Raises:
        UserError: The configuration requires CUDA graphs, and the device has none. Raised on all ranks.
    """
    if not records_passes(config, world_size):
        return None
    is_required = config.training.cuda_graphs is True
    if make_recorder is None and device.type == "cuda":
        make_recorder = CudaRecorder
    if make_recorder is not None:
        return Recording(make_recorder, is_required)
    if is_required:
        error = UserError(f"training.cuda_graphs true needs a GPU, and this run is on a {device.type.upper()}: set it to auto")
        error.everywhere = True
        raise error
    return None
