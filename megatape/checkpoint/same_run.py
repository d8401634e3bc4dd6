"""Whether a checkpoint belongs to a run."""

from pathlib import Path

from megatape.config import Config, Identity, differences

# What a field that a run keeps would change, for the error.
KEPT = {Identity.FIXED: "", Identity.SAMPLES: "it would see other samples; "}


def check_same_run(origin: Path, theirs: Config, recorded: dict[str, str], ours: Config, fingerprints: dict[str, str]) -> None:
    """Raise ValueError when resuming from the checkpoint `origin` would train another model or show other samples.

    theirs, recorded: its configuration and fingerprints; ours, fingerprints: those of the run."""
    for field in differences(theirs, ours):
        if field.identity in KEPT:
            raise ValueError(
                f"{origin} was trained with {field.path} {field.theirs}, the configuration says {field.ours}: "
                f"{KEPT[field.identity]}use the former, or start a new run"
            )
    for name in ("tokenizer", "data"):
        if recorded[name] != fingerprints[name]:
            raise ValueError(
                f"{origin} was trained on another {'set of shards' if name == 'data' else 'tokenizer'} than data.path {ours.data.path} holds "
                f"(fingerprint {recorded[name][:12]}, here {fingerprints[name][:12]}): point data.path to those shards, or start a new run"
            )
