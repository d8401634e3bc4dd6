"""Evaluates a complete run of `compare` or `finetune`.

Of a comparison, the data decides on the metrics: exact match for addition, perplexity by sequence length for text. Of an
extension, it is perplexity and passkeys by length. Every entry of an outcome's `figures` is a column of the table.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from megatape.checkpoint.reader import CheckpointReader
from megatape.config import Config, ModelConfig, load_config
from megatape.data.shards.index import load_index
from megatape.data.synthetic.addition_problems import KIND as ADDITION
from megatape.data.synthetic.addition_problems import AdditionTask, longest_document
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.data.training.dataset import TokenDataset
from megatape.data.training.mixture import open_data
from megatape.data.training.selection import EARLIER_SELECTION, NEW_SELECTION, Selection
from megatape.errors import UserError
from megatape.hf.export import export
from megatape.hf.families import family_of
from megatape.hf.import_checkpoint import ImportCheckpoint
from megatape.hf.loading import LoadedModel, load_exported, load_trained
from megatape.hf.tokenizer import special_tokens
from megatape.lab.study.outcome import PERPLEXITY, VALIDATION_LOSS, Outcome
from megatape.lab.tasks.addition import Addition
from megatape.lab.tasks.engine.runner import evaluate
from megatape.lab.tasks.passkey import Passkey, grid_tokens
from megatape.lab.tasks.perplexity import evaluate_perplexity
from megatape.run_folder import RunFolder, read_steps

LENGTHS = (128, 256, 512, 1024)  # sequence lengths of the perplexity, up to model.max_positions
POINTS = 50  # on a loss curve
PASSKEY_TRIALS = 4  # at each of five depths, so 20 questions of each length, as the paper asked

Measured = tuple[dict[str, float], dict[int, float], tuple[str, str]]  # figures, curve and axes of an Outcome


def check_measurable(config: Config, scaling: str | None) -> None:
    """Raise UserError or FileNotFoundError now if `measure` could not evaluate the trained model later."""
    data = config.data.directory
    longest = tested_lengths(config)[-1]
    if is_addition(config):
        digits = AdditionTask.of(data).digits
        if longest > config.model.max_positions:
            raise UserError(
                f"data.path {data} has operands of up to {digits} digits; the test has {2 * digits}, which need {longest} "
                f"positions, but model.max_positions is {config.model.max_positions}: raise it"
            )
    else:
        check_text(config, longest)
    if scaling:
        if longest <= config.data.sequence_length:
            raise UserError(
                f"{config.model.encoding}+{scaling}: no test is longer than the {config.data.sequence_length} tokens of "
                f"training, so scaling would change nothing: raise model.max_positions (now {config.model.max_positions}), or "
                f"remove +{scaling}"
            )
        with_scaling(config.model, scaling, config.data.sequence_length, longest)
    check_exportable(config)


def check_text(config: Config, longest: int) -> None:
    """Raise UserError or FileNotFoundError if the data has no perplexity up to `longest` tokens."""
    if config.data.samples != "packed" or config.data.mask_documents:
        raise UserError(
            "perplexity by length needs packed text, where sequences cross documents: set data.samples to packed and "
            "data.mask_documents to false"
        )
    TokenDataset(config.data.directory, "validation", longest)


def check_exportable(config: Config) -> None:
    """Raise UserError if a model trained by this configuration could not be exported with the tokenizer of its data."""
    data = config.data.directory
    family_of(config).config(config, special_tokens(stored_tokenizer(data, load_index(data).tokenizer.files)))


def is_addition(config: Config) -> bool:
    """Whether the data is addition problems; otherwise it is text."""
    return bool(load_index(config.data.directory).source.get("kind") == ADDITION)


def tested_lengths(config: Config) -> list[int]:
    """Lengths in tokens of the tested sequences, the longest last."""
    if is_addition(config):
        return [longest_document(2 * AdditionTask.of(config.data.directory).digits) - 1]
    return [length for length in LENGTHS if length <= config.model.max_positions] or [config.data.sequence_length]


def with_scaling(model: ModelConfig, kind: str | None, trained_length: int, tested_length: int) -> ModelConfig:
    """The same model with its frequencies scaled by tested_length / trained_length.

    It is unchanged if that is at most 1, or without a kind of scaling.
    """
    if kind is None or tested_length <= trained_length:
        return model
    scaling = {"kind": kind, "factor": tested_length / trained_length}
    if kind == "yarn":
        scaling["original_length"] = trained_length
    return ModelConfig.model_validate(model.model_dump() | {"scaling": scaling})


def measure(folder: str, scaling: str | None) -> Outcome:
    """Evaluate the last checkpoint of a run, with its frequencies scaled where a test is longer than training was.

    Raises UserError or FileNotFoundError if the run is not complete.
    """
    hide_warnings()
    run = RunFolder(Path(folder))
    config = load_config(run.config)
    checkpoint = run.checkpoint(config.training.steps)
    fingerprints: dict[str, str] = CheckpointReader(checkpoint).state["fingerprints"]
    entries = list(read_steps(run.metrics))
    selection = selection_of(entries)
    if is_addition(config):
        figures, curve, axes = _addition(config, checkpoint, scaling)
    else:
        figures, curve, axes = _perplexity(config, checkpoint, scaling, selection)
    if not scaling:  # the run's own validation loss is without scaling
        figures = validation_figures(entries[-1]) | figures
    losses = loss_curve([entry["loss"] for entry in entries])
    return Outcome(config, fingerprints, scaling, figures, losses, curve, axes, selection)


def validation_figures(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the validation losses in a line of metrics: the loss of all samples, and the losses of parts that have one."""
    parts = {f"{VALIDATION_LOSS} of {name}": loss for name, loss in entry.get("validation_losses", {}).items()}
    return {VALIDATION_LOSS: entry["validation_loss"]} | parts


