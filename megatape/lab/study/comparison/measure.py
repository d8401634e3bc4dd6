"""Evaluates a complete run of `compare`.

The data decides on the metrics: exact match for addition, perplexity by sequence length for text.
"""

import itertools
from dataclasses import replace
from pathlib import Path

from megatape.checkpoint.load.reader import CheckpointReader
from megatape.config import Config, ModelConfig, load_config
from megatape.data.shards.index import load_index
from megatape.data.synthetic.addition_problems import KIND as ADDITION
from megatape.data.synthetic.addition_problems import AdditionTask, longest_document
from megatape.data.training.selection import Selection
from megatape.errors import UserError
from megatape.hf.loading.load import load_trained
from megatape.lab.study.results.checks import check_exportable, check_text
from megatape.lab.study.results.figures import Figures
from megatape.lab.study.results.silence import silence_transformers
from megatape.lab.study.results.text_result import ADDITION_AXES, PERPLEXITY_AXES, Evaluation, TextResult
from megatape.lab.study.results.training_metrics import TrainingMetrics, loss_curve
from megatape.lab.tasks.addition import Addition
from megatape.lab.tasks.engine.runner import evaluate
from megatape.lab.tasks.perplexity.by_position import evaluate_by_position, longest_window
from megatape.lab.tasks.perplexity.validation import evaluate_perplexity
from megatape.run_folder import RunFolder

# Sequence lengths of the perplexity, up to model.max_positions.
LENGTHS = (128, 256, 512, 1024)


def check_measurable(config: Config, scaling: str | None) -> None:
    """Check before training that `measure_run` can evaluate the trained model.

    Args:
        config: Run configuration.
        scaling: Kind of model.scaling in the evaluation, or None.

    Raises:
        UserError: The model could not be evaluated.
        FileNotFoundError: The data is missing.
    """
    data = config.data.directory
    longest = tested_lengths(config)[-1]
    if is_addition(data):
        digits = AdditionTask.of(data).digits
        if longest > config.model.max_positions:
            raise UserError(
                f"data.path {data} has operands of up to {digits} digits; the test has {2 * digits}, which need {longest} "
                f"positions, but model.max_positions is {config.model.max_positions}: raise it"
            )
    else:
        check_text(config.data, longest)
    if scaling:
        if longest <= config.data.sequence_length:
            raise UserError(
                f"{config.model.encoding}+{scaling}: no test is longer than the {config.data.sequence_length} tokens of "
                f"training, so scaling would change nothing: raise model.max_positions (now {config.model.max_positions}), or "
                f"remove +{scaling}"
            )
        with_scaling(config.model, scaling, config.data.sequence_length, longest)
    check_exportable(config)


def is_addition(data: Path) -> bool:
    """Whether a data directory has addition problems instead of text."""
    return bool(load_index(data).source.get("kind") == ADDITION)


def tested_lengths(config: Config) -> list[int]:
    """Return the lengths of the tested sequences in tokens, the longest last."""
    data = config.data.directory
    if is_addition(data):
        max_digits = 2 * AdditionTask.of(data).digits
        return [longest_document(max_digits) - 1]
    lengths = [length for length in LENGTHS if length <= config.model.max_positions]
    return lengths or [config.data.sequence_length]


def with_scaling(model: ModelConfig, kind: str | None, trained_length: int, tested_length: int) -> ModelConfig:
    """Return the model with frequencies scaled by tested_length / trained_length.

    Without a kind of scaling, or if the test is no longer than training, return it unchanged.
    """
    if kind is None or tested_length <= trained_length:
        return model
    scaling = {"kind": kind, "factor": tested_length / trained_length}
    if kind == "yarn":
        scaling["original_length"] = trained_length
    return ModelConfig.model_validate(model.model_dump() | {"scaling": scaling})


def measure_run(folder: str, scaling: str | None) -> TextResult:
    """Evaluate the last checkpoint of a run.

    Args:
        folder: Run directory.
        scaling: Kind of model.scaling for tests longer than training, or None.

    Raises:
        UserError: The run cannot be evaluated.
        FileNotFoundError: The run is not complete.
    """
    silence_transformers()
    run = RunFolder(Path(folder))
    config = load_config(run.config)
    checkpoint = run.checkpoint(config.training.steps)
    fingerprints: dict[str, str] = CheckpointReader(checkpoint).state.fingerprints
    metrics = TrainingMetrics.read(run)
    if is_addition(config.data.directory):
        evaluation = measure_addition(config, checkpoint, scaling)
    else:
        evaluation = _measure_perplexity(config, checkpoint, scaling, metrics.selection)
    figures = evaluation.figures
    # The run measured its validation loss without scaling.
    if not scaling:
        figures = replace(figures, validation_loss=metrics.validation_loss, part_losses=metrics.validation_losses)
    return TextResult(
        config=config,
        fingerprints=fingerprints,
        scaling=scaling,
        figures=figures,
        losses=loss_curve(metrics.losses),
        curve=evaluation.curve,
        axes=evaluation.axes,
        selection=metrics.selection,
    )


def measure_addition(config: Config, checkpoint: Path, scaling: str | None) -> Evaluation:
    """Return right answers in %, overall and by number of digits."""
    model = with_scaling(config.model, scaling, config.data.sequence_length, tested_lengths(config)[-1])
    with load_trained(checkpoint, model) as loaded:
        grid = evaluate(Addition(config.data.directory), loaded)
    more_digits = None if grid.beyond is None else 100 * grid.beyond
    figures = Figures(trained_digits=100 * grid.inside, more_digits=more_digits, all_digits=100 * grid.mean)
    curve = {digits: 100 * share for digits, share in grid.by_longer_operand.items()}
    return Evaluation(figures, curve, ADDITION_AXES)


def _measure_perplexity(config: Config, checkpoint: Path, scaling: str | None, selection: Selection) -> Evaluation:
    """Return the perplexity by sequence length, and the loss by position."""
    data = config.data
    lengths = tested_lengths(config)
    longest = longest_window(data.directory, data.sequence_length, config.model.max_positions)

    def scaled_model(length: int) -> ModelConfig:
        return with_scaling(config.model, scaling, data.sequence_length, length)

    curve = {}
    # Load the model once for all lengths with the same scaling factor.
    for model, group in itertools.groupby(lengths, scaled_model):
        with load_trained(checkpoint, model) as loaded:
            for length in group:
                curve[length] = evaluate_perplexity(loaded, data.directory, length, lengths[-1], selection)
    with load_trained(checkpoint, scaled_model(longest)) as loaded:
        by_position = evaluate_by_position(loaded, data.directory, data.sequence_length, longest, selection)
    return Evaluation(Figures(perplexity=curve, by_position=by_position), curve, PERPLEXITY_AXES)
