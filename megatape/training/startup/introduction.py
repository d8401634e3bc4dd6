"""Describes in a few lines what a run is about to train."""

from megatape.accounting.parameters import count_parameters, count_trainable
from megatape.attention.attend import get_backend
from megatape.config import ModelConfig, TrainingConfig
from megatape.data.training.run_data import RunData
from megatape.distributed.mesh import AXES
from megatape.model.requirements import attention_requirements
from megatape.training.trainer import Trainer
from megatape.utils.units import plural


def introduction(run: Trainer) -> str:
    """Return lines about model, data, ranks and folder of a run."""
    config = run.config
    num_parameters = count_parameters(config.model).total
    lines = [
        _describe_model(run),
        *trained_share(config.model, config.training, num_parameters),
        *_describe_data(run),
        _describe_ranks(run),
    ]
    return "\n".join(lines)


def _describe_model(run: Trainer) -> str:
    """Return a line about the model, its size and the attention backend."""
    model = run.config.model
    count = count_parameters(model)
    attention = run.attention
    device = run.engine.device
    if device.type == "cuda":
        need = attention_requirements(run.config, device.type)[0]
        kernel = get_backend(run.attention).kernel_name(need, device)
        if kernel:
            attention += f" ({kernel})"
    return (
        f"{model.encoding}: {count.total:,} parameters ({count.embedding:,} embedding and head, {count.position:,} position), "
        f"{plural(model.num_layers, 'layer')}, attention by {attention}"
    )


def trained_share(model: ModelConfig, training: TrainingConfig, num_parameters: int) -> list[str]:
    """Return a line about the number of trained parameters, none if all are trained.

    Args:
        model: Configuration of the model.
        training: Configuration of training, which selects the trained parameters.
        num_parameters: Number of all parameters.
    """
    num_trained = count_trainable(model, training.trainable, training.frozen)
    if num_trained == num_parameters:
        return []
    return [f"trained: {num_trained:,} of {num_parameters:,} parameters ({num_trained / num_parameters:.2%})"]


def _describe_data(run: Trainer) -> list[str]:
    """Return lines about the data: sizes, filling, skipped documents, mixture, and entropy."""
    config = run.config
    data = run.data.train
    paths = ", ".join(config.data.paths)
    num_validation_tokens = sum(split.num_tokens for split in run.data.validation.values())
    lines = [f"data: {paths}, {data.num_tokens:,} training tokens, {num_validation_tokens:,} validation tokens"]
    if data.filled < 1:
        lines.append(f"samples are {data.filled:.2%} full, the rest is padding")
    lines += skipped_documents(run.data)
    mixture = data.describe(config.batches.consumed(config.training.steps))
    if mixture:
        lines.append(f"mixture: {mixture}")
    lines.append(
        f"baseline: unigram entropy of the training text {data.unigram_entropy:.4f} nats (a model above this loss uses no "
        "context)"
    )
    return lines


def skipped_documents(data: RunData) -> list[str]:
    """Return a line for each split with documents that are in no sample."""
    lines = []
    for split in [*data.train.corpora.values(), *data.validation.values()]:
        if split.num_skipped:
            lines.append(f"{split.name}: {split.num_skipped:,} documents without data.prompt_end are skipped")
    return lines


def _describe_ranks(run: Trainer) -> str:
    """Return a line about the division over ranks, the arithmetic, the batch and the run's folder."""
    config = run.config
    axes = [axis for axis in AXES if axis in ("data", "tensor") or run.mesh[axis].size > 1]
    sizes = [str(run.mesh[axis].size) for axis in axes]
    return (
        f"ZeRO stage {config.zero.stage} over {' x '.join(sizes)} ({' x '.join(axes)}) ranks on {run.engine.device.type}, "
        f"{config.training.arithmetic}; {config.training.global_batch_size} x {config.data.sequence_length} tokens a step; "
        f"writing to {run.folder.directory}"
    )
