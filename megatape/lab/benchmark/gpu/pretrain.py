"""Steps of `megatape pretrain` as users start it, compared with the same model's bare step.

The difference is what DeepSpeed, data and logging cost.
"""

import shutil
import statistics
import sys
from collections.abc import Iterator
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory import plan_memory
from megatape.config import Config, parse_config
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.sources.source import Source
from megatape.lab.benchmark.cells import ratio_cell
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.raw_step import RawStep
from megatape.lab.benchmark.gpu.results import Results, Times
from megatape.lab.benchmark.gpu.tables import label, measurements, titled
from megatape.lab.benchmark.models import compute_precision, shapes
from megatape.lab.encodings import BASELINE
from megatape.lab.processes import child, finish
from megatape.run_folder import RunFolder, read_steps
from megatape.utils.python_process import python_command
from megatape.utils.units import format_bytes, format_milliseconds

# Steps per run, and untimed steps at the beginning.
STEPS = 30
WARM_UP_STEPS = 10
TINY_STEPS = 3
TINY_WARM_UP_STEPS = 1
# The data need no large vocabulary. The model keeps its own size.
VOCAB_SIZE = 512
# The documents are source files that come with Python.
FILES = 150
TINY_FILES = 40


class PretrainResult(Times):
    """Step times compared with the bare step, and the run's measured and planned peak memory."""

    bare_seconds: float
    peak_bytes: int | float
    planned_bytes: int | float


def measure(bench: Bench) -> None:
    """Train with each encoding at stages 2 and 3, and compiled at stage 2. Stage 3 does not support compilation."""
    encodings = ["tape", BASELINE]
    modes = [(2, False), (2, True), (3, False)]
    if bench.tiny:
        encodings = ["tape"]
        modes = [(2, False)]
    with TemporaryDirectory() as folder:
        runs = Runs(bench, Path(folder))
        for encoding, (stage, compiled) in product(encodings, modes):
            mode = f"ZeRO {stage}"
            if compiled:
                mode += ", compiled"
            bench.measure(("155m", encoding, mode), partial(runs.measure, encoding, stage, compiled))


class Runs:
    """Runs that share a data directory in a temporary folder."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.timer = bench.timer
        self.tiny = bench.tiny
        self.folder = folder
        self.shape = shapes(bench.tiny)["155m"]
        self.steps = STEPS
        self.warm_up = WARM_UP_STEPS
        if bench.tiny:
            self.steps = TINY_STEPS
            self.warm_up = TINY_WARM_UP_STEPS

    def measure(self, encoding: str, stage: int, compiled: bool) -> PretrainResult:
        """Time the bare step, then train and read the metrics."""
        device = self.timer.device
        config = self._config(encoding, stage, compiled)
        bare = RawStep(config, device)
        bare_seconds = self.timer.median(bare)
        del bare
        if device.type == "cuda":
            # Leave the memory to the run, another process on the same GPU.
            torch.cuda.empty_cache()
        self._train(config)
        folder = RunFolder(Path(config.run.directory))
        metrics = list(read_steps(folder.metrics))
        # Checkpoints take gigabytes.
        shutil.rmtree(folder.directory)
        seconds = statistics.median(entry["seconds"] for entry in metrics[self.warm_up :])
        layout = TrainingLayout.from_config(config, 1)
        return PretrainResult(
            seconds=seconds,
            bare_seconds=bare_seconds,
            ratio=seconds / bare_seconds,
            peak_bytes=metrics[-1]["peak_memory"],
            planned_bytes=plan_memory(layout, device.type == "cuda").device_total,
        )

    def _config(self, encoding: str, stage: int, compiled: bool) -> Config:
        precision = compute_precision(self.timer.device)
        raw = self.shape.config(encoding, precision, steps=self.steps, compile=compiled).model_dump()
        raw["run"]["directory"] = str(self.folder / f"{encoding} {stage}")
        raw["data"]["path"] = str(self.data)
        raw["evaluation"] |= {"interval": self.steps, "samples": self.shape.batch}
        raw["checkpoint"]["interval"] = self.steps
        raw["zero"]["stage"] = stage
        return parse_config(raw, "benchmark")

    def _train(self, config: Config) -> None:
        """Train in another process. Raises ChildProcessError with its last lines if it fails."""
        file = self.folder / "config.json"
        file.write_text(config.model_dump_json())
        environment = {}
        if self.timer.device.type == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        command = python_command("megatape.commands.cli.main", "pretrain", "--config", str(file))
        # The run joins our process group, so that it ends with this process.
        with child(command, env=environment, start_new_session=False) as process:
            finish(process, sys.stdout)

    @cached_property
    def data(self) -> Path:
        """Data directory with this Python's source files."""
        num_files = FILES
        if self.tiny:
            num_files = TINY_FILES
        source = Source("python", max_documents=num_files)
        output = self.folder / "data"
        prepare(PreparationOptions(source, validation_share=0.2, tokenizer=None, vocab_size=VOCAB_SIZE), output)
        return output


def table(results: Results) -> Iterator[str]:
    """Yield a table with a row per run."""
    rows = []
    for name, result in measurements(results, "pretrain", label, PretrainResult):
        rows.append(
            [
                name,
                format_milliseconds(result.seconds),
                format_milliseconds(result.bare_seconds),
                ratio_cell(result.ratio),
                format_bytes(result.peak_bytes),
                format_bytes(result.planned_bytes),
            ]
        )
    yield from titled("megatape pretrain", ["", "ms a step", "bare, ms", "ratio", "peak", "planned"], rows)
