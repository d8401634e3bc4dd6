"""Resident memory of training in real processes, beside the planner's estimate."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from subprocess import PIPE
from typing import Any

import psutil
import torch
from tqdm import tqdm

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory import plan_memory
from megatape.config import Config, parse_config
from megatape.distributed.launchers import discover
from megatape.distributed.mesh import make_mesh
from megatape.distributed.network import free_port
from megatape.lab.benchmark.models import SHAPES
from megatape.lab.processes import child, finish
from megatape.model.build import build_model
from megatape.training.reporting.hardware import peak_memory
from megatape.training.startup.initial_state import fresh_state
from megatape.utils.python_process import python_command
from megatape.utils.tables import markdown
from megatape.zero.distributed import initialize_distributed, shut_down
from megatape.zero.engine import Engine, Inputs
from megatape.zero.engine_options import engine_options

STEPS = 4


@dataclass(frozen=True)
class Measured:
    """Resident bytes of a rank, or the maximum over ranks, beyond those before a process builds anything.

    Attributes:
        initialized: Bytes after weights, master weights and optimizer state are filled in.
        peak_initializing: Peak bytes until then.
        peak: Peak bytes of the whole run.
    """

    initialized: int
    peak_initializing: int
    peak: int


def settings(world_size: int, changes: dict[str, Any]) -> Config:
    """Return the configuration of the 155M shape, with one sequence per data-parallel rank and step.

    Args:
        world_size: Number of ranks.
        changes: section.key -> value.
    """
    shape = replace(SHAPES["155m"], batch=1, length=128)
    raw = shape.config("tape", "float32", steps=STEPS).model_dump()
    defaults = {"model.max_positions": 4096, "zero.stage": 3, "zero.bucket_size": 5_000_000}
    for path, value in (defaults | changes).items():
        section, _, key = path.partition(".")
        raw[section][key] = value
    raw["training"]["global_batch_size"] = world_size // raw["parallel"]["tp"]
    return parse_config(raw, "benchmark")


def measure(world_size: int, changes: dict[str, Any]) -> Measured:
    """Train on several processes of this machine, and return the maximum over ranks.

    Args:
        world_size: Number of processes.
        changes: section.key -> value of the configuration.

    Raises:
        ChildProcessError: A process failed.
    """
    command = python_command("megatape.lab.benchmark.memory", settings(world_size, changes).model_dump_json())
    shared = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    with ExitStack() as stack:
        processes = []
        for rank in range(world_size):
            environment = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = stack.enter_context(child(command, env=environment, stderr=PIPE))
            processes.append(process)
        outputs = [finish(process) for process in processes]
    # Libraries may print before the last line.
    of_ranks = [Measured(**json.loads(output.splitlines()[-1])) for output in outputs]
    return Measured(
        initialized=max(measured.initialized for measured in of_ranks),
        peak_initializing=max(measured.peak_initializing for measured in of_ranks),
        peak=max(measured.peak for measured in of_ranks),
    )


def worker(config: Config) -> Measured:
    """Train on one rank and return its measurements."""
    topology = discover()
    initialize_distributed(topology)
    mesh = make_mesh(topology, {"tensor": config.parallel.tp})
    before = psutil.Process().memory_info().rss
    options = engine_options(config, topology.world_size)
    engine = Engine(options, topology, mesh, partial(build_model, config.model))
    engine.state.load(fresh_state(engine.state.parameters, config.model.init_std, config.training.seed), step=0)
    initialized = psutil.Process().memory_info().rss - before
    peak_initializing = peak_memory() - before
    length = config.data.sequence_length
    generator = torch.Generator().manual_seed(mesh["batch"].rank)
    tokens = torch.randint(0, config.model.vocab_size, (1, length + 1), generator=generator)
    inputs: Inputs = {"tokens": tokens[:, :-1], "position_ids": torch.arange(length)[None], "targets": tokens[:, 1:]}
    for _ in range(STEPS):
        gradients = engine.forward_backward([inputs], length * mesh["batch"].size)
        engine.update(1e-4, *engine.sum_over_ranks(gradients.loss, gradients.num_nonfinite, gradients.square))
    shut_down()
    return Measured(initialized, peak_initializing, peak_memory() - before)


def report() -> Iterator[str]:
    """Measure ZeRO stages and numbers of ranks, and yield the paragraphs of the report."""
    yield (
        "Resident memory per rank in MiB, 155M shape, float32, N 128, one sequence per data-parallel rank, buckets of 5 M "
        "elements"
    )
    # ZeRO stage, number of ranks and of tensor-parallel ranks.
    cases = [(stage, ranks, 1) for stage, ranks in product((0, 1, 2, 3), (1, 2, 4))]
    cases += [(3, ranks, ranks) for ranks in (2, 4)]
    rows = []
    for stage, world_size, tensor_size in tqdm(cases, leave=False):
        changes = {"zero.stage": stage, "parallel.tp": tensor_size}
        found = measure(world_size, changes)
        layout = TrainingLayout.from_config(settings(world_size, changes), world_size)
        planned = plan_memory(layout, on_gpu=False).device_total
        sizes = (found.peak_initializing, found.initialized, found.peak, planned)
        cells = [f"{size / 2**20:.0f}" for size in sizes]
        rows.append([str(stage), f"{world_size // tensor_size} x {tensor_size}", *cells])
    header = ["ZeRO stage", "data x tensor", "peak of initialization", "initialized", "peak of training", "planned"]
    yield markdown(header, rows)


def main(words: list[str]) -> None:
    """Train on one rank and print its measurements as JSON.

    Args:
        words: The configuration as JSON.
    """
    config = parse_config(json.loads(words[0]), "benchmark")
    sys.stdout.write(json.dumps(asdict(worker(config))))
