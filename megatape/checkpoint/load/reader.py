"""Reads checkpoints: any slice of any tensor, on any topology, without pickle."""

import re
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from megatape.checkpoint.format.frozen_weights import FrozenWeights, open_base
from megatape.checkpoint.format.manifest import ANOTHER, MANIFEST, RNG, STATE, check_file, check_hashes, load_manifest
from megatape.checkpoint.format.state import read_state
from megatape.config import Config, parse_config
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.data.tokenizers.tokenizer import FILES, Tokenizer
from megatape.errors import CheckpointError, UserError, flag, path_errors
from megatape.run_folder import named_step
from megatape.zero.state.kinds import EMA, WEIGHT


class CheckpointReader:
    """Checkpoint in a folder.

    Opening it checks the manifest, the state and all file sizes. `verify` checks all hashes. Weights that the checkpoint leaves
    out are read from its base, which is opened when the first of them is needed.

    Args:
        directory: Checkpoint folder.
        base_folder: Present folder of the base if it was moved, else None.

    Attributes:
        directory: See Args.
        manifest: Manifest content.
        state: Content of state.json.
        step, updates, samples, tokens: See StateFile.

    Raises:
        FileNotFoundError: The folder is not a complete checkpoint.
        CheckpointError: Another version wrote it, or `base_folder` is given though the checkpoint has all weights.
        UserError: It is corrupted.
    """

    def __init__(self, directory: Path, base_folder: Path | None = None) -> None:
        self.directory = directory
        self.manifest = load_manifest(directory)
        self._base_folder = base_folder
        if base_folder is not None and self.manifest.base is None:
            raise CheckpointError(f"{directory} holds all of its weights: leave out {flag('base')}")
        if WEIGHT not in self.manifest.tensors:
            raise UserError(f"{directory / MANIFEST} is not a manifest of MegaTAPE: tensors has no weight; {ANOTHER}")

        check_file(directory, self.manifest, STATE)
        self.state = read_state(directory / STATE)
        self.step = self.state.step
        self.updates = self.state.updates
        self.samples = self.state.samples
        self.tokens = self.state.tokens
        if re.fullmatch(r"step-\d+", directory.name) and named_step(directory) != self.step:
            raise UserError(
                f"{directory} holds step {self.step}: it was copied or renamed; rename it to step-{self.step:08d}, or remove it"
            )

    @cached_property
    def config(self) -> Config:
        """Resolved configuration of the run that wrote the checkpoint."""
        return parse_config(self.state.config, str(self.directory / STATE))

    @cached_property
    def base(self) -> FrozenWeights | None:
        """Weights that the checkpoint leaves out, or None if it has all weights. Raises CheckpointError if they are missing."""
        if self.manifest.base is None:
            return None
        return open_base(self.manifest.base, self.directory, self._base_folder)

    def names(self) -> list[str]:
        """Return all parameter names."""
        names = list(self.manifest.tensors[WEIGHT])
        if self.manifest.base is not None:
            names += self.manifest.base.tensors
        return names

    def tensor(self, name: str) -> Tensor:
        """Read the float32 master weight of a parameter."""
        base = self._base_with(WEIGHT, name)
        if base is not None:
            return base.tensor(name)
        return self._whole_tensor(WEIGHT, name)

    def read(self, kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        """Read some rows and columns of a tensor, and nothing else.

        Args:
            kind: Tensor kind. A checkpoint without a moving average ("ema") returns the weight, because an average starting
                now starts with the weights.
            name: Parameter name.
            shape: Shape in the run's model.
            rows: Rows to read.
            columns: Columns to read. A vector has one column.

        Returns:
            float32 [rows, columns].

        Raises:
            UserError: The tensor is missing, has another shape, or has values that are not finite.
        """
        if kind == EMA and kind not in self.manifest.tensors:
            kind = WEIGHT
        base = self._base_with(kind, name)
        if base is not None:
            self._check_shape(name, base.tensors[name].shape, shape)
            return base.read(kind, name, shape, rows, columns)

        block: Tensor
        with self._open_file(kind, name) as file:
            tensor = file.get_slice(name)
            self._check_shape(name, tuple(tensor.get_shape()), shape)
            if len(shape) == 2:
                block = tensor[rows, columns]
            else:
                block = tensor[rows][:, None]
        if not torch.isfinite(block).all():
            raise UserError(
                f"{self.directory}: the {kind} of {name} is not finite: the run had diverged when an earlier version wrote "
                "this checkpoint; remove it, and continue from an older one"
            )
        return block

    def rng_state(self, rank: int) -> Tensor | None:
        """Read a rank's generator state (checkpoint/format/rng.py). Returns None if the run had fewer ranks."""
        key = f"rank{rank}"
        with safe_open(self.directory / RNG, framework="pt") as file:
            if key not in file.keys():  # noqa: SIM118 (no mapping)
                return None
            state: Tensor = file.get_tensor(key)
            return state

    def tokenizer(self) -> Tokenizer:
        """Open the tokenizer used for training. Raises UserError if one of its files is corrupted or missing."""
        files = self.manifest.files
        hashes = {name: files[name].sha256 for name in FILES if name in files}
        return stored_tokenizer(self.directory, hashes)

    def verify(self, share: int = 0, num_shares: int = 1) -> None:
        """Verify the hashes of every `num_shares`-th file in the checkpoint and its base, so that ranks can share the work.

        Args:
            share: Index of the first file.
            num_shares: Number of ranks sharing the work.

        Raises:
            UserError: The checkpoint is corrupted.
            CheckpointError: The base is missing, or not the one used for training.
        """
        check_hashes(self.directory, self.manifest, share, num_shares)
        if self.base is not None:
            self.base.verify(share, num_shares)

    def _base_with(self, kind: str, name: str) -> FrozenWeights | None:
        """Return the base if it has this tensor, else None."""
        if kind != WEIGHT or self.manifest.base is None or name not in self.manifest.base.tensors:
            return None
        return self.base

    def _check_shape(self, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if shape != expected:
            raise UserError(
                f"{self.directory}: {name} has shape {shape}, the model's is {expected}: the model section of the "
                "configuration differs"
            )

    def _whole_tensor(self, kind: str, name: str) -> Tensor:
        with self._open_file(kind, name) as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    def _open_file(self, kind: str, name: str) -> Any:
        """Open the safetensors file with a tensor. Close it after each tensor: pages read through it count as our memory."""
        try:
            file = self.manifest.tensors[kind][name]
        except KeyError:
            raise UserError(f"{self.directory}: no {kind} of {name}: the model section of the configuration differs") from None
        return safe_open(self.directory / file, framework="pt")


class EmaReader(CheckpointReader):
    """Checkpoint with trained weights replaced by their moving average. Frozen weights stay as they are.

    Raises:
        UserError: The checkpoint has no moving average.
    """

    def __init__(self, directory: Path, base_folder: Path | None = None) -> None:
        super().__init__(directory, base_folder)
        if EMA not in self.manifest.tensors:
            raise UserError(
                f"{directory} has no moving average of its weights, as only checkpoints of a run with optimizer.ema_decay do: "
                f"remove {flag('weights')} ema, or average several of its checkpoints by `megatape average`"
            )

    def tensor(self, name: str) -> Tensor:
        """Read a parameter's average in float32, or the weight if the parameter is frozen."""
        if name not in self.manifest.tensors[EMA]:
            return super().tensor(name)
        return self._whole_tensor(EMA, name)

    def read(self, kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        """Read some rows and columns of a tensor, taking a weight's average in its place if it has one."""
        if kind == WEIGHT and name in self.manifest.tensors[EMA]:
            kind = EMA
        return super().read(kind, name, shape, rows, columns)


@path_errors()
def verified_checkpoint(
    directory: Path,
    base: Path | None = None,
    share: int = 0,
    num_shares: int = 1,
    kind: type[CheckpointReader] = CheckpointReader,
) -> CheckpointReader:
    """Open a checkpoint and verify the hashes of its files.

    Args:
        directory: Checkpoint folder.
        base: Present folder of its base if it was moved, else None.
        share: Index of the first file to verify.
        num_shares: Number of ranks sharing the work.
        kind: Reader class.

    Raises:
        FileNotFoundError, CheckpointError, UserError: As CheckpointReader and its `verify`.
    """
    checkpoint = kind(directory, base)
    checkpoint.verify(share, num_shares)
    return checkpoint
