"""Choosing a checkpoint to continue from, and whether it belongs to the run."""

import logging
from pathlib import Path

from safetensors import SafetensorError

from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.reader import CheckpointReader, verified_checkpoint
from megatape.config import Config, ResumeRule, differences
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.distributed.exchange import on_all
from megatape.errors import CheckpointError, PathError, UserError, path_error
from megatape.reliability.shared_folder import wait_until_visible
from megatape.utils.files import rename, retry_transient_errors, sync

LOG = logging.getLogger(__name__)

# What a field that a run keeps would change, for the error.
IMMUTABLE = {ResumeRule.FIXED: "", ResumeRule.SAMPLES: "it would see other samples; "}


def first_valid(names: list[str], environment: RunEnvironment) -> tuple[CheckpointReader | None, list[Path]]:
    """The first of these checkpoints of the run whose files all have their size and hash. Collective.

    Returns:
        The checkpoint, None if none is valid, and those before it.

    Raises:
        UserError: on all ranks, the base of a checkpoint is not there or another one.
        PathError: on all ranks, a checkpoint cannot be read.
    """
    directories = [environment.folder.checkpoints / name for name in names]
    for number, directory in enumerate(directories):
        reader = _open_verified(directory, environment)
        if reader is not None:
            return reader, directories[:number]
    return None, directories


def open_checkpoint(directory: Path, environment: RunEnvironment) -> CheckpointReader:
    """The checkpoint in `directory`. Collective.

    Raises:
        FileNotFoundError, UserError: there is none or it is corrupted, or its base is not there or another one.
    """
    CheckpointReader(directory, environment.base)
    reader = _open_verified(directory, environment)
    if reader is None:
        raise UserError(f"{directory} is corrupted (above); give another checkpoint, or --resume auto for the newest valid one")
    return reader


def move_aside(checkpoints: list[Path], suffix: str) -> None:
    """Rename checkpoints that the run does not continue from: it will write its own there, and keeping must not count them."""
    for path in filter(Path.exists, checkpoints):
        aside = path.with_name(path.name + suffix)
        while aside.exists():  # the same step was moved aside before
            aside = aside.with_name(aside.name + suffix)
        rename(path, aside)
        sync(path.parent)
        LOG.warning("%s renamed to %s", path.name, aside.name)


def _open_verified(directory: Path, environment: RunEnvironment) -> CheckpointReader | None:
    """Open and hash with all ranks, each its share of the files; None on all of them when one finds a fault.

    Raises on all ranks PathError if one cannot read it, and CheckpointError for another version's or without its base: these
    say nothing about the content.
    """
    topology = environment.topology
    reader = None

    def fault() -> str:
        nonlocal reader
        try:
            if not wait_until_visible(directory):
                raise PathError("it is not seen here")
            reader = retry_transient_errors(
                lambda: verified_checkpoint(directory, environment.base, topology.rank, topology.world_size)
            )
        except CheckpointError:
            raise
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                again = "Nothing was changed: once the folder can be read, start again"
                raise path_error(error, f"checkpoint {directory} cannot be read: {error}. {again}") from error
            return str(error)
        except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            return str(error)
        return ""

    corrupted = dict.fromkeys(text for text in on_all(fault, topology) if text)
    if topology.is_main:
        for text in corrupted:
            LOG.warning("checkpoint not used: %s", text)
    return None if corrupted else reader


def check_same_run(origin: Path, theirs: Config, recorded: dict[str, str], ours: Config, fingerprints: dict[str, str]) -> None:
    """Raise UserError when resuming from the checkpoint `origin` would train another model or show other samples.

    theirs, recorded: its configuration and fingerprints; ours, fingerprints: those of the run.
    """
    for field in differences(theirs, ours):
        if field.rule in IMMUTABLE:
            raise UserError(
                f"{origin} was trained with {field.path} {field.theirs}, the configuration says {field.ours}: "
                f"{IMMUTABLE[field.rule]}use the former, or start a new run"
            )
    for name in ("tokenizer", "data"):
        if name not in recorded:
            raise UserError(f"{origin} records no fingerprint of its {name}: it is no checkpoint of MegaTAPE; use another one")
        if recorded[name] != fingerprints[name]:
            raise UserError(
                f"{origin} was trained on another {'set of shards' if name == 'data' else 'tokenizer'} than "
                f"{'data.mixture' if ours.data.mixture else f'data.path {ours.data.path}'} holds (fingerprint "
                f"{recorded[name][:12]}, here {fingerprints[name][:12]}): point it to those shards, or start a new run"
            )


def check_end_token(origin: Path, theirs: Tokenizer, ours: Tokenizer) -> None:
    """Raise UserError if documents end with another token than those that the checkpoint `origin` was trained on.

    The fingerprint of a tokenizer is that of its main file, and another one may declare the end token.
    """
    if theirs.eos_id != ours.eos_id:
        raise UserError(
            f"{origin} was trained on documents that end with token {theirs.eos_id}, those of {ours.origin} end with "
            f"{ours.eos_id}: use the former, or start a new run"
        )


def check_annealing(origin: Path, theirs: Config, ours: Config, tokens: int) -> None:
    """Raise UserError if the checkpoint `origin` would have seen other tokens by our configuration.

    tokens: how many it has seen. Only changes of the mixture's weights that are still to come may be changed.
    """
    seen = [[change for change in config.data.annealing if change.tokens < tokens] for config in (theirs, ours)]
    if seen[0] != seen[1]:
        former, now = (" and ".join(f"{change.weights} from {change.tokens:,}" for change in one) or "none" for one in seen)
        raise UserError(
            f"{origin} has seen {tokens:,} tokens with these changes of the weights: {former}; data.annealing says {now}: "
            "restore the former, and add changes only at later tokens"
        )


def changed_settings(origin: Path, theirs: Config, ours: Config, allow_changes: bool) -> list[str]:
    """What resuming from `origin` changes in the recipe, a line for each field.

    Raises UserError if one of them must be confirmed (ResumeRule.CONFIRMED) and allow_changes is False.
    """
    changed = [field for field in differences(theirs, ours) if field.rule.is_compared]
    if unconfirmed := [field for field in changed if field.rule is ResumeRule.CONFIRMED and not allow_changes]:
        former = ", ".join(f"{field.path} {field.theirs} (the configuration says {field.ours})" for field in unconfirmed)
        raise UserError(
            f"{origin} was trained with {former}: restore the former, or add --allow-changes to continue with the new values"
        )
    return [f"{field.path}: {field.theirs} -> {field.ours}" for field in changed]
