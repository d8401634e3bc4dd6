"""Settings of the launches of TAPE's update, by kernel, size and GPU."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from megatape.encodings.kernels.update_kernels import update_backward_kernel, update_kernel
from megatape.nn.kernels import devices
from megatape.nn.kernels.launch import Kernel

# Largest padded head size and inner size of small updates.
SMALL_SIZE = 64
# Shared memory of a program besides the buffers of its pipeline, rounded up from compiled kernels.
OTHER_SHARED_BYTES = 16 * 1024


@dataclass(frozen=True)
class Settings:
    """Settings of a launch.

    Attributes:
        rows: Rows of a tile, at least the padded number of channels.
        warps: Warps per program.
        stages: Number of pipeline stages. With more than one, programs load the next tiles while they compute a tile.
        programs_per_processor: Number of programs for each multiprocessor, which runs them at the same time.
    """

    rows: int
    warps: int
    stages: int
    programs_per_processor: int


# Settings by kernel and whether the update is small, by registers, spills and shared memory of compiled kernels. The tensor
# cores of compute capabilities 9.0 and 10.0 multiply 64 rows at once.
SETTINGS = {
    (update_kernel, True): Settings(rows=64, warps=4, stages=3, programs_per_processor=3),
    (update_kernel, False): Settings(rows=64, warps=4, stages=2, programs_per_processor=2),
    (update_backward_kernel, True): Settings(rows=64, warps=4, stages=2, programs_per_processor=2),
    (update_backward_kernel, False): Settings(rows=64, warps=8, stages=2, programs_per_processor=1),
}
SETTINGS_BELOW_H100 = {
    (update_kernel, True): Settings(rows=32, warps=4, stages=3, programs_per_processor=3),
    (update_kernel, False): Settings(rows=32, warps=4, stages=2, programs_per_processor=2),
    (update_backward_kernel, True): Settings(rows=32, warps=4, stages=2, programs_per_processor=2),
    (update_backward_kernel, False): Settings(rows=32, warps=8, stages=2, programs_per_processor=1),
}


def select_settings(kernel: Kernel, sizes: Mapping[str, int], active: Tensor) -> Settings:
    """Return the settings of a launch.

    Args:
        kernel: One of the two kernels.
        sizes: Sizes among the arguments of both kernels.
        active: Any tensor of the launch, for its dtype and device.
    """
    available_bytes = devices.shared_memory(active.device)
    is_small = sizes["SIZE_P"] <= SMALL_SIZE and sizes["INNER_P"] <= SMALL_SIZE
    if available_bytes < devices.H100_SHARED_BYTES:
        settings = SETTINGS_BELOW_H100[kernel, is_small]
    else:
        settings = SETTINGS[kernel, is_small]
    if active.dtype == torch.float32:
        # Each product consists of three, which need many registers.
        return replace(settings, rows=32, warps=8, stages=1)
    num_tensors = 1 + sizes["GROUP"]  # D, and U of each head in a group
    if kernel is update_backward_kernel:
        num_tensors += 1  # dD'
    stage_bytes = num_tensors * settings.rows * sizes["SIZE_P"] * active.itemsize
    if settings.stages * stage_bytes + OTHER_SHARED_BYTES > available_bytes:
        return replace(settings, stages=1)
    return settings


def num_tiles(sizes: Mapping[str, int], rows: int) -> int:
    """Return the number of tiles. rows: Rows of a tile."""
    tokens_per_tile = rows // sizes["CHANNELS_P"]
    return triton.cdiv(sizes["tokens"], tokens_per_tile)


def num_programs(kernel: Kernel, sizes: Mapping[str, int], active: Tensor) -> int:
    """Return the number of programs, at most one for each tile. See `select_settings` for the arguments."""
    settings = select_settings(kernel, sizes, active)
    num_running = settings.programs_per_processor * devices.num_multiprocessors(active.device)
    return min(num_running, num_tiles(sizes, settings.rows))
