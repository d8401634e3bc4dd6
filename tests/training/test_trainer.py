"""Synchronization in a training step: numbers read from the device by the host, and collectives.

On a GPU each such read drains the queue of kernels. On a CPU there is nothing to drain, but the reads are the same.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import deepspeed
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import megatape
from megatape.config import parse_config
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.training.startup.build_trainer import build_trainer
from megatape.zero.setup import compiler_import
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_data import open_run_data

# Operators whose result the host waits for.
READS = {"_local_scalar_dense", "nonzero", "equal"}
# Reads calling no operator on a CPU
PYTHON_READS = {Tensor.tolist, Tensor.numpy, Tensor.cpu}
OURS, THEIRS = (str(Path(package.__file__ or "").parent) for package in (megatape, deepspeed))
WRAPPERS = (compiler_import.__file__, f"{THEIRS}/comm/", f"{THEIRS}/utils/")
# Exchanging activations, not checked here, and summing gradients, checked here
TENSOR_PARALLEL = (f"{OURS}/distributed/collectives.py", f"{OURS}/distributed/asynchronous.py")

# Our code sums replicated weights' gradients once, for any number of weights and micro-batches, and the status once.
EXCHANGE = {"sum_parts allreduce_": 1, "sum_over_ranks allreduce_": 1, "sum_over_ranks tolist": 1}
# DeepSpeed 0.19.8 sums gradients and the norm, and reads the norm to clip by it, once per parameter group at stage 2.
NORM = {"get_grad_norm_direct allreduce_", "_model_parallel_all_reduce allreduce_", "is_invalid_grad_norm _local_scalar_dense"}
# Stage -> waits in our code with their counts, and waits in DeepSpeed's code
STEPS: dict[int, tuple[dict[str, int], set[str]]] = {
    0: (EXCHANGE, {"allreduce_bucket allreduce_"}),
    1: (EXCHANGE | {"gradient_norm _local_scalar_dense": 1}, NORM | {"allreduce_bucket allreduce_"}),
    2: (EXCHANGE | {"gradient_norm _local_scalar_dense": 1}, NORM | {"allreduce_bucket allreduce_"}),
    3: (EXCHANGE | {"gradient_norm _local_scalar_dense": 1}, NORM | {"_torch_reduce_scatter_fn _reduce_scatter_base_"}),
}


class Waits(TorchFunctionMode):
    """Counts reads and collectives by calling function and operator."""

    def __init__(self) -> None:
        super().__init__()
        self.ours: Counter[str] = Counter()
        self.theirs: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PYTHON_READS:
            self.count(func.__name__)
        return func(*args, **(kwargs or {}))

    def count(self, name: str) -> None:
        frame: Any = sys._getframe(2)
        while not frame.f_code.co_filename.startswith((OURS, THEIRS)) or frame.f_code.co_filename.startswith(WRAPPERS):
            frame = frame.f_back
        found = f"{frame.f_code.co_name} {name}"
        if frame.f_code.co_filename.startswith(THEIRS):
            self.theirs.add(found)
        elif name == "allreduce_" or not frame.f_code.co_filename.startswith(TENSOR_PARALLEL):
            self.ours[found] += 1


class Operators(TorchDispatchMode):
    """Counts operators reading values or running collectives."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in READS or func.namespace == "c10d":
            self.waits.count(name)
        return func(*args, **(kwargs or {}))


def count_waits(raw: dict[str, Any], topology: Topology) -> list[Any]:
    """Return the reads and collectives in each of STEPS: ours with their numbers, and the names of DeepSpeed's."""
    counts = []
    for stage in STEPS:
        config = parse_config(raw | {"zero": {"stage": stage}, "run": {"directory": f"{raw['run']['directory']}/{stage}"}}, "")
        run = build_trainer(config, open_run_data(config), topology, Lease(RunFolder(Path(config.run.directory)).lease))
        if stage:
            held = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in run.engine.state.parameters.values())
            assert run.engine.deepspeed_engine.optimizer.reduce_bucket_size == held, "buckets fit the model"
        run.train_step()  # In the first step, counts have their own exchange.
        with Waits() as waits, Operators(waits):
            run.train_step()
        counts.append([waits.ours, sorted(waits.theirs)])
    return counts


def test_a_step_has_one_exchange_and_reads_two_numbers(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A step reads the loss, to decide whether to skip, and the norm, which DeepSpeed has already waited for.

    A step's four micro-batches share one sum of replicated weights' gradients over tensor-parallel ranks.
    """
    raw_config["parallel"] = {"tp": 2}
    raw_config["training"]["micro_batch_size"] = 2
    for results in run_workers("tests.training.test_trainer:count_waits", 2, raw_config, tmp_path / "workers"):
        assert results == [[ours, sorted(theirs)] for ours, theirs in STEPS.values()]
