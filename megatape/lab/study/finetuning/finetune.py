"""Extends a pretrained model's context by several methods on the same batches, and compares them with the base model.

OUT/import/                     the base in our terms, if it was a transformers folder
OUT/lora/                       a run of `megatape pretrain`, with its log.txt
    outcome.json                its result
OUT/base/outcome.json           result of the base
OUT/finetune.md, finetune.png
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import JsonValue

from megatape.config import Config, SettingValues, as_overrides, load_config
from megatape.errors import UserError, flag
from megatape.lab.names import parse_names
from megatape.lab.study.execution.measurement import Measurement
from megatape.lab.study.execution.run import Run
from megatape.lab.study.execution.study import Study
from megatape.lab.study.finetuning.base_model import Base, open_base
from megatape.lab.study.finetuning.measure import extended_lengths, measure_extended
from megatape.lab.study.finetuning.methods import BASE, METHODS, extension
from megatape.lab.study.finetuning.report import report
from megatape.lab.study.results.checks import check_exportable, check_text
from megatape.lab.study.results.text_result import TextResult
from megatape.run_folder import RunFolder

# Settings with their own option.
OPTION_OF = {
    "data.path": "data",
    "data.sequence_length": "length",
    "training.steps": "steps",
    "run.directory": "output",
}


@dataclass(frozen=True)
class Request:
    """The user's choices for fine-tuning.

    Attributes:
        base: Folder of a transformers model, or of its import.
        data: Data directory.
        methods: Methods to compare, separated by commas.
        length: Tokens per sample and in the longest test. None for twice the length that the base is made for.
        steps: Training steps per method.
        overrides: Values of --set that change the import's recipe. The methods' own settings cannot be overridden.
    """

    base: Path
    data: Path
    methods: str
    length: int | None
    steps: int
    overrides: Sequence[str]


@dataclass(frozen=True)
class Extension:
    """Runs of a base model and of the methods extending its context.

    Attributes:
        request: The user's choices.
        base: The base.
        length: Tokens per sample and in the longest test.
        names: Method names, `base` first.
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
            FileNotFoundError: The model or the data is missing.
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
        method_keys: set[str] = set()
        for name in opened.names:
            method_keys |= opened.settings_of(name).keys()
        _check_free(request.overrides, method_keys)
        base.check(request.data)
        return opened

    def settings_of(self, name: str) -> SettingValues:
        """Return the settings of a method, or of the base, including those that all share."""
        settings = extension(self.base.length, self.length)
        if name != BASE:
            settings |= METHODS[name].settings()
        return settings

    def run(self, name: str, imported: Path, study: Study) -> Run[TextResult]:
        """Return the run of a method, or of the base, which is measured without training.

        Args:
            name: Method name, or `base`.
            imported: Folder of the base's import.
            study: Folder and resources.

        Raises:
            UserError: The trained model could not be evaluated or exported.
        """
        folder = RunFolder(study.output / name)
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
        return Run(name, config, train, (measurement,), TextResult)

    def _overrides(self, name: str, imported: Path, folder: RunFolder) -> list[str]:
        """Return the overrides for a method: the study's, then the user's."""
        settings: SettingValues = {
            "data.path": str(self.request.data),
            "training.steps": self.request.steps,
            "training.init_from": str(imported.absolute()),
        }
        settings |= self.settings_of(name)
        settings["run.directory"] = str(folder.directory)
        return [*as_overrides(settings), *self.request.overrides]


def finetune(request: Request, study: Study) -> None:
    """Execute the missing runs, then write table and plot, and show the table.

    Args:
        request: Base, data and methods.
        study: Folder and resources.

    Raises:
        UserError: A value of the request or a run in the folder does not fit. No run has started.
        OSError: A file cannot be read or written.
        RunsFailed: Some runs failed; the others are complete.
    """
    opened = Extension.open(request)
    base = opened.base
    output = study.output
    if any(output.glob("*/seed-*")):
        raise UserError(f"{flag('output')} {output} holds runs of megatape study compare: choose another folder")

    with study.begin() as execution:
        study.show(f"{base.source}, made for {base.length} tokens, to {opened.length} tokens")
        imported = base.import_once(output / "import", opened.length)
        runs = [opened.run(name, imported, study) for name in opened.names]
        execution.finish(runs)
        results = {}
        for run in runs:
            for result in run.read_results():
                results[run.name] = result
        if results:
            study.show(report(results, base.length, study.command, output))
    execution.raise_failures()


def _check_free(overrides: Sequence[str], method_keys: set[str]) -> None:
    """Raise UserError if the user overrides a setting of the methods, or one with its own option.

    The scaling can be overridden, because all methods share it.

    Args:
        overrides: The user's values of --set.
        method_keys: Keys of the methods' settings.
    """
    study_keys = (method_keys - {"model.scaling"}) | {"training.init_from"}
    for override in overrides:
        key, _, _ = override.partition("=")
        if key in OPTION_OF:
            raise UserError(f"{flag('set')} {key}: give {flag(OPTION_OF[key])} instead")
        for study_key in study_keys:
            # The keys are equal, or one contains the other, as model.lora contains model.lora.rank.
            if f"{key}.".startswith(f"{study_key}.") or study_key.startswith(f"{key}."):
                raise UserError(f"{flag('set')} {key}: the study sets {study_key} itself: leave it out")


def _base_config(config: Config, base: Base) -> Config:
    """Return the methods' configuration with the base's own model, to test the base beyond its length."""
    model = base.architecture.model.model_copy(update={"max_positions": config.data.sequence_length})
    export = config.export.model_copy(update={"family": base.architecture.config.model_type})
    return config.model_copy(update={"model": model, "export": export})
