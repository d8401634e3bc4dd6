"""Joining and leaving the process group of all ranks, through DeepSpeed."""

import logging
import os
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
from megatape.utils.pytorch.torch_internals import set_default_timeout
from megatape.zero.setup.device import local_device, prepare_device
from megatape.zero.setup.internals import disable_compiled_ops, version_warning

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
        UserError: The rendezvous address is invalid (see `check_rendezvous`), or the device (see `prepare_device`).
    """
    check_rendezvous(name_timeout)
    warning = version_warning(deepspeed.__version__)
    if warning is not None and topology.is_main:
        LOG.warning(warning)
    deepspeed.utils.logger.setLevel(logging.WARNING)
    # DeepSpeed calls collectives by deprecated names, and torch would warn on every rank.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    disable_compiled_ops()
    prepare_device(topology, tensor_size)
    if topology.world_size > topology.local_size:
        export_interface(os.environ["MASTER_ADDR"])
    elif topology.world_size > 1 and is_on_one_host(topology):
        export_loopback()
    # Groups made later, including DeepSpeed's, use this default. torch's own would be 10 or 30 minutes.
    set_default_timeout(timeout)
    backend = get_accelerator().communication_backend_name()
    # The calling program may have joined before.
    if not dist.is_initialized():
        _join(topology, backend, store or open_store(topology, timeout), timeout)
    deepspeed.init_distributed(backend, timeout=timeout, verbose=False)
    return local_device()


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


def shut_down() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()
