"""Measured training steps, which correct the estimate."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatape.accounting.gpus import Gpu, find_gpu
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import Config, ModelConfig, parse_config
from megatape.errors import MissingPath, UserError
from megatape.tools.planner.step_time.device import device_seconds
from megatape.tools.planner.step_time.efficiency import middle
from megatape.utils.files.json_lines import read_lines


@dataclass(frozen=True)
class MeasuredStep:
    """A measured training step on one GPU.

    Attributes:
        config: Configuration of the step.
        gpu: The GPU.
        seconds: Measured seconds.
        estimated: Middle of the estimated range in seconds.
    """

    config: Config
    gpu: Gpu
    seconds: float
    estimated: float

    @property
    def correction(self) -> float:
        """Measured time divided by the estimate."""
        return self.seconds / self.estimated


def nearest_step(results: Path, config: Config) -> MeasuredStep:
    """Return the measured step with the run's encoding and training.fp8 whose model size is nearest, the fastest if several.

    Args:
        results: results.jsonl of a benchmark.
        config: Configuration of the run.

    Raises:
        FileNotFoundError: The file is missing.
        UserError: The file has no such step, or its GPU is unknown.
    """
    if not results.is_file():
        raise MissingPath(f"no measurements at {results}: give the results.jsonl of megatape benchmark gpu")
    entries = {str(entry.get("key")): entry for _, entry in read_lines(results)}
    device = entries.get("machine/device", {}).get("name")
    if device is None:
        raise UserError(f"{results} names no device: give the results.jsonl of megatape benchmark gpu")
    gpu = find_gpu(str(device))
    if gpu is None:
        raise UserError(f"{results} was measured on {device}, whose rates are not known: add it to megatape/accounting/gpus.py")

    own_size = _log_size(config.model)
    ranked = []
    for seconds, step_config in _steps_like(config, entries, results):
        distance = abs(_log_size(step_config.model) - own_size)
        ranked.append((distance, seconds, step_config))
    if not ranked:
        raise UserError(
            f"{results} holds no training step with encoding {config.model.encoding} and training.fp8 {config.training.fp8}: "
            "measure some"
        )
    _, seconds, nearest = min(ranked, key=lambda step: step[:2])
    estimated = sum(middle(device_seconds(TrainingLayout.from_config(nearest, 1), gpu)))
    return MeasuredStep(nearest, gpu, seconds, estimated)


def _steps_like(config: Config, entries: Mapping[str, dict[str, Any]], source: Path) -> Iterator[tuple[float, Config]]:
    """Yield seconds and configuration of each measured step with a run's encoding and training.fp8."""
    for key, entry in entries.items():
        is_step = key.startswith(("step ", "fp8/"))
        if not is_step or "config" not in entry:
            continue
        step_config = parse_config(entry["config"], str(source))
        has_encoding = step_config.model.encoding == config.model.encoding
        has_precision = step_config.training.fp8 == config.training.fp8
        if has_encoding and has_precision:
            yield float(entry["seconds"]), step_config


def _log_size(model: ModelConfig) -> float:
    """Return the logarithm of the parameter count."""
    return math.log(count_parameters(model).total)
