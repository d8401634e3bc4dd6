"""Steps of `megatape pretrain` as users start it, compared with the same model's bare step.

The difference is what DeepSpeed, data, logging and launching cost. The bare step is timed with its launches, and as a CUDA
graph, whose time does not depend on the host.
"""

import gc
import shutil
import statistics
import sys
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import torch
from pydantic import Field

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.rank_memory import plan_memory
from megatape.config import Config, parse_config
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.sources.source import Source
from megatape.lab.benchmark.figures.cells import ratio_cell
from megatape.lab.benchmark.figures.measurement import Times
from megatape.lab.benchmark.figures.utilization import step_flops, utilization
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.parts.raw_step import RawStep
from megatape.lab.benchmark.gpu.results import Results
from megatape.lab.benchmark.gpu.tables import label, measurements, titled
from megatape.lab.benchmark.models.shapes import compute_precision, shapes
from megatape.lab.processes import child, finish
from megatape.run_folder import RunFolder, read_steps
from megatape.training.reporting.hardware import peak_flops
from megatape.utils.processes.python_process import python_command
from megatape.utils.text.units import format_bytes, format_milliseconds

# Number of steps per run, and of those at its beginning that are not timed.
STEPS = 30
WARM_UP_STEPS = 10
TINY_STEPS = 3
TINY_WARM_UP_STEPS = 1
# Vocabulary size of the data, which need no large one. The model keeps its own vocabulary size.
VOCAB_SIZE = 512
# Number of documents, which are source files that come with Python.
FILES = 150
TINY_FILES = 40


# Start of the names of this module's parts.
PART = "pretrain"


class PretrainMode(NamedTuple):
    """A way to train. Values of training.compile, and whether passes are CUDA graphs."""

    compiled: bool = False
    with_graphs: bool = False

    def __str__(self) -> str:
        names = []
        if self.compiled:
            names.append("compiled")
        if self.with_graphs:
            names.append("graphs")
        return ", ".join(names) or "eager"


EAGER = PretrainMode()
COMPILED = PretrainMode(compiled=True)
FASTEST = PretrainMode(compiled=True, with_graphs=True)


class PretrainResult(Times):
    """Step times compared with the bare step, and the run's measured and planned peak memory.

    Attributes:
        bare_seconds: Seconds of the bare step.
        captured_seconds: Seconds of the bare step as a CUDA graph, None on a CPU.
        captured_ratio: Seconds over captured_seconds.
        tokens_per_second: Tokens per second.
        mfu: Model FLOPs utilization, if the device's peak is known.
        peak_bytes: Peak memory of the run.
        planned_bytes: The planner's estimate of peak_bytes.
    """

    bare_seconds: float
    captured_seconds: float | None = None
    captured_ratio: float | None = None
    tokens_per_second: float | None = Field(None, alias="tokens/s")
    mfu: float | None = Field(None, alias="MFU")
    peak_bytes: int | float
    planned_bytes: int | float


class BareTimes(NamedTuple):
    """Seconds of the bare step, and as a CUDA graph, or None on a CPU."""

    launched: float
    captured: float | None


def measure(bench: Bench, name: str, stage: str) -> None:
    """Train TAPE with a shape at a ZeRO stage, in each mode that the stage supports."""
    with TemporaryDirectory() as folder:
        runs = PretrainRuns(bench, Path(folder), name, int(stage))
        for mode in _modes(name, int(stage), bench.tiny):
            bench.measure((name, "tape", f"ZeRO {stage}, {mode}"), partial(runs.measure, mode))


def _modes(name: str, stage: int, tiny: bool) -> list[PretrainMode]:
    """Return the modes to measure. Stage 3 does not support graphs; stage 1 differs little from stage 2."""
    # Tiny runs do not compile, because that would take longer than all their steps.
    if stage == 3 and tiny:
        return [EAGER]
    if stage == 3:
        return [COMPILED, EAGER]
    if tiny:
        return [EAGER, PretrainMode(with_graphs=True)]
    if stage == 1:
        return [FASTEST]
    if name == "155m":
        return [FASTEST, EAGER, COMPILED, PretrainMode(with_graphs=True)]
    return [FASTEST, EAGER, COMPILED]


