"""Extends a pretrained model's context by several methods, on the same batches, and compares them with the base model.

OUT/import/                     the base in our terms, if it was a folder of transformers
OUT/lora/                       a run of `megatape pretrain`, with its log.txt
    outcome.json                its results
OUT/base/outcome.json           results of the base
OUT/finetune.md, finetune.png
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megatape.accounting.parameters import count_trainable
from megatape.config import Config, load_config
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.tokenizers.files import load_tokenizer
from megatape.errors import UserError
from megatape.hf.architecture import Architecture, read_architecture
from megatape.hf.import_record import open_import
from megatape.hf.importer import import_model
from megatape.hf.model_folder import open_model_folder
from megatape.lab.encodings import parse_names
from megatape.lab.paper import EXTENSION_PASSKEY, EXTENSION_PERPLEXITY, PaperTable
from megatape.lab.processes import interruptible
from megatape.lab.study.checks import check_exportable, check_text
from megatape.lab.study.compare import (
    are_evaluated_differently,
    describe_shape,
    describe_training,
    draw_extension,
    figures_of,
    write_report,
)
from megatape.lab.study.lock import locked_study
from megatape.lab.study.measure_extension import extended_lengths, measure_extended
from megatape.lab.study.outcome import Outcome
from megatape.lab.study.pool import RunPool
from megatape.lab.study.run import Run, check_all
from megatape.run_folder import RunFolder
from megatape.utils.tables import markdown
from megatape.utils.units import format_number

Settings = dict[str, Any]  # section.key -> value, as --set takes them

Outcomes = dict[str, Outcome]  # by method

TEXT_TOKENS = 4096  # on which the tokenizers of base and data must agree
BASE = "base"  # the model as it is, beside the methods

_LORA: Settings = {
    "model.lora": {"rank": 8, "alpha": 16.0, "targets": ["query", "key", "value", "output"]},
    "training.trainable": ["adapters", "embeddings", "norms"],
}
_TAPE: Settings = {
    "model.encoding": "tape",
    "training.trainable": ["position", "embeddings", "norms"],
    "export.family": None,  # no architecture of transformers itself has TAPE, whatever the base's is
    "model.sliding_window": None,  # nor has ours for TAPE a window
}
# Beside what `extension` sets. tape_lora and full are not the paper's.
METHODS: dict[str, Settings] = {
    "lora": _LORA,
    "longlora": _LORA | {"training.num_shifted_groups": 4},
    "theta": _LORA | {"model.rotary_base": 1e6},
    "tape": _TAPE,
    "tape_lora": _LORA | _TAPE | {"training.trainable": ["position", "adapters", "embeddings", "norms"]},
    "full": {"training.trainable": ["all"]},
}


def extension(original: int, length: int) -> Settings:
    """Settings that all methods share: longer samples, whose positions are divided to stay within the original length.

    Raises UserError if `length` is not longer.
    """
    if length <= original:
        raise UserError(f"length {length} is no longer than the {original} tokens that the base is made for: give more")
    return {
        "data.sequence_length": length,
        "model.encoding": "rope",
        "model.max_positions": length,
        "model.scaling": {"kind": "linear", "factor": length / original},
    }


@dataclass(frozen=True)
class Base:
    """A model of transformers with rotary positions as they were pretrained.

    Attributes:
        source: Its folder.
        import_folder: The user's import of it, None if there is none yet.
        architecture: Its shape, in our terms and in transformers'.
    """

    source: Path
    import_folder: Path | None
    architecture: Architecture

    @property
    def length(self) -> int:
        """Tokens that it is made for."""
        return self.architecture.model.max_positions

    def check(self, data: Path, length: int) -> None:
        """Raise UserError if the model cannot be trained on samples of `length` tokens of the data."""
        window = self.architecture.window
        if window is not None and length > window:
            raise UserError(
                f"length is {length}, but {self.source} attends to the last {window} tokens only (sliding_window), which is "
                "not supported for longer samples: choose another base"
            )
        split = StoredSplit(data, "validation")
        ours = split.tokenizer()
        theirs = load_tokenizer(self.source)
        text = ours.decode(split.stream(0, min(TEXT_TOKENS, split.num_tokens)))
        if not np.array_equal(ours.encode_documents([text])[0], theirs.encode_documents([text])[0]):
            raise UserError(
                f"data {data} was not prepared with the tokenizer of {self.source}, which gives its text other ids: prepare "
                f"it with megatape prepare corpus --tokenizer {self.source}"
            )

    def imported(self, folder: Path, length: int) -> Path:
        """Its import, with every file as it was when it was imported.

        It is the user's own, or else the one in `folder`, which is written if it does not exist.

        Raises UserError if `folder` holds an import of another model, and what import_model raises.
        """
        if self.import_folder is None and not folder.exists():
            import_model(self.source, folder, "rope", length)
            return folder
        directory = self.import_folder or folder
        weights = open_import(directory)
        if weights.directory != self.source:
            raise UserError(f"{directory} is an import of {weights.directory}, not of {self.source}: choose another `out`")
        weights.verify()
        return directory


def open_base(folder: Path) -> Base:
    """The model in a folder of transformers, or that an import refers to.

    Raises FileNotFoundError, or UserError for one that is not supported, or whose frequencies are scaled already.
    """
    opened = open_model_folder(folder.absolute())
    given = opened.path if opened.kind == "import" else None
    found = read_architecture(source := opened.files)
    if opened.kind == "export":
        raise UserError(
            f"{source} is a model with encoding {found.model.encoding}: the methods start from rotary positions, give "
            "the model that it was trained from"
        )
    if found.model.scaling is not None:
        raise UserError(
            f"{source / 'config.json'}: its frequencies are scaled already ({found.model.scaling.kind}), and the methods scale "
            "those of pretraining: give a model without rope scaling"
        )
    return Base(source, given, found)


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
    """Train and evaluate the missing runs, write table and plot; yields progress messages, then the table.

    Args:
        folder: The base, a model of transformers or an import of one.
        data: Data directory.
        methods: Methods to compare, with commas between them.
        length: Tokens per sample and the longest that is tested; None for twice those that the base is made for.
        steps: Steps of each method.
        settings: Overrides of the recipe that an import gives; the methods' own cannot be overridden.
        out: Folder of the comparison.
        pool: Pool that runs them.
        command: Command line of the user, for the table.

    Raises:
        UserError: An argument or a run in `out` does not fit; before training.
        OSError: A file cannot be read or written.
        RunsFailed: Runs failed; at the end.
    """
    names = parse_names("methods", methods, (BASE, *METHODS), "a method")
    names = [name for name in names if name != BASE]  # which is always compared
    base = open_base(folder)
    length = length or 2 * base.length
    extended = extension(base.length, length)
    _check_free(settings, extended.keys() | {key for name in names for key in METHODS[name]})
    base.check(data, length)
    if any(out.glob("*/seed-*")):
        raise UserError(f"out {out} holds runs of megatape study compare: choose another folder")

    with interruptible(), locked_study(out) as lock:
        yield f"{base.source}, made for {base.length} tokens, to {length} tokens"
        imported = base.imported(out / "import", length)
        common = {"data.path": str(data), "training.steps": steps, "training.init_from": str(imported.absolute())}
        lengths = extended_lengths(base.length, length)
        runs = []
        for name in (BASE, *names):
            own = common | extended | METHODS.get(name, {}) | {"run.directory": str(out / name)}
            overrides = [*(f"{key}={json.dumps(value)}" for key, value in own.items()), *settings]
            config = load_config(imported / "config.json", overrides)
            check_text(config.data, length)
            check_exportable(config)
            if name == BASE:
                config = _base_config(config, base)
                train = None
            else:
                train = pool.pretrain(str(imported / "config.json"), overrides)
            run = RunFolder(out / name)
            measures = {run.outcome(None): (measure_extended, str(run.directory), lengths, name != BASE)}
            runs.append(Run(name, config, train, measures, Outcome.read))
        failures = yield from pool.finish(runs, out, lock)
        if outcomes := {run.name: outcome for run in runs for outcome in run.results()}:
            yield report(outcomes, base.length, command, out)
    check_all(failures, runs)


def _check_free(settings: Sequence[str], taken: set[str]) -> None:
    """Raise UserError if the user sets what the methods set, or what has an option of its own.

    The scaling is free: it is the same for all methods.
    """
    options = {"data.path": "data", "data.sequence_length": "length", "training.steps": "steps", "run.directory": "out"}
    for key in (item.partition("=")[0] for item in settings):
        if key in options:
            raise UserError(f"set {key}: give `{options[key]}` instead")
        for other in (taken - {"model.scaling"}) | {"training.init_from"}:
            if f"{key}.".startswith(f"{other}.") or other.startswith(f"{key}."):
                raise UserError(f"set {key}: the study sets {other} itself: leave it out")


def _base_config(config: Config, base: Base) -> Config:
    """Configuration of the base, to be tested beyond its length: that of the methods with its own model."""
    model = base.architecture.model.model_copy(update={"max_positions": config.data.sequence_length})
    export = config.export.model_copy(update={"family": base.architecture.config.model_type})
    return config.model_copy(update={"model": model, "export": export})


def report(outcomes: Outcomes, original: int, command: str, out: Path) -> str:
    """Write finetune.md and finetune.png into `out`; returns the text of the former.

    original: tokens that the base is made for. command: what the user typed.
    """
    *_, outcome = outcomes.values()
    setting = (
        f"{describe_shape(outcome.config)}, made for {original} tokens; {describe_training(outcome.config)}. `{BASE}` is the "
        "model without training and without scaling. Every length has the same validation text."
    )
    parts = [f"    {command}", setting, _table(outcomes)]
    tables = {
        "The paper's perplexity, Llama 2 7B from 4096 to 8192 tokens (windows every 256 tokens):": EXTENSION_PERPLEXITY,
        "The paper's passkey accuracy (%) there, by its own prompts of about so many tokens:": {"passkey": EXTENSION_PASSKEY},
    }
    for title, table in tables.items():
        if published := _published(list(outcomes), table):
            parts += [title, published]
    rows = [(name, [each]) for name, each in outcomes.items()]
    return write_report("finetune", parts, lambda figure: draw_extension(figure, rows, original), out)


def _table(outcomes: Outcomes) -> str:
    distinguish = are_evaluated_differently(outcomes.values())
    figures_by_name = {name: figures_of(outcome, distinguish) for name, outcome in outcomes.items()}
    columns = list(dict.fromkeys(column for figures in reversed(figures_by_name.values()) for column in figures))
    rows = []
    for name, outcome in outcomes.items():
        training = outcome.config.training
        trained = 0 if name == BASE else count_trainable(outcome.config.model, training.trainable, training.frozen)
        figures = (format_number(figures_by_name[name].get(column, math.nan)) for column in columns)
        rows.append([f"`{name}`", f"{trained:,}", *figures])
    return markdown(["method", "trained parameters", *columns], rows)


def _published(names: list[str], table: dict[str, PaperTable]) -> str:
    """The paper's figures for these methods, or "" if it has none. table: quantity -> its figures."""
    rows = [
        [f"`{name}`", *(f"{value:.4g}" for quantity in table.values() for value in quantity.rows[name])]
        for name in names
        if all(name in quantity.rows for quantity in table.values())
    ]
    columns = [f"{name} at {length}" for name, quantity in table.items() for length in quantity.lengths]
    return markdown(["method", *columns], rows) if rows else ""
