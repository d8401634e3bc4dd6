"""Reading a checkpoint: any slice of any tensor, on any topology, without pickle."""

import re
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, FiniteFloat, field_validator
from safetensors import safe_open
from torch import Tensor

from megatape.checkpoint.manifest import ANOTHER, MANIFEST, RNG, STATE, BaseRecord, check_file, check_hashes, load_manifest
from megatape.checkpoint.tensors import Base, open_base
from megatape.config import Config, parse_config
from megatape.data.counts import Count
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.data.tokenizers.tokenizer import FILES, Tokenizer
from megatape.data.training.selection import EARLIER_SELECTION, Selection
from megatape.errors import CheckpointError, UserError, content_errors, path_errors
from megatape.run_folder import named_step
from megatape.utils.files import as_type, read_json

MAX_STEP_SAMPLES = 2**24  # of which resuming computes a digest


class SpikeState(BaseModel, extra="allow"):
    """The part of state.json by which the spike policy judges the next steps."""

    spikes: dict[str, list[FiniteFloat]] = {}
    left_out: list[tuple[Count, Count]] = []
    troubled: list[Count] = []


class Average(BaseModel):
    """The checkpoints whose weights were averaged: the folder of their run, their steps, and the share of each."""

    run: str
    steps: list[Count]
    shares: list[FiniteFloat]


class State(BaseModel, extra="allow"):
    """The content of state.json, all of which a run gets back: here is what is checked.

    Earlier versions wrote less; last_step is empty before the first step.

    average: of a checkpoint that `megatape average` wrote; the rest is that of the newest one.
    """

    step: Count
    updates: Count = 0
    samples: Count
    tokens: Count
    fingerprints: dict[str, str]
    config: dict[str, Any]
    attention: str = ""
    guard: SpikeState = SpikeState()
    callbacks: dict[str, Any] = {}
    last_step: dict[str, int] = {}
    validation_selection: Selection = EARLIER_SELECTION
    average: Average | None = None

    @field_validator("last_step")
    @classmethod
    def _check_last_step(cls, last: dict[str, int]) -> dict[str, int]:
        if last and (last.keys() != {"first", "last", "digest"} or not 0 <= last["last"] - last["first"] < MAX_STEP_SAMPLES):
            raise UserError(f"{last} are no samples of a step")
        return last