class PretrainRuns:
    """Runs of a shape at a ZeRO stage, which share a data directory in a temporary folder."""

    def __init__(self, bench: Bench, folder: Path, name: str, stage: int) -> None:
        self.timer = bench.timer
        self.tiny = bench.tiny
        self.folder = folder
        self.shape = shapes(bench.tiny)[name]
        self.stage = stage
        self.steps = STEPS
        self.warm_up = WARM_UP_STEPS
        if bench.tiny:
            self.steps = TINY_STEPS
            self.warm_up = TINY_WARM_UP_STEPS
        # Times of the bare step, by whether it is compiled.
        self._bare: dict[bool, BareTimes] = {}

    def measure(self, mode: PretrainMode) -> PretrainResult:
        """Time the bare step, then train and read the metrics."""
        device = self.timer.device
        config = self._config(mode)
        bare = self._bare_times(config)
        self._train(config)
        folder = RunFolder(Path(config.run.directory))
        metrics = list(read_steps(folder.metrics))
        # Checkpoints take gigabytes.
        shutil.rmtree(folder.directory)
        seconds = statistics.median(entry["seconds"] for entry in metrics[self.warm_up :])
        captured_ratio = None
        if bare.captured is not None:
            captured_ratio = seconds / bare.captured
        mfu = None
        peak = peak_flops(config.training.precision)
        if peak:
            mfu = utilization(step_flops(config.model, self.shape.batch, self.shape.length), seconds, peak)
        layout = TrainingLayout.from_config(config, 1)
        return PretrainResult(
            seconds=seconds,
            bare_seconds=bare.launched,
            ratio=seconds / bare.launched,
            captured_seconds=bare.captured,
            captured_ratio=captured_ratio,
            tokens_per_second=self.shape.batch * self.shape.length / seconds,
            mfu=mfu,
            peak_bytes=metrics[-1]["peak_memory"],
            planned_bytes=plan_memory(layout, device.type == "cuda").device_total,
        )

    def _bare_times(self, config: Config) -> BareTimes:
        """Return the times of the bare step, which is timed once eager and once compiled."""
        compiled = config.training.compile
        if compiled not in self._bare:
            self._bare[compiled] = self._time_bare_step(config)
        return self._bare[compiled]

    def _time_bare_step(self, config: Config) -> BareTimes:
        timer = self.timer
        step = RawStep(config, timer.device)
        launched = timer.median(step)
        if timer.device.type != "cuda":
            return BareTimes(launched, None)
        captured = timer.median(step.captured())
        # Leave the memory to the run, another process on the same GPU.
        del step
        gc.collect()
        torch.cuda.empty_cache()
        return BareTimes(launched, captured)

    def _config(self, mode: PretrainMode) -> Config:
        precision = compute_precision(self.timer.device)
        cuda_graphs: Literal["auto"] | bool = mode.with_graphs
        if mode.with_graphs and self.timer.device.type == "cpu":
            # A CPU has no CUDA graphs, and `auto` runs without them.
            cuda_graphs = "auto"
        raw = self.shape.config(
            "tape",
            precision,
            steps=self.steps,
            compile=mode.compiled,
            cuda_graphs=cuda_graphs,
        ).model_dump()
        raw["run"]["directory"] = str(self.folder / str(mode))
        raw["data"]["path"] = str(self.data)
        raw["evaluation"] |= {"interval": self.steps, "samples": self.shape.batch}
        raw["checkpoint"]["interval"] = self.steps
        raw["zero"]["stage"] = self.stage
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
        num_files = TINY_FILES if self.tiny else FILES
        source = Source("python", max_documents=num_files)
        output = self.folder / "data"
        prepare(PreparationOptions(source, validation_share=0.2, tokenizer=None, vocab_size=VOCAB_SIZE), output)
        return output


def table(results: Results) -> Iterator[str]:
    """Yield a table with a row per run."""
    rows = []
    for part in dict.fromkeys(key.part for key in results):
        if part.split()[0] != PART:
            continue
        for name, result in measurements(results, part, label, PretrainResult):
            rows.append([name, *_cells(result)])
    header = [
        "",
        "ms per step",
        "tokens/s",
        "MFU",
        "bare, ms",
        "ratio",
        "bare as a CUDA graph, ms",
        "ratio",
        "peak",
        "planned",
    ]
    yield from titled("megatape pretrain", header, rows)


def _cells(result: PretrainResult) -> list[str]:
    tokens = ""
    if result.tokens_per_second is not None:
        tokens = f"{result.tokens_per_second:,.0f}"
    mfu = ""
    if result.mfu is not None:
        mfu = f"{result.mfu:.1%}"
    captured = ""
    captured_ratio = ""
    if result.captured_seconds is not None and result.captured_ratio is not None:
        captured = format_milliseconds(result.captured_seconds)
        captured_ratio = ratio_cell(result.captured_ratio)
    return [
        format_milliseconds(result.seconds),
        tokens,
        mfu,
        format_milliseconds(result.bare_seconds),
        ratio_cell(result.ratio),
        captured,
        captured_ratio,
        format_bytes(result.peak_bytes),
        format_bytes(result.planned_bytes),
    ]
