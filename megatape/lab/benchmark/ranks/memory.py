"""Resident memory of training processes, compared with the planner's estimate."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

import psutil
import torch
from tqdm import tqdm

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.rank_memory import plan_memory
from megatape.config import Config, parse_config
from megatape.lab.benchmark.models.shapes import SHAPES
from megatape.lab.benchmark.ranks.rank_processes import (
    RANK_HEADER,
    RankLayout,
    build_engine,
    initialize,
    join_ranks,
    run_ranks,
    send_result,
)
from megatape.training.reporting.hardware import peak_memory
from megatape.utils.text.paragraphs import Show
from megatape.utils.text.tables import markdown
from megatape.zero.passes.pass_result import GradientSums
from megatape.zero.passes.recorded_passes import Inputs
from megatape.zero.setup.process_group import shut_down

# This module, whose `main` runs on each rank.
MODULE = "megatape.lab.benchmark.ranks.memory"
STEPS = 4
# Each data-parallel rank has one sequence with 128 tokens.
SHAPE = replace(SHAPES["155m"], batch=1, length=128)
BUCKET_ELEMENTS = 5_000_000


@dataclass(frozen=True)
class MeasuredMemory:
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
class MemoryCase:
    """A run to measure: its ranks and layers."""

    ranks: RankLayout
    num_layers: int = SHAPE.model.num_layers

    def config(self) -> Config:
        """Return the configuration, with one sequence per data-parallel rank and step."""
        shape = SHAPE.with_layers(self.num_layers)
        raw = shape.config("tape", "float32", steps=STEPS).model_dump()
        raw["model"]["max_positions"] = 4096
        raw["zero"]["stage"] = self.ranks.stage
        raw["zero"]["bucket_size"] = BUCKET_ELEMENTS
        raw["parallel"]["tp"] = self.ranks.tensor_size
        raw["training"]["global_batch_size"] = self.ranks.data_size
        return parse_config(raw, "benchmark")

    def planned_bytes(self) -> float:
        """Return the planner's estimate for a rank."""
        layout = TrainingLayout.from_config(self.config(), self.ranks.world_size)
        return plan_memory(layout, on_gpu=False).device_total


# Data-parallel ranks at each ZeRO stage, then tensor-parallel ranks.
CASES = (
    *(MemoryCase(RankLayout(stage, world_size)) for stage, world_size in product((0, 1, 2, 3), (1, 2, 4))),
    *(MemoryCase(RankLayout(3, num_ranks, num_ranks)) for num_ranks in (2, 4)),
)


def measure(case: MemoryCase) -> MeasuredMemory:
    """Train with several processes, and return the maximum over ranks. Raises ChildProcessError if one fails."""
    results = run_ranks(MODULE, [case.config().model_dump_json()], case.ranks.world_size)
    ranks = [MeasuredMemory(**result) for result in results]
    return MeasuredMemory(
        initialized=max(measured.initialized for measured in ranks),
        peak_initializing=max(measured.peak_initializing for measured in ranks),
        peak=max(measured.peak for measured in ranks),
    )


def worker(config: Config) -> MeasuredMemory:
    """Train on one rank. Returns its memory."""
    topology = join_ranks()
    before = psutil.Process().memory_info().rss
    engine, mesh = build_engine(config, topology)
    initialize(engine, config)
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
    return MeasuredMemory(initialized, peak_initializing, peak_memory() - before)


def report(show: Show) -> None:
    """Measure every case, and show a description and a table."""
    show(
        "Resident memory per rank in MiB, 155M shape, float32, N 128, one sequence per data-parallel rank, buckets of 5 M "
        "elements"
    )
    show(table({case: measure(case) for case in tqdm(CASES, leave=False)}))


def table(results: dict[MemoryCase, MeasuredMemory]) -> str:
    """Return a table of measured and planned memory."""
    rows = []
    for case, measured in results.items():
        sizes = (measured.peak_initializing, measured.initialized, measured.peak, case.planned_bytes())
        rows.append([*case.ranks.cells, *(f"{size / 2**20:.0f}" for size in sizes)])
    header = [*RANK_HEADER, "peak of initialization", "initialized", "peak of training", "planned"]
    return markdown(header, rows)


def main(words: Sequence[str]) -> None:
    """Train on one rank, and send its memory. `words`: configuration as JSON."""
    config = parse_config(json.loads(words[0]), "benchmark")
    send_result(asdict(worker(config)))