class CheckpointReader:
    """One checkpoint folder. Sizes, manifest and state are checked when it is opened; all hashes by `verify`.

    Weights that the checkpoint leaves out are read from its base, which is opened when one is needed.
    base: where that is now, if not where the manifest says. Raises FileNotFoundError or UserError as `load_manifest` does, and
    CheckpointError for a base that is given to a checkpoint without one.
    """

    def __init__(self, directory: Path, base: Path | None = None) -> None:
        self.directory = directory
        self.base_folder = base
        self.manifest = load_manifest(directory)
        self.base_record = BaseRecord.model_validate(self.manifest["base"]) if "base" in self.manifest else None
        if base is not None and self.base_record is None:
            raise CheckpointError(f"{directory} holds all of its weights: leave out --base")
        if "weight" not in self.manifest["tensors"]:
            raise UserError(f"{directory / MANIFEST}: no manifest of MegaTAPE: tensors has no weight; {ANOTHER}")
        check_file(directory, self.manifest, STATE)
        self.state = _read_state(directory / STATE)
        self.step: int = self.state["step"]
        self.updates: int = self.state["updates"]
        self.samples: int = self.state["samples"]
        self.tokens: int = self.state["tokens"]
        if re.fullmatch(r"step-\d+", directory.name) and named_step(directory) != self.step:
            raise UserError(
                f"{directory} holds step {self.step}: it was copied or renamed; rename it to step-{self.step:08d}, or remove it"
            )
        self._open: dict[str, Any] = {}

    @cached_property
    def config(self) -> Config:
        """Resolved configuration of the run that wrote the checkpoint."""
        return parse_config(self.state["config"], str(self.directory / STATE))

    @cached_property
    def base(self) -> Base | None:
        """The folder of the weights that the checkpoint leaves out. Raises CheckpointError if it is not there."""
        return open_base(self.base_record, self.directory, self.base_folder) if self.base_record else None

    def names(self) -> list[str]:
        """Names of all parameters."""
        return [*self.manifest["tensors"]["weight"], *(self.base_record.tensors if self.base_record else ())]

    def tensor(self, name: str) -> Tensor:
        """The whole float32 master weight of a parameter."""
        base = self._base_with("weight", name)
        return base.tensor(name) if base else self._file("weight", name).get_tensor(name)

    def read(self, kind: str, name: str, shape: tuple[int, ...], rows: slice, columns: slice) -> Tensor:
        """The given rows and columns of a tensor, which are all that is read; a vector counts as a matrix of one column.

        Where the run kept no average of its weights, one that begins now begins with the weights.
        """
        if kind == "ema" and kind not in self.manifest["tensors"]:
            kind = "weight"
        base = self._base_with(kind, name)
        stored: Any = None if base else self._file(kind, name).get_slice(name)
        found = base.tensors[name].shape if base else tuple(stored.get_shape())
        if found != shape:
            raise UserError(
                f"{self.directory}: {name} has shape {found}, the model's is {shape}: the model section of the configuration "
                "differs"
            )
        if base:
            return base.read(kind, name, shape, rows, columns)
        block: Tensor = stored[rows, columns] if len(shape) == 2 else stored[rows][:, None]
        if not torch.isfinite(block).all():
            raise UserError(
                f"{self.directory}: the {kind} of {name} is not finite: the run had diverged when an earlier version wrote "
                "this checkpoint; remove it, and continue from an older one"
            )
        return block

    def rng_state(self, rank: int) -> Tensor | None:
        """Generator state that this rank saved, or None if the run had fewer ranks."""
        with safe_open(self.directory / RNG, framework="pt") as file:
            return file.get_tensor(f"rank{rank}") if f"rank{rank}" in file.keys() else None  # noqa: SIM118 (no mapping)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the run was trained with. Raises UserError if a file of it is corrupted or missing."""
        files = self.manifest["files"]
        return stored_tokenizer(self.directory, {name: files[name]["sha256"] for name in FILES if name in files})

    def verify(self, share: int = 0, shares: int = 1) -> None:
        """Hash every `shares`-th file of the checkpoint, and of its base, so that ranks can divide the work.

        Raises UserError for a corrupted checkpoint, CheckpointError for a base that is not the one that it was trained with.
        """
        check_hashes(self.directory, self.manifest, share, shares)
        if self.base:
            self.base.verify(share, shares)

    def _base_with(self, kind: str, name: str) -> Base | None:
        """The base, if that holds the tensor."""
        return self.base if kind == "weight" and self.base_record and name in self.base_record.tensors else None

    def _file(self, kind: str, name: str) -> Any:
        try:
            file = self.manifest["tensors"][kind][name]
        except KeyError:
            raise UserError(f"{self.directory}: no {kind} of {name}: the model section of the configuration differs") from None
        if file not in self._open:
            self._open[file] = safe_open(self.directory / file, framework="pt")
        return self._open[file]


class EmaReader(CheckpointReader):
    """A checkpoint with the average of its weights in their place; frozen ones are as they are.

    Raises UserError for a checkpoint without one.
    """

    def __init__(self, directory: Path, base: Path | None = None) -> None:
        super().__init__(directory, base)
        if "ema" not in self.manifest["tensors"]:
            raise UserError(
                f"{directory} has no moving average of its weights, as only checkpoints of a run with optimizer.ema_decay do: "
                "remove --weights ema, or average several of its checkpoints by `megatape average`"
            )

    def tensor(self, name: str) -> Tensor:
        """The average of a parameter in float32."""
        return self._file("ema", name).get_tensor(name) if name in self.manifest["tensors"]["ema"] else super().tensor(name)


def _read_state(path: Path) -> dict[str, Any]:
    """The content of state.json. Raises UserError if it is not what a run writes."""
    with content_errors(f"{path}: no state of a run", ANOTHER):
        state = as_type(read_json(path), State).model_dump(exclude_unset=True)
    state.setdefault("updates", state["step"])  # earlier versions took every step
    return state


@path_errors()
def verified_checkpoint(
    directory: Path, base: Path | None = None, share: int = 0, shares: int = 1, kind: type[CheckpointReader] = CheckpointReader
) -> CheckpointReader:
    """The checkpoint in `directory`, every `shares`-th file of which, and of its base, has the hash that was recorded.

    Raises as CheckpointReader (`kind`) and its `verify` do.
    """
    checkpoint = kind(directory, base)
    checkpoint.verify(share, shares)
    return checkpoint


def rng_snapshot() -> Tensor:
    """State of torch's generators on this rank, as bytes: the CPU's, then the current GPU's if there is one."""
    parts = [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])
    return torch.cat(parts)


def restore_rng(snapshot: Tensor) -> None:
    """Put back what `rng_snapshot` took."""
    size = torch.get_rng_state().numel()
    torch.set_rng_state(snapshot[:size])
    if torch.cuda.is_available() and snapshot.numel() > size:
        torch.cuda.set_rng_state(snapshot[size:])
