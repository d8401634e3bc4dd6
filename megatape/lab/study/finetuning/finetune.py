"""Extends a pretrained model's context by several methods, on the same batches, and compares them with the base model.

OUT/import/                     the base in our terms, if it was a folder of transformers
OUT/lora/                       a run of `megatape pretrain`, with its log.txt
    outcome.json                its results
OUT/base/outcome.json           results of the base
OUT/finetune.md, finetune.png
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from megatape.config import Config, load_config
from megatape.errors import UserError
from megatape.lab.encodings import parse_names
from megatape.lab.processes import interruptible
from megatape.lab.study.execution.lock import locked_study
from megatape.lab.study.execution.pool import RunPool
from megatape.lab.study.execution.run import Run, raise_failures
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


def finetune(
    folder: Path,
    data: Path,
    methods: str,
    length: int | None,
    steps: int,
    settings: Sequence[str],
    out: Path,
    pool: RunPool,
    command: str,
) -> Iterator[str]:
    """Execute the missing runs, and write the table and the plot.

    Args:
        folder: The base: a model of transformers or an import of one.
        data: Data directory.
        methods: Methods to compare, with commas.
        length: Tokens per sample and of the longest test. None for twice the length that the base is made for.
        steps: Steps of each method.
        settings: Overrides of the recipe that an import gives. The methods' own settings cannot be overridden.
        out: Folder of the comparison.
        pool: Executes the runs.
        command: Command line of the user, for the table.

    Yields:
        Messages about the progress, then the table.

    Raises:
        UserError: An argument or a run in `out` does not fit. No run has started.
        OSError: A file cannot be read or written.
        RunsFailed: Some runs failed; the others are complete.
    """
    names = parse_names("methods", methods, (BASE, *METHODS), "a method")
    # The base is always compared.
    names = [BASE, *(name for name in names if name != BASE)]
    base = open_base(folder)
    if not length:
        length = 2 * base.length
    extended = extension(base.length, length)
    taken = {*extended}
    for name in names:
        taken |= METHODS.get(name, {}).keys()
    _check_free(settings, taken)
    base.check(data, length)
    if any(out.glob("*/seed-*")):
        raise UserError(f"out {out} holds runs of megatape study compare: choose another folder")

    with interruptible(), locked_study(out) as lock:
        yield f"{base.source}, made for {base.length} tokens, to {length} tokens"
        imported = base.imported(out / "import", length)
        shared: Settings = {
            "data.path": str(data),
            "training.steps": steps,
            "training.init_from": str(imported.absolute()),
        }
        shared |= extended
        runs = [_run(name, base, imported, length, shared, settings, out, pool) for name in names]
        failures = yield from pool.finish(runs, out, lock)
        outcomes = {}
        for run in runs:
            for outcome in run.results():
                outcomes[run.name] = outcome
        if outcomes:
            yield report(outcomes, base.length, command, out)
    raise_failures(failures, runs)


def _run(
    name: str,
    base: Base,
    imported: Path,
    length: int,
    shared: Settings,
    settings: Sequence[str],
    out: Path,
    pool: RunPool,
) -> Run[Outcome]:
    """Return the run of a method, or of the base, which is only measured.

    Raises:
        UserError: The trained model could not be evaluated or exported.
    """
    folder = RunFolder(out / name)
    file = imported / "config.json"
    run_settings = shared | METHODS.get(name, {}) | {"run.directory": str(folder.directory)}
    overrides = [f"{key}={json.dumps(value)}" for key, value in run_settings.items()]
    overrides += settings
    config = load_config(file, overrides)
    check_text(config.data, length)
    check_exportable(config)
    train = None
    is_trained = name != BASE
    if is_trained:
        train = pool.pretrain_command(str(file), overrides)
    else:
        config = _base_config(config, base)
    lengths = extended_lengths(base.length, length)
    measures = {folder.outcome(None): (measure_extended, str(folder.directory), lengths, is_trained)}
    return Run(name, config, train, measures, Outcome.read)


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
