"""Groups validation samples by the input that their text came from."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate, chain

import numpy as np

from megatape.data.io.inputs import relative
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.dataset import Dataset
from megatape.data.training.selection import SampleGroups
from megatape.utils.text.url_secrets import mask_secrets

# With more inputs, each would have too few samples for a meaningful loss.
MAX_INPUTS = 16


def group_by_input(dataset: Dataset, samples: Sequence[int]) -> SampleGroups:
    """Group samples by input of `megatape prepare`, or by folder if folders were merged.

    A sample with documents from several inputs belongs to the input with most of its tokens.

    Args:
        dataset: Validation dataset.
        samples: Sample indices.

    Returns:
        Samples by input. A single group with an empty name if the data directory has one input or more than MAX_INPUTS, or if
        the origin of its documents is unknown.

    Raises:
        UserError, FileNotFoundError: A document table is missing or corrupted.
    """
    single_group = {"": list(samples)}
    split = dataset.split
    if not _is_divided(split.index.merged) and not _is_divided(split.index.ledger):
        return single_group

    spans_by_sample = [dataset.spans(sample) for sample in samples]
    middles = np.array([span.begin + span.inputs // 2 for span in chain.from_iterable(spans_by_sample)], np.int64)
    inputs = _folders(split, middles) or _inputs(split, middles)
    if not inputs:
        return single_group

    # Masked, because they become metric names.
    names = (mask_secrets(name) for name in inputs)
    groups: dict[str, list[int]] = defaultdict(list)
    for sample, spans in zip(samples, spans_by_sample, strict=True):
        num_tokens: dict[str, int] = defaultdict(int)
        for span in spans:
            num_tokens[next(names)] += span.inputs
        most_frequent = max(num_tokens, key=num_tokens.__getitem__)
        groups[most_frequent].append(sample)
    if len(groups) == 1:
        return single_group
    return dict(groups)


def _is_divided(parts: Collection[object]) -> bool:
    """Whether there are several parts, but few enough for a loss on each."""
    return 1 < len(parts) <= MAX_INPUTS


def _folders(split: StoredSplit, tokens: np.ndarray) -> list[str]:
    """Return each token's merged folder, or an empty list if the data directory was not merged from a few folders.

    A folder's tables are contiguous, so the end of its tokens follows from the index.
    """
    folders = split.index.merged
    if not _is_divided(folders):
        return []

    # n -> tokens in the first n documents, for each n at which a table ends.
    num_tokens = 0
    num_documents = 0
    tokens_until = {0: 0}
    for table in split.table_entries:
        num_documents += table.documents
        num_tokens += table.tokens
        tokens_until[num_documents] = num_tokens

    document_ends = list(accumulate(folder.documents.get(split.name, 0) for folder in folders))
    is_complete = document_ends[-1] == num_documents and all(end in tokens_until for end in document_ends)
    if not is_complete:
        # The directory is a subset of a merged one.
        return []
    token_ends = [tokens_until[end] for end in document_ends]
    return [folders[bisect_right(token_ends, token)].folder for token in tokens.tolist()]


def _inputs(split: StoredSplit, tokens: np.ndarray) -> list[str]:
    """Return each token's input, or an empty list with too few or too many inputs, or a document from none of them."""
    inputs = tuple(split.index.ledger)
    if not _is_divided(inputs) or not split.has_tables:
        return []
    names = []
    for location in split.tables.locations(tokens):
        name = _input_of(location, inputs)
        if name is None:
            return []
        names.append(name)
    return names


@lru_cache(maxsize=2**12)
def _input_of(location: str, inputs: tuple[str, ...]) -> str | None:
    """Return the input containing a document, given its location, such as `folder/file:line`. None if no input contains it."""
    # File names may have colons, too.
    files = [location]
    for end, character in enumerate(location):
        if character == ":":
            files.append(location[:end])
    for name in inputs:
        if any(relative(file, name) is not None for file in files):
            return name
    return None
