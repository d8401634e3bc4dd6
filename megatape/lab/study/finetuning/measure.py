"""Evaluates a run of `finetune`, or the base model: perplexity and passkeys by length."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from megatape.config import Config, load_config
from megatape.data.training.run_data import open_data
from megatape.data.training.selection import NEW_SELECTION, Selection
from megatape.hf.exporting.exporter import export
from megatape.hf.importing.checkpoint import ImportCheckpoint
from megatape.hf.loading.load import load_exported, load_trained
from megatape.hf.loading.loaded_model import LoadedModel
from megatape.lab.study.results.figures import Figures
from megatape.lab.study.results.silence import silence_transformers
from megatape.lab.study.results.text_result import PERPLEXITY_AXES, TextResult
from megatape.lab.study.results.training_metrics import NUM_POINTS, TrainingMetrics, loss_curve, mean_loss
from megatape.lab.tasks.engine.runner import evaluate
from megatape.lab.tasks.passkey.questions import grid_tokens
from megatape.lab.tasks.passkey.task import Passkey
from megatape.lab.tasks.perplexity.by_position import evaluate_by_position
from megatape.lab.tasks.perplexity.validation import evaluate_perplexity
from megatape.run_folder import RunFolder

# Number of questions at each of five depths: 20 questions of each length, as in the paper.
PASSKEY_TRIALS = 4


def extended_lengths(original: int, length: int) -> list[int]:
    """Return the new length and its halves, down to a quarter of the original length, the longest last."""
    shortest = max(2, original // 4)
    lengths = [length]
    while lengths[0] % 2 == 0 and lengths[0] // 2 >= shortest:
        lengths.insert(0, lengths[0] // 2)
    return lengths


def measure_extended(folder: str, lengths: list[int], trained: bool) -> TextResult:
    """Evaluate a model at several lengths, and by position up to the longest.

    Args:
        folder: Run directory.
        lengths: Tokens of the tested sequences, the longest last.
        trained: Whether to evaluate the last checkpoint of the run. If not, evaluate the model of its training.init_from.

    Raises:
        UserError: The model cannot be evaluated.
        FileNotFoundError: The model is missing.
    """
    silence_transformers()
    run = RunFolder(Path(folder))
    config = load_config(run.config)
    losses: list[float | None] = []
    figures = Figures()
    selection: Selection = NEW_SELECTION
    model: AbstractContextManager[LoadedModel]
    if trained:
        metrics = TrainingMetrics.read(run)
        losses = metrics.losses
        figures = _training_figures(config, metrics)
        selection = metrics.selection
        model = load_trained(run.checkpoint(config.training.steps))
    else:
        model = load_untrained(config)
    perplexity: dict[int, float] = {}
    with model as loaded:
        for length in lengths:
            perplexity[length] = evaluate_perplexity(loaded, config.data.directory, length, lengths[-1], selection)
        by_position = evaluate_by_position(loaded, config.data.directory, lengths[-1], lengths[-1], selection)
        figures = replace(figures, perplexity=perplexity, by_position=by_position, passkey=passkey(loaded, lengths))
    return TextResult(
        config=config,
        fingerprints=open_data(config.data, config.training, config.evaluation, config.model.vocab_size).fingerprints,
        scaling=None,
        figures=figures,
        losses=loss_curve(losses),
        curve=perplexity,
        axes=PERPLEXITY_AXES,
        selection=selection,
    )


@contextmanager
def load_untrained(config: Config) -> Iterator[LoadedModel]:
    """Load the import at training.init_from, exported to a temporary folder."""
    checkpoint = ImportCheckpoint(Path(str(config.training.init_from)), config)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "base"
        export(checkpoint, folder)
        yield load_exported(folder)


def _training_figures(config: Config, metrics: TrainingMetrics) -> Figures:
    """Return the cost and the losses of a training."""
    losses = metrics.losses
    rates = []
    for step, seconds in zip(metrics.steps, metrics.seconds, strict=True):
        num_tokens = config.batches.of_step(step) * config.data.sequence_length
        rates.append(num_tokens / seconds)
    # The first step of a process allocates memory.
    later_rates = rates[1:] or rates
    num_last = max(1, len(losses) // NUM_POINTS)
    return Figures(
        peak_memory=metrics.peak_memory / 2**30,
        tokens_per_second=median(later_rates),
        first_loss=mean_loss(losses[:1]),
        last_loss=mean_loss(losses[-num_last:]),
        validation_loss=metrics.validation_loss,
        part_losses=metrics.validation_losses,
    )


def passkey(loaded: LoadedModel, lengths: list[int]) -> dict[int, float]:
    """Return right answers in % by length, skipping lengths without room for a question."""
    shortest = grid_tokens(loaded)
    possible = tuple(length for length in lengths if length >= shortest)
    if not possible:
        return {}
    scores = evaluate(Passkey("grid", possible, PASSKEY_TRIALS), loaded)
    return {score.length: score.accuracy for score in scores.by_length}
