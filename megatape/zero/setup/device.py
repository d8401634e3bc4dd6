"""This rank's device: selecting a GPU, or the number of threads on a CPU, and the environment that libraries read."""

import logging
import os
import socket

import torch
from deepspeed.accelerator import get_accelerator

from megatape.distributed.topology import Topology
from megatape.errors import UserError
from megatape.utils.files.private_folder import private_folder
from megatape.utils.text.units import plural

LOG = logging.getLogger(__name__)


def prepare_device(topology: Topology, tensor_size: int) -> None:
    """Select this rank's device, and set the environment for training on it. Call it before joining the process group.

    Args:
        topology: All ranks.
        tensor_size: Tensor-parallel ranks.

    Raises:
        UserError: The host shows fewer GPUs than it has ranks, or MEGATAPE_THREADS is not a number of threads.
    """
    if get_accelerator().device_name() == "cpu":
        _prepare_cpu(topology)
    else:
        _prepare_gpu(topology, tensor_size)


def local_device() -> torch.device:
    """Return this rank's device. Call it after joining the process group."""
    return torch.device(get_accelerator().current_device_name())


def _prepare_cpu(topology: Topology) -> None:
    """Set the number of threads and the environment for training on a CPU."""
    torch.set_num_threads(num_threads(topology))
    os.environ |= _compiler_caches(topology)
    # Without LOCAL_SIZE, DeepSpeed would start `numactl` to count NUMA nodes at each stage-3 reduction.
    os.environ.setdefault("LOCAL_SIZE", str(topology.local_size))


def _prepare_gpu(topology: Topology, tensor_size: int) -> None:
    """Select this rank's GPU and set the environment for training on it."""
    _set_environment(topology, tensor_size)
    # Otherwise cuBLAS would add partial sums in bfloat16 when splitting a bfloat16 product along its sum.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    accelerator = get_accelerator()
    device = device_number(topology, accelerator.device_count())
    accelerator.set_device(device)
    # DeepSpeed reads the device number from these variables. The numbers differ if the scheduler shows each rank only its own
    # GPU.
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"):
        if name in os.environ:
            os.environ[name] = str(device)


def _set_environment(topology: Topology, tensor_size: int) -> None:
    """Set missing environment variables for training on GPUs, before CUDA, NCCL and Triton read them. Rank 0 logs them."""
    defaults = {
        # Collectives in several groups are in flight at the same time.
        "NCCL_LAUNCH_ORDER_IMPLICIT": "1",
        # Stage 3 gathers tensors of many sizes, which would fragment memory.
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        # Entries in the flight recorder, which names the hanging collective.
        "TORCH_FR_BUFFER_SIZE": "2000",
    }
    if tensor_size > 1:
        # With one queue, kernels start in call order, so a gather starts before the overlapping product.
        defaults["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    defaults |= _compiler_caches(topology)
    unset = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ |= unset
    if unset and topology.rank == 0:
        settings = [f"{name}={value}" for name, value in unset.items()]
        LOG.info("environment: %s", " ".join(settings))


def _compiler_caches(topology: Topology) -> dict[str, str]:
    """Return missing variables for compiler caches, with folders on a local disk: home folders are on file servers."""
    names = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    unset = {variable: name for variable, name in names.items() if variable not in os.environ}
    if not unset:
        return {}
    folder = private_folder("kernels are compiled again at each start", is_first=topology.local_rank == 0)
    if folder is None:
        return {}
    return {variable: str(folder / name) for variable, name in unset.items()}


def num_threads(topology: Topology) -> int:
    """Return this rank's share of the cores, or MEGATAPE_THREADS.

    Launchers default to one thread or all cores per process, which seldom suits a shared machine.

    Raises:
        UserError: MEGATAPE_THREADS is not a number of threads.
    """
    threads = os.environ.get("MEGATAPE_THREADS")
    if threads is None:
        return max(1, len(os.sched_getaffinity(0)) // topology.local_size)
    if not threads.isdecimal() or int(threads) < 1:
        raise UserError(f"MEGATAPE_THREADS is {threads!r}: give at least 1, or unset it")
    return int(threads)


def device_number(topology: Topology, visible: int) -> int:
    """Return the index of this rank's GPU: the local rank, or 0 if the scheduler shows each rank only its own GPU.

    Args:
        topology: All ranks.
        visible: Number of visible GPUs.

    Raises:
        UserError: The host shows fewer GPUs than it has ranks.
    """
    if visible == 1:
        return 0
    if topology.local_rank >= visible:
        raise UserError(
            f"{plural(topology.local_size, 'rank')} on {socket.gethostname()}, which shows {plural(visible, 'GPU')}: start one "
            "rank for each GPU, or check CUDA_VISIBLE_DEVICES"
        )
    return topology.local_rank
