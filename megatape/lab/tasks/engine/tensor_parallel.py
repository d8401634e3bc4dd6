"""A trained model run by the training code, on one rank or sharded across tensor-parallel ranks.

It needs no export and may be too large for a single GPU. There is no cache: generating a token takes a forward pass over all
tokens before it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from megatape.config import ModelConfig
from megatape.distributed.layout import gather_vocabulary
from megatape.distributed.mesh import Axis
from megatape.encodings import encoding_of
from megatape.errors import UserError, flag
from megatape.hf.adapters.merge import merge_adapter
from megatape.hf.model_folder import open_model_folder
from megatape.hf.special_tokens import special_tokens
from megatape.hf.weights.model_weights import ModelWeights
from megatape.lab.tasks.engine.loading import model_name
from megatape.lab.tasks.engine.outline import exported_tokenizer
from megatape.model.build import build_model
from megatape.model.layout import Layout
from megatape.model.transformer import Transformer
from megatape.nn.parameters import matrix_shape, shard_of, spec_of
from megatape.zero.state.kinds import WEIGHT


@dataclass
class TensorParallelModel:
    """An EvaluationModel with weights sharded across the ranks of `axis`. Its methods are collective."""

    name: str
    tokenizer: Any
    model: Transformer
    axis: Axis
    device: torch.device
    end_ids: set[int]
    padding_id: int

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    @property
    def max_positions(self) -> int:
        """Maximum text length in tokens."""
        return self.model.config.max_positions

    def continuations(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Continue each prompt greedily by `num_tokens` ids. Texts ending earlier are padded."""
        end_ids = torch.tensor(sorted(self.end_ids))
        tokens = torch.tensor(prompts)
        ended = torch.zeros(len(prompts), dtype=torch.bool)
        for _ in range(num_tokens):
            greedy_ids = self.logits(tokens)[:, -1].argmax(-1).cpu()
            next_ids = greedy_ids.masked_fill(ended, self.padding_id)
            tokens = torch.cat([tokens, next_ids[:, None]], 1)
            ended |= torch.isin(next_ids, end_ids)
            if ended.all():
                break
        prompt_length = len(prompts[0])
        return list(tokens[:, prompt_length:].tolist())

    @torch.no_grad()
    def logits(self, tokens: Tensor) -> Tensor:
        """Return float32 logits [B, N, V] on all ranks, for ids [B, N]."""
        length = tokens.shape[1]
        # Pad the sequence, so that ranks get equal shares. No token attends to the padding.
        padded = pad(tokens, (0, -length % self.axis.size)).to(self.device)
        positions = torch.arange(padded.shape[1], device=self.device).expand_as(padded)
        logits = gather_vocabulary(self.model(padded, positions), self.vocab_size, self.axis)
        return logits[:, :length].float()


@contextmanager
def load_tensor_parallel(
    folder: Path, axis: Axis, base: Path | None = None, adapter: Path | None = None
) -> Iterator[TensorParallelModel]:
    """Load a model from a checkpoint, export, import or folder of transformers. Each rank reads its shard.

    Weights have the precision of an export.

    Args:
        folder: Model folder.
        axis: Ranks sharding the model.
        base: Base model folder, for a checkpoint holding only trained weights.
        adapter: Exported adapter to merge into the model.

    Raises:
        MissingPath: A folder or file is missing.
        UserError: The folder holds no model, it cannot be sharded equally, or its positions depend on a run's seed.
    """
    with TemporaryDirectory() as temporary:
        name = model_name(folder, adapter)
        opened = open_model_folder(folder, base)
        if adapter is not None:
            merged = Path(temporary) / "merged"
            merge_adapter(adapter, opened.files, merged)
            opened = open_model_folder(merged)
        source = opened.weights()
        source.verify(axis.rank, axis.size)
        source.check_fits(source.model)
        check_divisible(source.model, axis.size, name)
        device = torch.device("cpu")
        if torch.cuda.is_available():
            device = torch.device("cuda", torch.cuda.current_device())
        model = build_model(source.model, Layout(tensor_axis=axis))
        _load_weights(model, source, axis, device)
        model.eval()

        special = special_tokens(source.tokenizer())
        end_ids = special.eos_token_id
        if not isinstance(end_ids, list):
            end_ids = [end_ids]
        padding_id = special.pad_token_id
        if padding_id is None:
            padding_id = end_ids[0]
        yield TensorParallelModel(name, exported_tokenizer(source), model, axis, device, set(end_ids), padding_id)


def check_divisible(model: ModelConfig, num_ranks: int, name: str) -> None:
    """Check that a model can be sharded equally, and that its positions are not drawn at random.

    Args:
        model: Model configuration.
        num_ranks: Number of tensor-parallel ranks.
        name: Model name in messages.

    Raises:
        UserError: The model is not supported.
    """
    for field in ("num_heads", "num_kv_heads", "mlp_size"):
        size = getattr(model, field)
        if size % num_ranks:
            raise UserError(
                f"{flag('tp')} {num_ranks}: {field} of {name} is {size}, and every rank holds an equal share: give a divisor"
            )
    if encoding_of(model).positions(random_offset=False).drawn_from:
        raise UserError(
            f"{name}: positions of {model.encoding} are drawn by a seed in its export: leave out {flag('tp')} and "
            f"{flag('training_code')}"
        )


def _load_weights(model: Transformer, source: ModelWeights, axis: Axis, device: torch.device) -> None:
    """Load this rank's rows and columns of every weight. Padding rows are zero."""
    for name, parameter in model.named_parameters():
        local_shape = tuple(parameter.shape)
        whole_shape = spec_of(parameter).shape
        shard = shard_of(parameter, local_shape, axis)
        block = torch.zeros(matrix_shape(local_shape), dtype=source.dtype)
        rows = slice(shard.rows.start, min(shard.rows.stop, whole_shape[0]))
        num_rows = rows.stop - rows.start
        if num_rows > 0:
            block[:num_rows] = source.read(WEIGHT, name, whole_shape, rows, shard.columns)
        parameter.data = block.view(local_shape).to(device)
