"""Extends a pretrained model's context by several methods, on the same batches, and compares them with the base model.

OUT/import/                     the base in our terms, if it was a folder of transformers
OUT/lora/                       a run of `megatape pretrain`, with its log.txt
    outcome.json                its results
OUT/base/outcome.json           results of the base
OUT/finetune.md, finetune.png
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import JsonValue

from megatape.config import Config, load_config
from megatape.errors import UserError
from megatape.lab.names import parse_names
from megatape.lab.study.execution.measurement import Measurement
from megatape.lab.study.execution.run import Run
from megatape.lab.study.execution.study import Study
from megatape.lab.study.finetuning.base_model import Base, open_base
from megatape.lab.study.finetuning.measure import extended_lengths, measure_extended
from megatape.lab.study.finetuning.methods import BASE, METHODS, Settings, extension
from megatape.lab.study.finetuning.report import report
from megatape.lab.study.outcomes.checks import check_exportable, check_text
from megatape.lab.study.outcomes.outcome import Outcome
from megatape.run_folder import RunFolder

# Settings that have an option of their own.
OPTION_OF = {
    "data.path": "data",
    "data.sequence_length": "length",
    "training.steps": "steps",
    "run.directory": "out",
}


@dataclass(frozen=True)
class Request:
    """Choices of the user for one study of fine-tuning.

    Attributes:
        base: Folder of the base: a model of transformers or an import of one.
        data: Data directory.
        methods: Methods to compare, with commas.
        length: Tokens per sample and of the longest test. None for twice the length that the base is made for.
        steps: Steps of each method.
        settings: Overrides of the recipe that an import gives. The methods' own settings cannot be overridden.
    """

    base: Path
    data: Path
    methods: str
    length: int | None
    steps: int
    settings: Sequence[str]


@dataclass(frozen=True)
class Extension:
    """A base model, and the runs of the methods that extend its context.

    Attributes:
        request: Request of the user.
        base: The base.
        length: Tokens per sample and of the longest test.
        names: Names of the methods, `base` first.
    """

    request: Request
    base: Base
    length: int
    names: list[str]

    @classmethod
    def open(cls, request: Request) -> Self:
        """Open the base, and check the request.

        Raises:
            UserError: A value of the request does not fit the base or the data.
            FileNotFoundError: There is no model or no data.
        """
        names = parse_names("methods", request.methods, (BASE, *METHODS), "a method")
        base = open_base(request.base)
        opened = cls(
            request=request,
            base=base,
            length=request.length or 2 * base.length,
            # The base is always compared.
            names=[BASE, *(name for name in names if name != BASE)],
        )
        taken = {*opened.shared_settings()}
        for name in opened.names:
            taken |= METHODS.get(name, {}).keys()
        _check_free(request.settings, taken)
        base.check(request.data, opened.length)
        return opened

    def shared_settings(self) -> Settings:
        """Return the settings of the extension that all methods share."""
        return extension(self.base.length, self.length)

    def run(self, name: str, imported: Path, study: Study) -> Run[Outcome]:
        """Return the run of a method, or of the base, which is only measured.

        Args:
            name: Name of the method, or `base`.
            imported: Import of the base.
            study: Folder and resources.

        Raises:
            UserError: The trained model could not be evaluated or exported.
        """
        folder = RunFolder(study.out / name)
        file = imported / "config.json"
        overrides = self._overrides(name, imported, folder)
        config = load_config(file, overrides)
        check_text(config.data, self.length)
        check_exportable(config)
        train = None
        is_trained = name != BASE
        if is_trained:
            train = study.pool.pretrain_command(str(file), overrides)
        else:
            config = _base_config(config, self.base)
        lengths: list[JsonValue] = [*extended_lengths(self.base.length, self.length)]
        arguments = (str(folder.directory), lengths, is_trained)
        measurement = Measurement(folder.outcome(None), measure_extended, arguments)
        return Run(name, config, train, (measurement,), Outcome)

    def _overrides(self, name: str, imported: Path, folder: RunFolder) -> list[str]:
        """Return the overrides of the import's configuration for a method: the study's, then the user's."""
        settings: Settings = {
            "data.path": str(self.request.data),
            "training.steps": self.request.steps,
            "training.init_from": str(imported.absolute()),
        }
        settings |= self.shared_settings() | METHODS.get(name, {})
        settings["run.directory"] = str(folder.directory)
        overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        return [*overrides, *self.request.settings]


def finetune(request: Request, study: Study) -> Iterator[str]:
    """Execute the missing runs, and write the table and the plot.

    Args:
        request: Base, data and methods.
        study: Folder and resources.

    Yields:
        Messages about the progress, then the table.

    Raises:
        UserError: A value of the request or a run in the folder does not fit. No run has started.
        OSError: A file cannot be read or written.
        RunsFailed: Some runs failed; the others are complete.
    """
    opened = Extension.open(request)
    base = opened.base
    out = study.out
    if any(out.glob("*/seed-*")):
        raise UserError(f"out {out} holds runs of megatape study compare: choose another folder")

    with study.begin() as execution:
        yield f"{base.source}, made for {base.length} tokens, to {opened.length} tokens"
        imported = base.import_once(out / "import", opened.length)
        runs = [opened.run(name, imported, study) for name in opened.names]
        yield from execution.finish(runs)
        outcomes = {}
        for run in runs:
            for outcome in run.read_results():
                outcomes[run.name] = outcome
        if outcomes:
            yield report(outcomes, base.length, study.command, out)
    execution.raise_failures()


def _check_free(settings: Sequence[str], taken: set[str]) -> None:
    """Raise UserError if the user sets what the methods set, or what has an option of its own.

    The scaling is free: it is the same for all methods.

    Args:
        settings: Overrides of the user.
        taken: Keys of the methods' settings.
    """
    study_keys = (taken - {"model.scaling"}) | {"training.init_from"}
    for setting in settings:
        key, _, _ = setting.partition("=")
        if key in OPTION_OF:
            raise UserError(f"set {key}: give `{OPTION_OF[key]}` instead")
        for study_key in study_keys:
            # Equal, or one is inside the other, such as model.lora and model.lora.rank.
            if f"{key}.".startswith(f"{study_key}.") or study_key.startswith(f"{key}."):
                raise UserError(f"set {key}: the study sets {study_key} itself: leave it out")


def _base_config(config: Config, base: Base) -> Config:
    """Return the configuration of the base, to test it beyond its length: that of the methods with its own model."""
    model = base.architecture.model.model_copy(update={"max_positions": config.data.sequence_length})
    export = config.export.model_copy(update={"family": base.architecture.config.model_type})
    return config.model_copy(update={"model": model, "export": export})
