"""A trained model run by the training code, whole or divided over tensor-parallel ranks.

It needs no export, and a model that fits no single GPU can be evaluated. It has no cache: each token of a continuation takes a
forward pass over all tokens before it.
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
from megatape.distributed.layout import whole_vocabulary
from megatape.distributed.mesh import Axis
from megatape.encodings import encoding_of
from megatape.errors import UserError
from megatape.hf.adapters.merge import merge_adapter
from megatape.hf.model_folder import open_model_folder
from megatape.hf.tokenizer import special_tokens
from megatape.hf.weights.model_weights import ModelWeights
from megatape.lab.tasks.engine.outline import exported_tokenizer, model_name
from megatape.model.build import build_model
from megatape.model.transformer import Transformer
from megatape.nn.parameters import matrix, share_of, spec_of
from megatape.zero.state import WEIGHT


@dataclass
class TensorParallelModel:
    """An EvaluationModel whose weights the ranks of `axis` divide: its methods are collective."""

    name: str
    tokenizer: Any
    model: Transformer
    axis: Axis
    device: torch.device
    end_ids: set[int]
    padding_id: int

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.model.config.vocab_size

    @property
    def max_positions(self) -> int:
        """The longest text in tokens, up to a window, which the training code does not have."""
        config = self.model.config
        return min(config.max_positions, config.sliding_window or config.max_positions)

    def continuations(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """The likeliest `num_tokens` ids after each prompt, padded from where the model ends a text."""
        tokens = torch.tensor(prompts)
        ended = torch.zeros(len(prompts), dtype=torch.bool)
        for _ in range(num_tokens):
            chosen = self.logits(tokens)[:, -1].argmax(-1).cpu().masked_fill(ended, self.padding_id)
            tokens = torch.cat([tokens, chosen[:, None]], 1)
            ended |= torch.isin(chosen, torch.tensor(sorted(self.end_ids)))
            if ended.all():
                break
        return list(tokens[:, len(prompts[0]) :].tolist())

    @torch.no_grad()
    def logits(self, tokens: Tensor) -> Tensor:
        """Float32 [B, N, V] for ids [B, N], on all ranks."""
        length = tokens.shape[1]
        tokens = pad(tokens, (0, -length % self.axis.size)).to(self.device)  # each rank has an equal share; no token sees these
        positions = torch.arange(tokens.shape[1], device=self.device).expand_as(tokens)
        return whole_vocabulary(self.model(tokens, positions), self.vocab_size, self.axis)[:, :length].float()


@contextmanager
def load_tensor_parallel(
    folder: Path, axis: Axis, base: Path | None = None, adapter: Path | None = None
) -> Iterator[TensorParallelModel]:
    """The model of a checkpoint, an export, an import or a folder of transformers, of which each rank reads its share.

    It is in the precision that an export of it has.

    Args:
        folder: Of the model.
        axis: The ranks that divide it.
        base: The folder that a checkpoint of trained weights only began with.
        adapter: An exported adapter to merge into the model.

    Raises:
        MissingPath: A folder or file is missing.
        UserError: The folder holds no such model, the ranks cannot divide it, or its positions depend on a run's seed.
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
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        model = _filled(build_model(source.model, axis), source, axis, device)
        special = special_tokens(source.tokenizer())
        ends = special.eos_token_id if isinstance(special.eos_token_id, list) else [special.eos_token_id]
        padding = ends[0] if special.pad_token_id is None else special.pad_token_id
        yield TensorParallelModel(name, exported_tokenizer(source), model, axis, device, set(ends), padding)


def check_divisible(model: ModelConfig, num_ranks: int, name: str) -> None:
    """Raise UserError if tensor-parallel ranks cannot hold equal shares of a model, or its positions are drawn."""
    for field in ("num_heads", "num_kv_heads", "mlp_size"):
        if getattr(model, field) % num_ranks:
            raise UserError(
                f"tp {num_ranks}: {field} of {name} is {getattr(model, field)}, and every rank holds an equal share: give a "
                "divisor"
            )
    if encoding_of(model).positions(random_offset=False).drawn_from:
        raise UserError(
            f"{name}: positions of {model.encoding} are drawn by a seed in its export: leave out `tp` and `training_code`"
        )


def _filled(model: Transformer, source: ModelWeights, axis: Axis, device: torch.device) -> Transformer:
    """The model with this rank's rows and columns of every weight; rows of padding are zero."""
    for name, parameter in model.named_parameters():
        local = tuple(parameter.shape)
        whole = spec_of(parameter).shape
        share = share_of(parameter, local, axis)
        block = torch.zeros(matrix(local), dtype=source.dtype)
        rows = slice(share.rows.start, min(share.rows.stop, whole[0]))
        if rows.start < rows.stop:
            block[: rows.stop - rows.start] = source.read(WEIGHT, name, whole, rows, share.columns)
        parameter.data = block.view(local).to(device)
    return model.eval()
