"""Finds a model's origins for the metadata in its model card: base model, license and data sets.

They are read from the folders that training used, and named by ids on the Hugging Face hub. Paths on this machine are not
included.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from megatape.checkpoint.format.manifest import MANIFEST
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.data.shards.index import load_index
from megatape.hf.folder_name import HUB_ID
from megatape.hf.importing.record import IMPORT, read_record
from megatape.registry import SOURCES

CARD = "README.md"
MAX_CARD_CHARACTERS = 2**16
# Maximum length of a chain in which models or data directories were made from one another.
MAX_DEPTH = 8
# Id of the data set behind the source c4.
C4 = "allenai/c4"

_DATA_SET = re.compile(r"[\w.-]+(/[\w.-]+)?")
_LICENSE = re.compile(r"[\w.-]+")
# Name of a model folder in the hub client's cache.
_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")


@dataclass(frozen=True)
class Origins:
    """Origins of a model. None and () mean unknown.

    Attributes:
        base_model: Id of the model that training started from.
        license: License of the base model, such as apache-2.0.
        data_sets: Ids of the data sets.
    """

    base_model: str | None = None
    license: str | None = None
    data_sets: tuple[str, ...] = ()


def origins_of(init_from: str | None, paths: Iterable[str], depth: int = MAX_DEPTH) -> Origins:
    """Find the origins of a run and the earlier runs that it continues, whose data sets come first.

    Missing and damaged folders are skipped.

    Args:
        init_from: Model that the run started from, None for random initial weights.
        paths: Data directories of the run.
        depth: Maximum number of earlier models to inspect.

    Returns:
        Base model, license and data sets, as far as they are known.
    """
    origins = Origins()
    if init_from is not None and depth > 0:
        origins = _origins_of_model(Path(init_from), depth - 1)
    data_sets = list(origins.data_sets)
    for path in paths:
        data_sets += _data_sets(Path(path), MAX_DEPTH)
    unique = dict.fromkeys(data_sets)
    return replace(origins, data_sets=tuple(unique))


def _origins_of_model(folder: Path, depth: int) -> Origins:
    """Find the origins of a model that training started from."""
    with suppress(OSError, ValueError):
        if (folder / MANIFEST).is_file():
            config = CheckpointReader(folder).config
            return origins_of(config.training.init_from, config.data.paths, depth)
        if (folder / IMPORT).is_file():
            return _origins_of_import(folder)
        return _read_card(folder)
    return Origins()


def _origins_of_import(folder: Path) -> Origins:
    """Find the origins of the model that an import refers to."""
    record = read_record(folder)
    origins = Origins()
    with suppress(OSError, ValueError):
        origins = _read_card(Path(record.source))
    if HUB_ID.fullmatch(record.hub):
        return replace(origins, base_model=record.hub)
    return origins


def _read_card(folder: Path) -> Origins:
    """Read the model card in a transformers folder. The card of a fine-tuned model names its base model."""
    metadata = _metadata(folder / CARD)
    base_model = _cached_model(folder)
    if base_model is None:
        base_model = _value(metadata, "base_model", HUB_ID)
    return Origins(base_model, _value(metadata, "license", _LICENSE))


def _cached_model(folder: Path) -> str | None:
    """Return the id of a model in the hub client's cache, or None for a folder elsewhere."""
    for part in folder.parts:
        match = _CACHED.fullmatch(part)
        if match is not None:
            return f"{match[1]}/{match[2]}"
    return None


def _metadata(card: Path) -> str:
    """Return the YAML metadata at the beginning of a model card, "" if there is none."""
    if not card.is_file():
        return ""
    with card.open(encoding="utf-8") as file:
        text = file.read(MAX_CARD_CHARACTERS)
    before, _, after = text.partition("---\n")
    metadata, end, _ = after.partition("\n---")
    if before or not end:
        return ""
    return metadata


def _value(metadata: str, key: str, pattern: re.Pattern[str]) -> str | None:
    """Return a key's value in the metadata, or the first value in a list. None if it is missing or not as expected."""
    match = re.search(rf"^{key}:[ \t]*(?:\n[ \t]*-[ \t]*)?[\"']?([^\s\"']+)[\"']?[ \t]*$", metadata, re.MULTILINE)
    if match is None or not pattern.fullmatch(match[1]):
        return None
    return match[1]


def _data_sets(folder: Path, depth: int) -> Iterator[str]:
    """Yield the ids of the data sets on the hub that a data directory was made from."""
    source: dict[str, object] = {}
    with suppress(OSError, ValueError):
        source = load_index(folder).source
    kind = source.get("kind")
    if kind == "c4":
        yield C4
    elif kind == "hub":
        for name in _texts(source.get("inputs")):
            if _DATA_SET.fullmatch(name):
                yield name
    elif depth > 0 and kind not in SOURCES:
        # The data directory was made from other ones.
        earlier = _texts(source.get("folders")) or _texts([source.get("folder")])
        for path in earlier:
            yield from _data_sets(Path(path), depth - 1)


def _texts(value: object) -> list[str]:
    """Return the strings in a list, or [] if the value is not a list."""
    if not isinstance(value, list):
        return []
    return [text for text in value if isinstance(text, str)]
