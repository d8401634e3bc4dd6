"""`megatape pretrain` as users start it, beside the bare step of the same model: what DeepSpeed, data and logging cost."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from megatape.benchmark.bare import BareStep
from megatape.benchmark.child import Bench, ending
from megatape.benchmark.clock import clock_of, median
from megatape.benchmark.journal import Result
from megatape.benchmark.shapes import shapes
from megatape.config import Config, parse_config
from megatape.data.prepare.command import prepare
from megatape.data.prepare.corpus import Corpus
from megatape.data.sources.source import Source
from megatape.plan.memory import plan_memory
from megatape.plan.trace import run_pass
from megatape.run_folder import RunFolder, read_metrics
from megatape.study.efficiency import BASELINE, compute_dtype

STEPS, WARM_UP = 30, 10  # steps, and those at their beginning that are not timed
STEPS_TINY, WARM_UP_TINY = 3, 1
VOCABULARY = 512  # of the data; the model keeps its own
FILES, CHARACTERS = 150, 20_000  # of Python's own source, and of each file
FILES_TINY, CHARACTERS_TINY = 40, 2_000


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
        self.clock, self.tiny, self.folder = clock_of(bench), bench.tiny, folder
        self.shape = shapes(bench.tiny)["155m"]
        self.steps, self.warm_up = (STEPS_TINY, WARM_UP_TINY) if bench.tiny else (STEPS, WARM_UP)

    def run(self, encoding: str, stage: int, compiled: bool) -> Result:
        """Seconds of a step in a run, and bare; peak bytes of the run, and planned."""
        device = self.clock.device
        bare = BareStep(self.shape, encoding, device, compute_dtype(device), compiled=compiled)
        taken = self.clock.times({"bare": bare})["bare"]
        del bare
        if device.type == "cuda":
            torch.cuda.empty_cache()  # the run is another process on the same GPU
        config = self._config(encoding, stage, compiled)
        self._train(config)
        metrics = [json.loads(line) for line in read_metrics(RunFolder(Path(config.run.directory)).metrics).values()]
        shutil.rmtree(config.run.directory)  # a checkpoint of gigabytes
        seconds = statistics.median(entry["seconds"] for entry in metrics[self.warm_up :])
        return {
            "seconds": seconds,
            "bare seconds": median(taken),
            "ratio": seconds / median(taken),
            "peak bytes": metrics[-1]["peak_memory"],
            "planned bytes": plan_memory(config, 1, run_pass(config), device.type == "cuda").device_total,
        }

    def _config(self, encoding: str, stage: int, compiled: bool) -> Config:
        precision = str(compute_dtype(self.clock.device)).removeprefix("torch.")
        raw = self.shape.config(encoding, precision).model_dump()
        raw["run"]["directory"] = str(self.folder / f"{encoding} {stage}")
        raw["data"]["path"] = str(self.data)
        raw["training"] |= {"steps": self.steps, "compile": compiled}
        raw["evaluation"] |= {"interval": self.steps, "samples": self.shape.batch}
        raw["checkpoint"]["interval"] = self.steps
        raw["zero"]["stage"] = stage
        return parse_config(raw, "benchmark")

    def _train(self, config: Config) -> None:
        """Raises RuntimeError with the run's last lines."""
        file = self.folder / "config.json"
        file.write_text(config.model_dump_json())
        environment = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if self.clock.device.type == "cpu" else {})
        command = [sys.executable, "-m", "megatape", "pretrain", "--config", str(file)]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
        sys.stdout.write(f"{ended.stdout}\n{ended.stderr}\n")  # to the log of this child, which shows no lines of the library
        if ended.returncode:
            raise RuntimeError(ending(ended.stderr))

    @cached_property
    def data(self) -> Path:
        """Source text of this Python, prepared."""
        files, characters = (FILES_TINY, CHARACTERS_TINY) if self.tiny else (FILES, CHARACTERS)
        texts = self.folder / "texts"
        texts.mkdir()
        for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:files]:
            (texts / f"{file.stem}.txt").write_text(file.read_text(errors="ignore")[:characters])
        source, output = Source("text", (str(texts),)), self.folder / "data"
        prepare(Corpus(source, validation_share=0.2, tokenizer=None, vocab_size=VOCABULARY), output)
        return output
