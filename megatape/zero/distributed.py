"""Joining and leaving the process group of all ranks, through DeepSpeed."""

import logging
import os
import socket
import warnings
from datetime import timedelta

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.constants import default_pg_timeout

from megatape.distributed.launchers import is_on_one_host
from megatape.distributed.network import check_rendezvous, export_interface, export_loopback
from megatape.distributed.store import open_store
from megatape.distributed.topology import Topology
from megatape.errors import UserError
from megatape.utils.private_folder import private_folder
from megatape.utils.torch_internals import set_default_timeout
from megatape.utils.units import plural
from megatape.zero.internals import disable_compiled_ops, version_warning

LOG = logging.getLogger(__name__)


def initialize_distributed(
    topology: Topology,
    timeout: timedelta = default_pg_timeout,
    tensor_size: int = 1,
    store: dist.Store | None = None,
) -> torch.device:
    """Join the process group of all ranks and return this rank's device.

    Args:
        topology: all ranks.
        timeout: after which the meeting and collectives fail, those of all groups.
        tensor_size: T, tensor-parallel ranks.
        store: store of the rendezvous, by default a new one.

    Raises:
        UserError: as `check_rendezvous` does.
    """
    check_rendezvous()
    warning = version_warning(deepspeed.__version__)
    if warning and topology.is_main:
        LOG.warning(warning)
    deepspeed.utils.logger.setLevel(logging.WARNING)
    # DeepSpeed calls collectives by their old names, for which torch warns on every rank.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    disable_compiled_ops()
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":
        torch.set_num_threads(_threads(topology))
        os.environ |= _compiler_caches(topology)
        # Where its launcher has not set it, DeepSpeed starts `numactl` to count NUMA nodes, at each reduction of stage 3.
        os.environ.setdefault("LOCAL_SIZE", str(topology.local_size))
    else:
        _set_environment(topology, tensor_size)
        # Products of bfloat16 that cuBLAS divides along their sum would add the parts in bfloat16.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        device = _device_number(topology, accelerator.device_count())
        accelerator.set_device(device)
        # DeepSpeed takes these for the number of the device. They differ where the scheduler shows each rank its own GPU only.
        os.environ |= dict.fromkeys({"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"} & os.environ.keys(), str(device))
    if topology.world_size > topology.local_size:
        export_interface(os.environ["MASTER_ADDR"])
    elif topology.world_size > 1 and is_on_one_host(topology):
        export_loopback()
    # Groups made later, those of DeepSpeed among them, take these: torch would give them 10 or 30 minutes.
    set_default_timeout(timeout)
    backend = accelerator.communication_backend_name()
    if not dist.is_initialized():  # unless the calling program has done it
        _join(topology, backend, store or open_store(topology, timeout), timeout)
    deepspeed.init_distributed(backend, timeout=timeout, verbose=False)
    return own_device()


def _join(topology: Topology, backend: str, store: dist.Store, timeout: timedelta) -> None:
    """Create the process group of all ranks for DeepSpeed, which itself would open a store on all network interfaces."""
    device = None
    # DeepSpeed binds the group of several GPUs to the device as well.
    if get_accelerator().device_name() != "cpu" and topology.world_size > 1:
        device = own_device()
    dist.init_process_group(
        backend, timeout=timeout, world_size=topology.world_size, rank=topology.rank, store=store, device_id=device
    )


def own_device() -> torch.device:
    """The device that this rank computes on, once it has joined the process group."""
    return torch.device(get_accelerator().current_device_name())


def _set_environment(topology: Topology, tensor_size: int) -> None:
    """Set what suits training on GPUs where it is not set, before CUDA, NCCL and Triton read it. Rank 0 prints it."""
    defaults = {
        "NCCL_LAUNCH_ORDER_IMPLICIT": "1",  # collectives of several groups are in flight at a time
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",  # stage 3 gathers weights of many sizes
        "TORCH_FR_BUFFER_SIZE": "2000",  # of the flight recorder, which names the collective of a hang
    }
    if tensor_size > 1:  # a gather starts before the product that it overlaps with, in the order of the calls
        defaults["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    defaults |= _compiler_caches(topology)
    unset = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ |= unset
    if unset and topology.rank == 0:
        LOG.info("environment: %s", " ".join(f"{name}={value}" for name, value in unset.items()))


def _compiler_caches(topology: Topology) -> dict[str, str]:
    """Return the unset variables of compiler caches, with folders on a local disk: home folders are on file servers."""
    names = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    unset = {variable: name for variable, name in names.items() if variable not in os.environ}
    if not unset:
        return {}
    folder = private_folder(is_first=topology.local_rank == 0)
    if folder is None:
        return {}
    return {variable: str(folder / name) for variable, name in unset.items()}


def _threads(topology: Topology) -> int:
    """This rank's share of the cores.

    The default of launchers, one thread or all cores per process, seldom suits a shared machine. Raises UserError if
    MEGATAPE_THREADS is not a number of threads.
    """
    threads = os.environ.get("MEGATAPE_THREADS")
    if threads is None:
        return max(1, len(os.sched_getaffinity(0)) // topology.local_size)
    if not threads.isdecimal() or int(threads) < 1:
        raise UserError(f"MEGATAPE_THREADS is {threads!r}: give at least 1, or unset it")
    return int(threads)


def _device_number(topology: Topology, visible: int) -> int:
    """The index of this rank's GPU among the visible ones.

    It is the local rank, or 0 if the scheduler shows each rank only its own.

    Raises UserError if there are too few.
    """
    if visible == 1:
        return 0
    if topology.local_rank >= visible:
        raise UserError(
            f"{plural(topology.local_size, 'rank')} on {socket.gethostname()}, which shows {plural(visible, 'GPU')}: start one "
            "rank for each GPU, or check CUDA_VISIBLE_DEVICES"
        )
    return topology.local_rank


def shut_down() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()
