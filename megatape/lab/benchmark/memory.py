"""Resident memory of training processes, compared with the planner's estimate."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import product
from subprocess import PIPE

import psutil
import torch
from tqdm import tqdm

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory import plan_memory
from megatape.config import Config, parse_config
from megatape.distributed.launch.launchers import set_up_ranks
from megatape.distributed.launch.network import free_port
from megatape.distributed.mesh import Axis, make_mesh
from megatape.lab.benchmark.models import SHAPES
from megatape.lab.processes import child, finish
from megatape.model.build import build_model
from megatape.model.layout import Layout
from megatape.model.transformer import Transformer
from megatape.training.reporting.hardware import peak_memory
from megatape.training.startup.new_run_state import fresh_state
from megatape.utils.python_process import python_command
from megatape.utils.tables import markdown
from megatape.zero.distributed import initialize_distributed, shut_down
from megatape.zero.engine import Engine, Inputs
from megatape.zero.engine_options import engine_options
from megatape.zero.pass_result import GradientSums

STEPS = 4
# Each data-parallel rank has one sequence with 128 tokens.
SHAPE = replace(SHAPES["155m"], batch=1, length=128)
BUCKET_ELEMENTS = 5_000_000


@dataclass(frozen=True)
class Measured:
    """A rank's resident bytes, or the maximum over ranks, minus those before building the model.

    Attributes:
        initialized: Bytes after filling in weights, master weights and optimizer state.
        peak_initializing: Peak bytes until then.
        peak: Peak bytes.
    """

    initialized: int
    peak_initializing: int
    peak: int


@dataclass(frozen=True)
class Case:
    """A run to measure: ZeRO stage, ranks, tensor-parallel ranks and layers."""

    stage: int
    world_size: int
    tensor_size: int = 1
    num_layers: int = SHAPE.model.num_layers

    def config(self) -> Config:
        """Return the configuration, with one sequence per data-parallel rank and step."""
        shape = SHAPE.with_layers(self.num_layers)
        raw = shape.config("tape", "float32", steps=STEPS).model_dump()
        raw["model"]["max_positions"] = 4096
        raw["zero"]["stage"] = self.stage
        raw["zero"]["bucket_size"] = BUCKET_ELEMENTS
        raw["parallel"]["tp"] = self.tensor_size
        raw["training"]["global_batch_size"] = self.world_size // self.tensor_size
        return parse_config(raw, "benchmark")

    def planned_bytes(self) -> float:
        """Return the planner's estimate for a rank."""
        layout = TrainingLayout.from_config(self.config(), self.world_size)
        return plan_memory(layout, on_gpu=False).device_total


# Data-parallel ranks at each ZeRO stage, then tensor-parallel ranks.
CASES = (
    *(Case(stage, world_size) for stage, world_size in product((0, 1, 2, 3), (1, 2, 4))),
    *(Case(3, num_ranks, num_ranks) for num_ranks in (2, 4)),
)


def measure(case: Case) -> Measured:
    """Train with several processes, and return the maximum over ranks. Raises ChildProcessError if one fails."""
    world_size = case.world_size
    command = python_command("megatape.lab.benchmark.memory", case.config().model_dump_json())
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
    ranks = [Measured(**json.loads(output.splitlines()[-1])) for output in outputs]
    return Measured(
        initialized=max(measured.initialized for measured in ranks),
        peak_initializing=max(measured.peak_initializing for measured in ranks),
        peak=max(measured.peak for measured in ranks),
    )


def worker(config: Config) -> Measured:
    """Train on one rank. Returns its memory."""
    topology = set_up_ranks()
    initialize_distributed(topology)
    mesh = make_mesh(topology, {"tensor": config.parallel.tp})
    before = psutil.Process().memory_info().rss
    options = engine_options(config, topology.world_size)

    def build(tensor_axis: Axis) -> Transformer:
        return build_model(config.model, Layout(tensor_axis))

    engine = Engine(options, topology, mesh, build)
    engine.state.load(fresh_state(engine.state.parameters, config.model.init_std, config.training.seed), step=0)
    initialized = psutil.Process().memory_info().rss - before
    peak_initializing = peak_memory() - before
    length = config.data.sequence_length
    generator = torch.Generator().manual_seed(mesh["batch"].rank)
    tokens = torch.randint(0, config.model.vocab_size, (1, length + 1), generator=generator)
    inputs: Inputs = {"tokens": tokens[:, :-1], "position_ids": torch.arange(length)[None], "targets": tokens[:, 1:]}
    for _ in range(STEPS):
        result = engine.forward_backward([inputs], length * mesh["batch"].size)
        sums = GradientSums(*engine.sum_over_ranks(*result.sums))
        engine.update(1e-4, sums.loss, sums)
    shut_down()
    return Measured(initialized, peak_initializing, peak_memory() - before)


def report() -> Iterator[str]:
    """Measure every case, yielding paragraphs."""
    yield (
        "Resident memory per rank in MiB, 155M shape, float32, N 128, one sequence per data-parallel rank, buckets of 5 M "
        "elements"
    )
    yield table({case: measure(case) for case in tqdm(CASES, leave=False)})


def table(results: dict[Case, Measured]) -> str:
    """Return a table of measured and planned memory."""
    rows = []
    for case, measured in results.items():
        sizes = (measured.peak_initializing, measured.initialized, measured.peak, case.planned_bytes())
        ranks = f"{case.world_size // case.tensor_size} x {case.tensor_size}"
        rows.append([str(case.stage), ranks, *(f"{size / 2**20:.0f}" for size in sizes)])
    header = ["ZeRO stage", "data x tensor", "peak of initialization", "initialized", "peak of training", "planned"]
    return markdown(header, rows)


def main(words: list[str]) -> None:
    """Train on one rank, and print its memory as JSON. `words`: configuration as JSON."""
    config = parse_config(json.loads(words[0]), "benchmark")
    sys.stdout.write(json.dumps(asdict(worker(config))))
