"""Bytes of activations at the peak of a micro-batch: saved for the backward pass, offloaded, and temporary."""

from megatape.accounting.activations import activations
from megatape.accounting.extrapolation import changed, count_once
from megatape.accounting.rank_model import num_chunks
from megatape.accounting.traffic import element_bytes
from megatape.attention.attend import check_forced_backend
from megatape.config import Config, ModelConfig, TrainingConfig
from megatape.model.requirements import attention_requirements
from megatape.nn.loss import chunk_elements

# Bytes for each number that torchao rounds to FP8: it is scaled, clamped to FP8's range, and rounded.
FP8_BYTES = 4 + 4 + 1


@count_once
def plan_activations(config: Config, on_gpu: bool) -> dict[str, float]:
    """Return the bytes by part that a micro-batch needs in addition to weights, gradients and optimizer.

    Args:
        config: Configuration of the run.
        on_gpu: Whether to plan for the attention backend of a GPU.

    Raises:
        UserError: The backend that training.attention forces cannot run on a GPU.
    """
    if on_gpu:
        check_forced_backend(attention_requirements(config, "cuda")[0], config.training.attention, config.model.encoding)
    without_positions = changed(config, "model", encoding="nope", scaling=None)
    total = activations(config, on_gpu).total
    content = activations(without_positions, on_gpu).total
    return {
        "activations": content,
        "position encoding": total - content,
        "largest temporary": largest_temporary(config, on_gpu),
    }


def largest_temporary(config: Config, on_gpu: bool) -> int:
    """Return the peak of temporary bytes in the backward pass and the loss."""
    tokens = config.training.micro_batch_size * config.data.sequence_length // config.parallel.sample_replicas
    backward = recomputed_bytes(config, on_gpu) + _rounding_bytes(config.model, config.training, tokens)
    size = element_bytes(config.training.precision)
    loss = _logit_bytes(config.model, config.parallel.tp, tokens, size, on_gpu)
    return max(backward, loss)


def offloaded_bytes(config: Config, on_gpu: bool) -> int:
    """Return the bytes of a micro-batch's streams that wait in host memory for the backward pass.

    Tensors that all blocks share and keep on the device (the first angles and the starts of documents) are included. They have
    fewer bytes than one block's stream.
    """
    on_device = changed(config, "training", activation_checkpointing="full")
    return activations(on_device, on_gpu).total - activations(config, on_gpu).total


def recomputed_bytes(config: Config, on_gpu: bool) -> int:
    """Return the bytes that the backward pass recomputes at a time, for one chunk: a whole layer, or its parts not saved."""
    config = changed(config, "model", nope_every=None)  # The largest layer has positions.
    saved = 0
    if not config.training.recomputes_blocks:
        saved = activations(config, on_gpu).layer
    plain = changed(config, "training", activation_checkpointing="none")
    chunked_layer = activations(plain, on_gpu).layer
    whole_layer = activations(changed(plain, "training", chunk_tokens=None), on_gpu).layer
    chunk = (whole_layer - chunked_layer) // num_chunks(config)
    return chunked_layer - saved + chunk


def _rounding_bytes(model: ModelConfig, training: TrainingConfig, tokens: int) -> int:
    """Return the bytes that torchao uses at a time to round a matrix to FP8, unless that is compiled.

    Args:
        model: Configuration of the model.
        training: Settings of the run.
        tokens: Number of tokens of a micro-batch on a rank.
    """
    if training.fp8 == "none" or training.compile:
        return 0
    largest_width = max(model.hidden_size, model.num_heads * model.head_dim, model.mlp_size)
    return FP8_BYTES * largest_width * max(tokens, model.hidden_size)


def _logit_bytes(model: ModelConfig, tensor_size: int, tokens: int, size: int, on_gpu: bool) -> int:
    """Return the bytes of one chunk's logits, and of the output matrix's gradient while it is summed (nn/loss.py).

    On a GPU, a kernel overwrites the logits with their gradient, and chunks have the size of its largest one.

    Args:
        model: Configuration of the model.
        tensor_size: Number of tensor-parallel ranks, which divide the vocabulary.
        tokens: Number of tokens of a micro-batch on a rank.
        size: Bytes of a number in compute.
        on_gpu: Whether to plan for the kernel of a GPU.
    """
    rows = -(-model.vocab_size // tensor_size)
    chunk_tokens = min(tokens, max(1, chunk_elements(on_gpu) // rows))

    logit_bytes = size
    if not on_gpu:
        if size != 4:
            logit_bytes += 4 + size  # in float32, and as a gradient
        if model.logit_softcap is not None:
            logit_bytes += 4 + 4  # before the soft-cap, and its slopes
    gradient_bytes = rows * model.hidden_size * (4 + size)
    return chunk_tokens * rows * logit_bytes + gradient_bytes
