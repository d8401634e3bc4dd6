"""Whether a checkpoint belongs to a run."""

from pathlib import Path

from megatape.config import Config


def check_same_run(origin: Path, theirs: Config, recorded: dict[str, str], ours: Config, fingerprints: dict[str, str]) -> None:
    """Raise ValueError when going on from the checkpoint `origin` would train another model or show other samples.

    theirs, recorded: its configuration and fingerprints; ours, fingerprints: those of the run."""
    for field in type(ours.model).model_fields:
        before, now = getattr(theirs.model, field), getattr(ours.model, field)
        if before != now:
            raise ValueError(
                f"{origin} was trained with model.{field} {before}, the configuration says {now}: use the former, or start a new run"
            )
    for path, before, now in (
        ("data.sequence_length", theirs.data.sequence_length, ours.data.sequence_length),
        ("data.samples", theirs.data.samples, ours.data.samples),
        ("data.prompt_end", theirs.data.prompt_end, ours.data.prompt_end),
        ("data.mask_documents", theirs.data.mask_documents, ours.data.mask_documents),
        ("data.random_offset", theirs.data.random_offset, ours.data.random_offset),
        ("training.seed", theirs.training.seed, ours.training.seed),
    ):
        if before != now:
            raise ValueError(
                f"{origin} was trained with {path} {before}, the configuration says {now}: it would see other samples; use the former, or start a new run"
            )
    for name in ("tokenizer", "data"):
        if recorded[name] != fingerprints[name]:
            raise ValueError(
                f"{origin} was trained on another {'set of shards' if name == 'data' else 'tokenizer'} than data.path {ours.data.path} holds "
                f"(fingerprint {recorded[name][:12]}, here {fingerprints[name][:12]}): point data.path to those shards, or start a new run"
            )
