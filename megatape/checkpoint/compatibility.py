"""Compatibility of a run with the checkpoint that it resumes from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatape.config import Config, ResumeRule, differences
from megatape.config.data import ReweightingConfig
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.order import SampleOrder
from megatape.errors import UserError

Changes = Sequence[ReweightingConfig]

# Rules of the fields that must not change on resume -> explanation for the error message.
IMMUTABLE = {ResumeRule.FIXED: "", ResumeRule.SAMPLES: "it would see other samples; "}


def check_same_run(
    origin: Path, theirs: Config, their_fingerprints: dict[str, str], ours: Config, our_fingerprints: dict[str, str]
) -> None:
    """Check that a run trains the same model on the same samples as the checkpoint that it resumes from.

    Args:
        origin: Folder of the checkpoint.
        theirs: Configuration in the checkpoint.
        their_fingerprints: Fingerprints of tokenizer and data in the checkpoint.
        ours: Configuration of the run.
        our_fingerprints: Fingerprints of the run's tokenizer and data.

    Raises:
        UserError: The run would train another model or see other samples.
    """
    for field in differences(theirs, ours):
        if field.rule in IMMUTABLE:
            raise UserError(
                f"{origin} was trained with {field.path} {field.theirs}, the configuration says {field.ours}: "
                f"{IMMUTABLE[field.rule]}use the former, or start a new run"
            )

    data_setting = f"data.path {ours.data.path}"
    if ours.data.mixture:
        data_setting = "data.mixture"
    for name, meaning in (("tokenizer", "tokenizer"), ("data", "set of shards")):
        if name not in their_fingerprints:
            raise UserError(f"{origin} records no fingerprint of its {name}: it is no checkpoint of MegaTAPE; use another one")
        recorded = their_fingerprints[name]
        present = our_fingerprints[name]
        if recorded != present:
            raise UserError(
                f"{origin} was trained on another {meaning} than {data_setting} holds (fingerprint {recorded[:12]}, here "
                f"{present[:12]}): point it to those shards, or start a new run"
            )


def check_end_token(origin: Path, theirs: Tokenizer, ours: Tokenizer) -> None:
    """Check that documents end with the same token as those that the checkpoint was trained on.

    Fingerprints do not show it: a tokenizer's fingerprint covers its main file, and another file may declare the end token.

    Args:
        origin: Folder of the checkpoint.
        theirs: Tokenizer in the checkpoint.
        ours: Tokenizer of the run's data.

    Raises:
        UserError: The end tokens differ.
    """
    if theirs.eos_id != ours.eos_id:
        raise UserError(
            f"{origin} was trained on documents that end with token {theirs.eos_id}, those of {ours.origin} end with "
            f"{ours.eos_id}: use the former, or start a new run"
        )


def check_annealing(origin: Path, theirs: Changes, ours: Changes, tokens: int) -> None:
    """Check that a run has the same changes of the mixture's weights as the checkpoint up to its step.

    Args:
        origin: Folder of the checkpoint.
        theirs: data.annealing of the checkpoint.
        ours: data.annealing of the run.
        tokens: Number of tokens that the checkpoint has seen. Later changes may differ.

    Raises:
        UserError: An earlier change differs.
    """
    before = [change for change in theirs if change.tokens < tokens]
    now = [change for change in ours if change.tokens < tokens]
    if before != now:
        raise UserError(
            f"{origin} has seen {tokens:,} tokens with these changes of the weights: {_describe(before)}; data.annealing says "
            f"{_describe(now)}: restore the former, and add changes only at later tokens"
        )


def _describe(changes: Changes) -> str:
    """Describe changes of the mixture's weights."""
    if not changes:
        return "none"
    return " and ".join(f"{change.weights} from {change.tokens:,}" for change in changes)


def changed_settings(origin: Path, theirs: Config, ours: Config, allow_changes: bool) -> list[str]:
    """Describe how resuming changes the recipe.

    Args:
        origin: Folder of the checkpoint.
        theirs: Configuration in the checkpoint.
        ours: Configuration of the run.
        allow_changes: Whether settings that must be confirmed (ResumeRule.CONFIRMED) may change.

    Returns:
        A line for each changed setting.

    Raises:
        UserError: A setting that must be confirmed has changed, and `allow_changes` is False.
    """
    changed = [field for field in differences(theirs, ours) if field.rule.is_compared]
    unconfirmed = [field for field in changed if field.rule is ResumeRule.CONFIRMED]
    if unconfirmed and not allow_changes:
        former = ", ".join(f"{field.path} {field.theirs} (the configuration says {field.ours})" for field in unconfirmed)
        raise UserError(
            f"{origin} was trained with {former}: restore the former, or add --allow-changes to continue with the new values"
        )
    return [f"{field.path}: {field.theirs} -> {field.ours}" for field in changed]


def check_order(origin: Path, state: dict[str, Any], order: SampleOrder) -> None:
    """Check that the order of samples is that of the run's last step before a checkpoint.

    Args:
        origin: Folder of the checkpoint.
        state: State of the checkpoint.
        order: Order of the samples that follow.

    Raises:
        UserError: The order has other samples in that step.
    """
    last = state.get("last_step")
    if not last:  # written by an earlier version
        return
    found = order.digest(range(last["first"], last["last"] + 1))
    if found != last["digest"]:
        raise UserError(
            f"{origin}: samples {last['first']:,} to {last['last']:,}, of its last step, had the digest {last['digest']}; this "
            f"version of MegaTAPE would take others there ({found}), so the run would see some samples twice and some never: "
            "continue with the version that wrote the checkpoint"
        )
