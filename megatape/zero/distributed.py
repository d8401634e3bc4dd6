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

from megatape.distributed.launch.launchers import is_on_one_host
from megatape.distributed.launch.network import NAME_TIMEOUT, check_rendezvous, export_interface, export_loopback
from megatape.distributed.launch.store import open_store
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
    name_timeout: float = NAME_TIMEOUT,
) -> torch.device:
    """Join the process group of all ranks and return this rank's device.

    Args:
        topology: All ranks.
        timeout: Timeout for the rendezvous and for collectives in all groups.
        tensor_size: Tensor-parallel ranks.
        store: Rendezvous store, by default a new one.
        name_timeout: Seconds to wait until the main host's name can be resolved.

    Raises:
        UserError: The rendezvous address is invalid, see `check_rendezvous`.
    """
    check_rendezvous(name_timeout)
    warning = version_warning(deepspeed.__version__)
    if warning is not None and topology.is_main:
        LOG.warning(warning)
    deepspeed.utils.logger.setLevel(logging.WARNING)
    # DeepSpeed calls collectives by deprecated names, and torch would warn on every rank.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    disable_compiled_ops()
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":
        _prepare_cpu(topology)
    else:
        _prepare_gpu(topology, tensor_size)
    if topology.world_size > topology.local_size:
        export_interface(os.environ["MASTER_ADDR"])
    elif topology.world_size > 1 and is_on_one_host(topology):
        export_loopback()
    # Groups made later, including DeepSpeed's, use this default. torch's own would be 10 or 30 minutes.
    set_default_timeout(timeout)
    backend = accelerator.communication_backend_name()
    # The calling program may have joined before.
    if not dist.is_initialized():
        _join(topology, backend, store or open_store(topology, timeout), timeout)
    deepspeed.init_distributed(backend, timeout=timeout, verbose=False)
    return local_device()


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


def _join(topology: Topology, backend: str, store: dist.Store, timeout: timedelta) -> None:
    """Create the process group of all ranks. DeepSpeed itself would open a store on all network interfaces."""
    device = None
    # Bind a group of several GPUs to the device, like DeepSpeed.
    if get_accelerator().device_name() != "cpu" and topology.world_size > 1:
        device = local_device()
    dist.init_process_group(
        backend,
        timeout=timeout,
        world_size=topology.world_size,
        rank=topology.rank,
        store=store,
        device_id=device,
    )


def local_device() -> torch.device:
    """Return this rank's device. Call it after joining the process group."""
    return torch.device(get_accelerator().current_device_name())


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
    folder = private_folder(is_first=topology.local_rank == 0)
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


def shut_down() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()