def selection_of(entries: Sequence[Mapping[str, Any]]) -> Selection:
    """Return the selection of samples in a run's last evaluation, by its lines of metrics; without lines, that of new runs."""
    if not entries:
        return NEW_SELECTION
    selection: Selection = entries[-1].get("validation_selection", EARLIER_SELECTION)
    return selection


def hide_warnings() -> None:
    """Hide what transformers says of scaling factors that do not cover all of max_positions."""
    disable_progress_bar()
    set_verbosity_error()


def loss_curve(losses: Sequence[float | None]) -> dict[int, float]:
    """Mean losses of POINTS equal parts of the run, keyed by the last step of each part. None: of a step that was left out."""
    ends = [len(losses) * part // POINTS for part in range(POINTS + 1)]
    return {end: mean_loss(losses[begin:end]) for begin, end in itertools.pairwise(ends) if begin < end}


def mean_loss(losses: Sequence[float | None]) -> float:
    """The mean of those that are finite; NaN if none is."""
    finite = [loss for loss in losses if loss is not None]
    return fmean(finite) if finite else math.nan


def _addition(config: Config, checkpoint: Path, scaling: str | None) -> Measured:
    model = with_scaling(config.model, scaling, config.data.sequence_length, tested_lengths(config)[-1])
    with load_trained(checkpoint, model) as loaded:
        grid = evaluate(Addition(config.data.directory), loaded)
    shares = {"trained lengths": grid.inside, "beyond": grid.beyond, "all": grid.mean}
    return (
        {f"{name} (%)": 100 * share for name, share in shares.items() if share is not None},
        {digits: 100 * share for digits, share in grid.by_longer_operand.items()},
        ("digits of the longer operand", "exact match (%)"),
    )


def _perplexity(config: Config, checkpoint: Path, scaling: str | None, selection: Selection) -> Measured:
    trained = config.data.sequence_length
    lengths = tested_lengths(config)
    curve = {}
    # Lengths with the same scaling factor share a loaded model.
    for model, group in itertools.groupby(lengths, lambda length: with_scaling(config.model, scaling, trained, length)):
        with load_trained(checkpoint, model) as loaded:
            for length in group:
                curve[length] = evaluate_perplexity(loaded, config.data.directory, length, lengths[-1], selection)
    return {f"{PERPLEXITY}{length}": value for length, value in curve.items()}, curve, ("tokens", "perplexity")


def extended_lengths(original: int, length: int) -> list[int]:
    """The new length and its halves, down to a quarter of the original one."""
    lengths = [length]
    while lengths[0] % 2 == 0 and lengths[0] // 2 >= max(2, original // 4):
        lengths.insert(0, lengths[0] // 2)
    return lengths


def measure_extended(folder: str, lengths: list[int], trained: bool) -> Outcome:
    """Evaluate the last checkpoint of a run or, unless `trained`, the model of its training.init_from.

    Raises UserError or FileNotFoundError if it is not there.
    """
    hide_warnings()
    run = RunFolder(Path(folder))
    config = load_config(run.config)
    entries = list(read_steps(run.metrics)) if trained else []
    figures = _training(config, entries) if trained else {}
    losses = loss_curve([entry["loss"] for entry in entries])
    selection = selection_of(entries)
    curve: dict[int, float] = {}
    with load_trained(run.checkpoint(config.training.steps)) if trained else load_untrained(config) as loaded:
        for length in lengths:
            curve[length] = evaluate_perplexity(loaded, config.data.directory, length, lengths[-1], selection)
        figures |= {f"{PERPLEXITY}{length}": value for length, value in curve.items()} | passkey(loaded, lengths)
    fingerprints = open_data(config).fingerprints
    axes = ("tokens", "perplexity")
    return Outcome(config, fingerprints, None, figures, losses, curve, axes, selection)


@contextmanager
def load_untrained(config: Config) -> Iterator[LoadedModel]:
    """The model of the import that training.init_from names, without any training, exported to a temporary folder."""
    with TemporaryDirectory() as temporary:
        export(ImportCheckpoint(Path(str(config.training.init_from)), config), Path(temporary) / "base")
        yield load_exported(Path(temporary) / "base")


def _training(config: Config, entries: list[dict[str, Any]]) -> dict[str, float]:
    """Cost and losses of training. The first loss is that of step 1, before the weights change."""
    losses = [entry["loss"] for entry in entries]
    rates = [config.batches.of_step(entry["step"]) * config.data.sequence_length / entry["seconds"] for entry in entries]
    figures = {
        "peak memory (GiB)": max(entry["peak_memory"] for entry in entries) / 2**30,
        "tokens/s": median(rates[1:] or rates),  # the first step of a process allocates
        "first loss": losses[0],
        "last loss": mean_loss(losses[-max(1, len(losses) // POINTS) :]),
    }
    return figures | validation_figures(entries[-1])


def passkey(loaded: LoadedModel, lengths: list[int]) -> dict[str, float]:
    """Share of right answers (%) at each length that a question fits in."""
    possible = tuple(length for length in lengths if length >= grid_tokens(loaded))
    if not possible:
        return {}
    scores = evaluate(Passkey("grid", possible, PASSKEY_TRIALS), loaded)
    return {each.name: each.value for each in scores.measures}
