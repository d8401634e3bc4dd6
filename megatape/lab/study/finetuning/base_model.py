"""Base model of an extension: a pretrained transformers model with unscaled rotary positions."""

from dataclasses import dataclass
from pathlib import Path

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.tokenizers.comparison import tokenizer_difference
from megatape.data.tokenizers.files import load_tokenizer
from megatape.errors import UserError, flag
from megatape.hf.architecture import Architecture, read_architecture
from megatape.hf.importing.importer import import_model
from megatape.hf.importing.record import open_import
from megatape.hf.model_folder import FolderKind, open_model_folder

# Number of text tokens for comparing the tokenizers of base and data.
NUM_TEXT_TOKENS = 4096


@dataclass(frozen=True)
class Base:
    """A base model.

    Attributes:
        source: Folder of the transformers model.
        import_folder: The user's import of the model, or None.
        architecture: Model shape, in our terms and in those of transformers.
    """

    source: Path
    import_folder: Path | None
    architecture: Architecture

    @property
    def length(self) -> int:
        """Number of tokens that the model is made for."""
        return self.architecture.model.max_positions

    def check(self, data: Path) -> None:
        """Check that the model can be trained on longer samples from a data directory.

        Args:
            data: Data directory.

        Raises:
            UserError: The model has another tokenizer than the data.
        """
        split = StoredSplit(data, "validation")
        ours = split.tokenizer()
        theirs = load_tokenizer(self.source)
        num_tokens = min(NUM_TEXT_TOKENS, split.num_tokens)
        text = ours.decode(split.stream(0, num_tokens))
        difference = tokenizer_difference(ours, theirs, text)
        if difference is not None:
            raise UserError(
                f"{flag('data')} {data} was not prepared with the tokenizer of {self.source} ({difference}): "
                f"prepare it with megatape prepare corpus --tokenizer {self.source}"
            )

    def import_once(self, folder: Path, length: int) -> Path:
        """Import the model, or verify an existing import: the user's, or the one in `folder`.

        Args:
            folder: Folder for the import, written only if it is missing and the user has no import.
            length: Tokens per sample in the import's configuration.

        Returns:
            Folder of the import.

        Raises:
            UserError: `folder` holds an import of another model, or the model cannot be imported.
        """
        if self.import_folder is None and not folder.exists():
            import_model(self.source, folder, "rope", length)
            return folder
        directory = self.import_folder or folder
        weights = open_import(directory)
        if weights.directory != self.source:
            raise UserError(
                f"{directory} is an import of {weights.directory}, not of {self.source}: choose another {flag('output')}"
            )
        weights.verify()
        return directory


def open_base(folder: Path) -> Base:
    """Open a transformers model, directly or by its import.

    Args:
        folder: Folder of the model or of its import.

    Raises:
        UserError: The model is not supported, or its frequencies are already scaled.
        FileNotFoundError: The model is missing.
    """
    opened = open_model_folder(folder.absolute())
    source = opened.files
    architecture = read_architecture(source)
    if opened.kind is FolderKind.EXPORT:
        raise UserError(
            f"{source} is a model with encoding {architecture.model.encoding}: the methods start from rotary positions, give "
            "the model that it was trained from"
        )
    scaling = architecture.model.scaling
    if scaling is not None:
        raise UserError(
            f"{source / 'config.json'}: its frequencies are scaled already ({scaling.kind}), and the methods scale "
            "those of pretraining: give a model without rope scaling"
        )
    import_folder = None
    if opened.kind is FolderKind.IMPORT:
        import_folder = opened.path
    return Base(source, import_folder, architecture)
