"""Describes a run in a few lines before training: model, data, ranks and run directory."""

from pathlib import Path

from megatape.accounting.whole_model.parameters import count_parameters, count_trainable
from megatape.config import Config, DataConfig, ModelConfig, TrainingConfig, ZeroConfig
from megatape.data.training.run_data import RunData
from megatape.distributed.mesh import AXES
from megatape.training.startup.engine.build_engine import AttentionChoice
from megatape.utils.text.units import plural
from megatape.zero.engine import Engine


def describe_run(config: Config, data: RunData, engine: Engine, attention: AttentionChoice) -> str:
    """Return lines about model, data, ranks and run directory.

    Args:
        config: Configuration.
        data: Data, opened by this rank.
        engine: Model and optimizer under DeepSpeed.
        attention: Attention backend of the first layer.
    """
    num_parameters = count_parameters(config.model).total
    num_samples = config.batches.consumed(config.training.steps)
    directory = Path(config.run.directory)
    ranks = _describe_ranks(config.zero, engine)
    lines = [
        _describe_model(config.model, attention),
        *trained_share(config.model, config.training, num_parameters),
        *_describe_data(config.data, data, num_samples),
        f"{ranks}, {_describe_batches(config.training, config.data, engine)}; writing to {directory}",
    ]
    return "\n".join(lines)


def _describe_model(model: ModelConfig, attention: AttentionChoice) -> str:
    count = count_parameters(model)
    return (
        f"{model.encoding}: {count.total:,} parameters ({count.embedding:,} embedding and head, {count.position:,} position), "
        f"{plural(model.num_layers, 'layer')}, attention by {attention}"
    )


def trained_share(model: ModelConfig, training: TrainingConfig, num_parameters: int) -> list[str]:
    """Return a line about the share of trained parameters, none if all are trained.

    Args:
        model: Model configuration.
        training: Training configuration, which selects the trained parameters.
        num_parameters: Number of all parameters.
    """
    num_trained = count_trainable(model, training.trainable, training.frozen)
    if num_trained == num_parameters:
        return []
    return [f"trained: {num_trained:,} of {num_parameters:,} parameters ({num_trained / num_parameters:.2%})"]


def _describe_data(config: DataConfig, data: RunData, num_samples: int) -> list[str]:
    """Return lines about the data: sizes, padding, skipped documents, mixture, and entropy."""
    train = data.train
    paths = ", ".join(config.paths)
    num_validation_tokens = sum(dataset.split.num_tokens for dataset in data.validation.values())
    lines = [f"data: {paths}, {train.num_tokens:,} training tokens, {num_validation_tokens:,} validation tokens"]
    if train.filled < 1:
        lines.append(f"samples are {train.filled:.2%} full, the rest is padding")
    lines += skipped_documents(data)
    mixture = train.describe(num_samples)
    if mixture:
        lines.append(f"mixture: {mixture}")
    lines.append(
        f"baseline: unigram entropy of the training text {train.unigram_entropy:.4f} nats (a model above this loss uses no "
        "context)"
    )
    return lines


def skipped_documents(data: RunData) -> list[str]:
    """Return a line for each split that skips documents."""
    lines = []
    for dataset in [*data.train.corpora.values(), *data.validation.values()]:
        if dataset.num_skipped:
            lines.append(f"{dataset.split.description}: {dataset.num_skipped:,} documents without data.prompt_end are skipped")
    return lines


def _describe_ranks(zero: ZeroConfig, engine: Engine) -> str:
    axes = [axis for axis in AXES if axis in ("data", "tensor") or engine.mesh[axis].size > 1]
    sizes = [str(engine.mesh[axis].size) for axis in axes]
    return f"ZeRO stage {zero.stage} over {' x '.join(sizes)} ({' x '.join(axes)}) ranks on {engine.device.type}"


def _describe_batches(training: TrainingConfig, data: DataConfig, engine: Engine) -> str:
    text = f"{training.arithmetic}; {training.global_batch_size} x {data.sequence_length} tokens per step"
    if engine.replays.are_planned:
        text += ", as CUDA graphs"
    return text
