"""Compatibility of a run with the checkpoint that it resumes from."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from megatape.checkpoint.format.state import StepSamples
from megatape.config import DataConfig, Difference, ResumeRule
from megatape.config.sections.data import ReweightingConfig
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.mixing.order import SampleOrder
from megatape.errors import UserError, flag

Changes = Sequence[ReweightingConfig]

# Rules forbidding changes on resume -> explanation for the error message.
IMMUTABLE = {ResumeRule.FIXED: "", ResumeRule.SAMPLES: "it would see other samples; "}


def check_same_settings(origin: Path, changed: Iterable[Difference]) -> None:
    """Check that no changed setting makes a run train another model or see other samples than the checkpoint.

    Args:
        origin: Checkpoint folder.
        changed: Settings that differ between checkpoint and run.

    Raises:
        UserError: A setting must not change on resume.
    """
    for field in changed:
        if field.rule in IMMUTABLE:
            raise UserError(
                f"{origin} was trained with {field.path} {field.theirs}, the configuration says {field.ours}: "
                f"{IMMUTABLE[field.rule]}set it back to {field.theirs}, or start a new run"
            )


def check_same_data(origin: Path, theirs: Mapping[str, str], ours: Mapping[str, str], config: DataConfig) -> None:
    """Check that a run uses the same tokenizer and shards as the checkpoint.

    Args:
        origin: Checkpoint folder.
        theirs: Tokenizer and data fingerprints in the checkpoint.
        ours: The run's tokenizer and data fingerprints.
        config: Location of the run's data, for the message.

    Raises:
        UserError: A fingerprint is missing or differs.
    """
    setting = f"data.path {config.path}"
    if config.mixture:
        setting = "data.mixture"
    for name, meaning in (("tokenizer", "tokenizer"), ("data", "set of shards")):
        if name not in theirs:
            raise UserError(
                f"{origin} records no fingerprint of its {name}, so it is not a checkpoint of MegaTAPE; use another one"
            )
        recorded = theirs[name]
        present = ours[name]
        if recorded != present:
            raise UserError(
                f"{origin} was trained on another {meaning} than {setting} holds (fingerprint {recorded[:12]}, here "
                f"{present[:12]}): point it to those shards, or start a new run"
            )


def check_end_token(origin: Path, theirs: Tokenizer, ours: Tokenizer) -> None:
    """Check that the run's documents end with the same token as the checkpoint's.

    Fingerprints do not show this: they only cover a tokenizer's main file, and another file may declare the end token.

    Args:
        origin: Checkpoint folder.
        theirs: Tokenizer in the checkpoint.
        ours: The run's tokenizer.

    Raises:
        UserError: The end tokens differ.
    """
    if theirs.eos_id != ours.eos_id:
        raise UserError(
            f"{origin} was trained on documents that end with token {theirs.eos_id}, those of {ours.origin} end with "
            f"{ours.eos_id}: use data that ends with token {theirs.eos_id}, or start a new run"
        )


def check_annealing(origin: Path, theirs: Changes, ours: Changes, tokens: int) -> None:
    """Check that a run has reweighted its mixture like the checkpoint until then.

    Args:
        origin: Checkpoint folder.
        theirs: data.annealing in the checkpoint.
        ours: The run's data.annealing.
        tokens: Tokens seen by the checkpoint. Later changes may differ.

    Raises:
        UserError: An earlier change differs.
    """
    before = [change for change in theirs if change.tokens < tokens]
    now = [change for change in ours if change.tokens < tokens]
    if before != now:
        raise UserError(
            f"{origin} has seen {tokens:,} tokens with these changes of the weights: {_describe(before)}; data.annealing says "
            f"{_describe(now)}: restore the first ones, and add changes only at later tokens"
        )


def _describe(changes: Changes) -> str:
    if not changes:
        return "none"
    return " and ".join(f"{change.weights} from {change.tokens:,}" for change in changes)


def recipe_changes(origin: Path, changed: Iterable[Difference], allow_changes: bool) -> list[str]:
    """Describe how resuming changes the recipe.

    Args:
        origin: Checkpoint folder.
        changed: Settings that differ between checkpoint and run.
        allow_changes: Whether settings with ResumeRule.CONFIRMED may change.

    Returns:
        A line for each changed setting in the recipe.

    Raises:
        UserError: A setting with ResumeRule.CONFIRMED has changed, and `allow_changes` is False.
    """
    recipe = [field for field in changed if field.rule.is_compared]
    unconfirmed = [field for field in recipe if field.rule is ResumeRule.CONFIRMED]
    if unconfirmed and not allow_changes:
        former = ", ".join(f"{field.path} {field.theirs} (the configuration says {field.ours})" for field in unconfirmed)
        raise UserError(
            f"{origin} was trained with {former}: set them back, or add {flag('allow_changes')} to continue with the new values"
        )
    return [f"{field.path}: {field.theirs} -> {field.ours}" for field in recipe]


def check_order(origin: Path, last: StepSamples | None, order: SampleOrder) -> None:
    """Check that the sample order reproduces the checkpoint's last step.

    Args:
        origin: Checkpoint folder.
        last: Samples in the last step, or None if the checkpoint does not record them.
        order: The run's sample order.

    Raises:
        UserError: The order has other samples in that step.
    """
    if last is None:
        return
    digest = order.digest(range(last.first, last.last + 1))
    if digest != last.digest:
        raise UserError(
            f"{origin}: samples {last.first:,} to {last.last:,}, of its last step, had the digest {last.digest}; this "
            f"version of MegaTAPE would take others there ({digest}), so the run would see some samples twice and some never: "
            "continue with the version that wrote the checkpoint"
        )
