"""Exports a checkpoint to a folder that transformers can load."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from megatape.commands.options.shared_options import FrozenBaseOptions
from megatape.config.sections.run import Dtype
from megatape.errors import UserError, flag
from megatape.hf.folder_name import CHECKPOINT, check_model_folder
from megatape.utils.files.atomic import check_absent
from megatape.utils.values.options import option

if TYPE_CHECKING:
    from megatape.checkpoint.load.reader import CheckpointReader
    from megatape.hf.importing.checkpoint import ImportCheckpoint

EXAMPLE = "megatape export runs/tape_tiny/checkpoints/step-00000100 exported"


class Options(FrozenBaseOptions):
    """A checkpoint or an import, and the form of its export.

    Attributes:
        checkpoint: checkpoint such as RUN/checkpoints/step-00000100, import, or exported adapter
        out: folder to write; must not exist
        weights: trained, or ema for their exponential moving average (runs with optimizer.ema_decay)
        dtype: precision of the stored weights (default: that of the run, or of the imported model)
        adapter: for LoRA runs: export only the adapter, in peft's format
        without_adapter: for LoRA runs: export only the base model, to which peft adds the adapter
        push: then upload the export to this model repository of the Hugging Face hub, which is
            created if it does not exist (as `megatape push` does)
        public: with --push: let everyone read the repository
    """

    at_most_one = (("adapter", "without_adapter"),)

    checkpoint: Path = option(positional=True, metavar="CHECKPOINT")
    out: Path = option(positional=True, metavar="OUT")
    weights: Literal["trained", "ema"] = "trained"
    dtype: Dtype | None = None
    adapter: bool = False
    without_adapter: bool = False
    push: str | None = option(None, metavar="REPO")
    public: bool = False


def run(options: Options) -> None:
    """Verify a checkpoint or import and export it, or merge an adapter into its base. Upload the result if asked to."""
    check_model_folder(options.checkpoint, CHECKPOINT)
    check_absent(options.out)
    if options.public and options.push is None:
        raise UserError(f"{flag('public')}: nothing is uploaded: add {flag('push')} REPO")

    from megatape.hf.adapters.files import SETTINGS
    from megatape.hf.exporting.upload import check_repository, upload_model

    if options.push is not None:
        check_repository(options.push)
    is_adapter = (options.checkpoint / SETTINGS).is_file()
    if is_adapter:
        _merge(options)
    else:
        _export(options)
    if options.push is not None:
        url = upload_model(options.out, options.push, options.public)
        print(f"uploaded {options.out} to {url}")


def _merge(options: Options) -> None:
    """Merge an adapter into its base.

    Raises:
        UserError: The base is missing, or an option of another export is given.
    """
    from megatape.hf.adapters.merge import merge_adapter
    from megatape.hf.model_folder import open_model_folder

    has_export_options = options.dtype or options.adapter or options.without_adapter or options.weights == "ema"
    if options.base is None or has_export_options:
        remedy = f"give {flag('base')} DIR, the model to merge it into, and nothing else"
        raise UserError(f"{options.checkpoint} is an adapter: {remedy}")
    merge_adapter(options.checkpoint, open_model_folder(options.base).files, options.out)
    print(f"merged {options.checkpoint} into {options.base}, as {options.out}")


def _export(options: Options) -> None:
    """Export a checkpoint or an import, complete or as an adapter."""
    from megatape.hf.adapters.export import export_adapter
    from megatape.hf.exporting.exporter import export

    checkpoint = _open_verified(options)
    if options.adapter:
        export_adapter(checkpoint, options.out, options.dtype)
    else:
        export(checkpoint, options.out, merge=not options.without_adapter, dtype=options.dtype)
    average = "the moving average of " if options.weights == "ema" else ""
    print(f"exported {average}step {checkpoint.step}, {checkpoint.tokens:,} tokens, to {options.out}")


def _open_verified(options: Options) -> "CheckpointReader | ImportCheckpoint":
    """Return a checkpoint, or an import as the checkpoint of step 0, after verifying file hashes.

    Raises:
        UserError: The folder is neither, a file is corrupted, or an option does not apply.
    """
    from megatape.checkpoint.load.reader import CheckpointReader, EmaReader, verified_checkpoint
    from megatape.hf.importing.record import IMPORT
    from megatape.hf.weights.tensor_headers import INDEX, SINGLE

    if any((options.checkpoint / name).is_file() for name in (SINGLE, INDEX)):
        raise UserError(f"{options.checkpoint} is in transformers' format already: `megatape import` it to change its encoding")
    if (options.checkpoint / IMPORT).is_file():
        return _open_import(options)
    kind = EmaReader if options.weights == "ema" else CheckpointReader
    return verified_checkpoint(options.checkpoint, options.base, kind=kind)


def _open_import(options: Options) -> "ImportCheckpoint":
    """Return an import as the checkpoint of step 0, after verifying file hashes."""
    from megatape.hf.importing.checkpoint import ImportCheckpoint

    excluded = {
        "base": options.base is not None,
        "adapter": options.adapter,
        "weights": options.weights == "ema",
    }
    for name, is_set in excluded.items():
        if is_set:
            raise UserError(f"{flag(name)}: {options.checkpoint} is an import, of which nothing was trained yet: leave it out")
    checkpoint = ImportCheckpoint(options.checkpoint)
    checkpoint.verify()
    return checkpoint
