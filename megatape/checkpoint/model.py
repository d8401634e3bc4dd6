"""The model in a checkpoint."""

from megatape.checkpoint.reader import CheckpointReader
from megatape.errors import UserError
from megatape.model.build import build_model
from megatape.model.transformer import Transformer


def load_model(checkpoint: CheckpointReader) -> Transformer:
    """The checkpoint's model on the CPU, with its float32 master weights. Raises UserError if they are another model's."""
    model = build_model(checkpoint.config.model)
    for name, parameter in model.named_parameters():
        value = checkpoint.tensor(name)
        if value.shape != parameter.shape:
            raise UserError(
                f"{checkpoint.directory}: {name} has shape {tuple(value.shape)}, its configuration says "
                f"{tuple(parameter.shape)}: the checkpoint is corrupted, use another one"
            )
        parameter.data = value
    return model
