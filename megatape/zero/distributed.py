"""Joining and leaving the process group of all ranks, by DeepSpeed."""

import logging
import os
import socket
import warnings
from datetime import timedelta

import deepspeed
import deepspeed.ops
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.constants import default_pg_timeout

from megatape.runtime.network import export_interface
from megatape.runtime.topology import Topology


def initialize_distributed(topology: Topology, timeout: timedelta = default_pg_timeout) -> torch.device:
    """Join the process group of all ranks, whose collectives fail after `timeout`, and return this rank's device."""
    deepspeed.utils.logger.setLevel(logging.WARNING)
    # DeepSpeed calls collectives by names that torch renamed; on every rank, for every one.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    # DeepSpeed would compile a shared-memory operator on a CPU, which needs a C++ compiler; nothing here uses it.
    deepspeed.ops.__compatible_ops__ = {}
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":
        torch.set_num_threads(_threads(topology))
    else:
        accelerator.set_device(_device_number(topology, accelerator.device_count()))
    if topology.world_size > topology.local_size:
        export_interface(os.environ["MASTER_ADDR"])
    deepspeed.init_distributed(accelerator.communication_backend_name(), timeout=timeout, verbose=False)
    return torch.device(accelerator.current_device_name())


def _threads(topology: Topology) -> int:
    """This rank's share of the cores: a launcher's default of one thread (or of all cores) per process is seldom what a shared machine
    wants. Raises ValueError if MEGATAPE_THREADS is no number of threads."""
    given = os.environ.get("MEGATAPE_THREADS")
    if given is None:
        return max(1, len(os.sched_getaffinity(0)) // topology.local_size)
    if not given.isdecimal() or int(given) < 1:
        raise ValueError(f"MEGATAPE_THREADS is {given!r}: give a number of threads, at least 1, or unset it")
    return int(given)


def _device_number(topology: Topology, visible: int) -> int:
    """Which of the visible GPUs is this rank's: that of its local rank, or the only one if the scheduler shows each rank its own.

    Raises ValueError if there are too few."""
    if visible == 1:
        return 0
    if topology.local_rank >= visible:
        raise ValueError(
            f"{topology.local_size} ranks on {socket.gethostname()}, which shows {visible} GPUs: start one rank for each GPU, or check "
            "CUDA_VISIBLE_DEVICES"
        )
    return topology.local_rank


def shut_down() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()
