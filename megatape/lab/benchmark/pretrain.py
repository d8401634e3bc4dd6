"""`megatape pretrain` as users start it: its step beside the bare one of the same model.

The difference from the bare step is what DeepSpeed, data and logging cost.
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

from megatape.accounting.memory import plan_memory
from megatape.config import Config, parse_config
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.sources.source import Source
from megatape.lab.benchmark.models import compute_precision, shapes
from megatape.lab.benchmark.raw_step import RawStep
from megatape.lab.benchmark.results import Result, Results, rows_of, titled
from megatape.lab.benchmark.worker import Bench
from megatape.lab.encodings import BASELINE
from megatape.lab.processes import child, finish
from megatape.run_folder import RunFolder, read_steps
from megatape.utils.python_process import python_command
from megatape.utils.units import format_bytes, format_milliseconds

# steps, and those at their beginning that are not timed
STEPS = 30
WARM_UP = 10
STEPS_TINY = 3
WARM_UP_TINY = 1
VOCABULARY = 512  # of the data; the model keeps its own
# of Python's own source
FILES = 150
FILES_TINY = 40


def pretrain(bench: Bench) -> None:
    """Train 30 steps of each encoding at stages 2 and 3, and compiled, which stage 3 does not allow."""
    ways = [(2, False), (2, True), (3, False)]
    with TemporaryDirectory() as folder:
        trials = Trials(bench, Path(folder))
        for encoding, (stage, compiled) in [("tape", ways[0])] if bench.tiny else product(("tape", BASELINE), ways):
            key = f"155m/{encoding}/ZeRO {stage}{', compiled' * compiled}"
            bench.measure(key, partial(trials.run, encoding, stage, compiled))


class Trials:
    """Runs on one data directory, in a temporary folder."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.timer = bench.timer
        self.tiny = bench.tiny
        self.folder = folder
        self.shape = shapes(bench.tiny)["155m"]
        self.steps, self.warm_up = (STEPS_TINY, WARM_UP_TINY) if bench.tiny else (STEPS, WARM_UP)

    def run(self, encoding: str, stage: int, compiled: bool) -> Result:
        """Seconds of a step in a run, and bare; peak bytes of the run, and planned."""
        device = self.timer.device
        config = self._config(encoding, stage, compiled)
        bare = RawStep(config, device)
        bare_seconds = self.timer.median(bare)
        del bare
        if device.type == "cuda":
            torch.cuda.empty_cache()  # the run is another process on the same GPU
        self._train(config)
        metrics = list(read_steps(RunFolder(Path(config.run.directory)).metrics))
        shutil.rmtree(config.run.directory)  # a checkpoint of gigabytes
        seconds = statistics.median(entry["seconds"] for entry in metrics[self.warm_up :])
        return {
            "seconds": seconds,
            "bare seconds": bare_seconds,
            "ratio": seconds / bare_seconds,
            "peak bytes": metrics[-1]["peak_memory"],
            "planned bytes": plan_memory(config, 1, device.type == "cuda").device_total,
        }

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
        """Raises ChildProcessError with the run's last lines."""
        file = self.folder / "config.json"
        file.write_text(config.model_dump_json())
        environment = {}
        if self.timer.device.type == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        command = python_command("megatape.commands.main", "pretrain", "--config", str(file))
        with child(command, env=environment, start_new_session=False) as process:  # it ends with this process
            finish(process, sys.stdout)

    @cached_property
    def data(self) -> Path:
        """Source text of this Python, prepared."""
        source = Source("python", max_documents=FILES_TINY if self.tiny else FILES)
        output = self.folder / "data"
        prepare(PreparationOptions(source, validation_share=0.2, tokenizer=None, vocab_size=VOCABULARY), output)
        return output


def table(results: Results) -> Iterator[str]:
    """A table with a row for each run."""
    rows = [
        [
            ", ".join(words),
            format_milliseconds(r["seconds"]),
            format_milliseconds(r["bare seconds"]),
            f"{r['ratio']:.2f}",
            format_bytes(r["peak bytes"]),
            format_bytes(r["planned bytes"]),
        ]
        for words, r in rows_of(results, "pretrain")
    ]
    yield from titled("megatape pretrain", ["", "ms a step", "bare, ms", "ratio", "peak", "planned"], rows)
