"""Groups samples by the inputs of their data directory."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from megatape.data.io.inputs import relative
from megatape.data.training.dataset import Dataset
from megatape.data.training.selection import SampleGroups
from megatape.utils.masking import mask

# Maximum number of inputs. With more, each would have too few samples for a meaningful loss.
MAX_INPUTS = 16


def group_by_input(dataset: Dataset, samples: Sequence[int]) -> SampleGroups:
    """Group samples by their input of `megatape prepare`, or by their folder if folders were merged.

    A sample with documents of several inputs belongs to the one with most of its tokens.

    Args:
        dataset: A split.
        samples: Indices of the samples.

    Returns:
        Samples by input, in the order of the split. A single group with an empty name if the data directory has one input or
        more than MAX_INPUTS, or if the origin of its documents is unknown.

    Raises:
        UserError, FileNotFoundError: A table of documents is missing or corrupted.
    """
    whole = {"": list(samples)}
    if not any(_is_divided(parts) for parts in (dataset.index.merged, dataset.index.ledger)):
        return whole
    spans = [dataset.spans(sample) for sample in samples]
    middles = np.concatenate([begins + sizes // 2 for begins, sizes in spans])
    found = _folders(dataset, middles) or _inputs(dataset, middles)
    if not found:
        return whole
    # The names become names of metrics.
    names = map(mask, found)
    groups: dict[str, list[int]] = defaultdict(list)
    for sample, (_, sizes) in zip(samples, spans, strict=True):
        tokens: dict[str, int] = defaultdict(int)
        for size in sizes.tolist():
            tokens[next(names)] += size
        groups[max(tokens, key=tokens.__getitem__)].append(sample)
    return dict(groups) if len(groups) > 1 else whole


def _is_divided(parts: Collection[object]) -> bool:
    """Whether there are several parts, and few enough for a loss of each."""
    return 1 < len(parts) <= MAX_INPUTS


def _folders(dataset: Dataset, tokens: np.ndarray) -> list[str]:
    """Return the merged folder of each token; an empty list if the data directory was not merged from a few folders.

    The tables of a folder are contiguous, so the end of its tokens follows from the index.
    """
    folders = dataset.index.merged
    tables = dataset.index.document_tables.get(dataset.split, [])
    if not _is_divided(folders):
        return []
    documents = list(accumulate(folder.documents.get(dataset.split, 0) for folder in folders))
    table_documents = [0, *accumulate(table.documents for table in tables)]
    table_tokens = [0, *accumulate(table.tokens for table in tables)]
    tokens_until = dict(zip(table_documents, table_tokens, strict=True))
    is_whole = documents[-1] == table_documents[-1] and all(count in tokens_until for count in documents)
    if not is_whole:  # A subset of a merged directory.
        return []
    ends = [tokens_until[count] for count in documents]
    return [folders[bisect_right(ends, token)].folder for token in tokens.tolist()]


def _inputs(dataset: Dataset, tokens: np.ndarray) -> list[str]:
    """Return the input of each token; an empty list if there are too few or too many, or a document belongs to none."""
    inputs = tuple(dataset.index.ledger)
    if not _is_divided(inputs) or not dataset.has_tables:
        return []
    found = [_input_of(place, inputs) for place in dataset.tables.places(tokens)]
    return found if all(found) else []


@lru_cache(maxsize=2**12)
def _input_of(place: str, inputs: tuple[str, ...]) -> str:
    """Return the input that has a document, by its place, such as `folder/file:line`; "" if no input has it."""
    files = [place, *(place[:end] for end, character in enumerate(place) if character == ":")]
    for given in inputs:
        if any(relative(file, given) is not None for file in files):
            return given
    return ""
