"""Checks before training: can the trained model be evaluated and exported?"""

from megatape.config import Config
from megatape.config.sections.data import DataConfig
from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.errors import UserError
from megatape.hf.families import family_of
from megatape.hf.families.exported_model import ExportedModel
from megatape.hf.special_tokens import special_tokens


def check_text(data: DataConfig, longest: int) -> None:
    """Check that perplexity by length can be measured on the data.

    Args:
        data: Data section of the configuration.
        longest: Tokens in the longest tested sequence.

    Raises:
        UserError: Samples are not packed text, or there are too few tokens.
        FileNotFoundError: The data is missing.
    """
    if data.samples != "packed" or data.mask_documents:
        raise UserError(
            "perplexity by length needs packed text, where sequences cross documents: set data.samples to packed and "
            "data.mask_documents to false"
        )
    TokenDataset(StoredSplit(data.directory, "validation"), longest)


def check_exportable(config: Config) -> None:
    """Raise UserError if the trained model could not be exported with the tokenizer of its data."""
    data = config.data.directory
    tokenizer = stored_tokenizer(data, load_index(data).tokenizer.files)
    exported = ExportedModel.of_run(config, special_tokens(tokenizer))
    family_of(exported.model, config.export.family).config(exported)
