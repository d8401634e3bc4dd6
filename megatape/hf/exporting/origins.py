"""Origins of a model, for the metadata of its model card: the model that training started from, its license, the data sets.

They are read from the folders that the model was made from, and named by ids of the Hugging Face hub. Paths of this machine are
not included.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from megatape.checkpoint.manifest import MANIFEST
from megatape.checkpoint.reader import CheckpointReader
from megatape.data.shards.index import load_index
from megatape.hf.folder_name import HUB_ID
from megatape.hf.importing.record import IMPORT, read_record
from megatape.registry import SOURCES

CARD = "README.md"
MAX_CARD_CHARACTERS = 2**16
# Longest chain of models that started from one another, or of data directories made from one another.
MAX_DEPTH = 8
# Id of the data set behind the source c4.
C4 = "allenai/c4"

_DATA_SET = re.compile(r"[\w.-]+(/[\w.-]+)?")
_LICENSE = re.compile(r"[\w.-]+")
# Folder of a model in the cache of the hub's client.
_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")


@dataclass(frozen=True)
class Origins:
    """Origins of a model; empty if unknown.

    Attributes:
        base_model: Id of the model that training started from.
        license: Identifier of that model's license, such as apache-2.0.
        data_sets: Ids of the data sets.
    """

    base_model: str = ""
    license: str = ""
    data_sets: tuple[str, ...] = ()


def origins_of(init_from: str | None, paths: Iterable[str], depth: int = MAX_DEPTH) -> Origins:
    """Find the origins of a run and of the runs before it, whose data sets come first.

    Folders that are gone or damaged add nothing.

    Args:
        init_from: Model that the run started from, None for a new model.
        paths: Data directories of the run.
        depth: Number of earlier models to look at.
    """
    found = Origins()
    if init_from is not None and depth > 0:
        found = _of_model(Path(init_from), depth - 1)
    data_sets = list(found.data_sets)
    for path in paths:
        data_sets += _data_sets(Path(path), MAX_DEPTH)
    return replace(found, data_sets=tuple(dict.fromkeys(data_sets)))


def _of_model(folder: Path, depth: int) -> Origins:
    """Find the origins of a model that training started from."""
    found = Origins()
    with suppress(OSError, ValueError):
        if (folder / MANIFEST).is_file():
            config = CheckpointReader(folder).config
            found = origins_of(config.training.init_from, config.data.paths, depth)
        elif (folder / IMPORT).is_file():
            record = read_record(folder)
            found = _of_folder(Path(record.source))
            if HUB_ID.fullmatch(record.hub):
                found = replace(found, base_model=record.hub)
        else:
            found = _of_folder(folder)
    return found


def _of_folder(folder: Path) -> Origins:
    """Read the model card in a folder of transformers. The card of a fine-tuned model names the model it started from."""
    metadata = _metadata(folder / CARD)
    base_model = _cached_model(folder)
    if not base_model:
        base_model = _value(metadata, "base_model", HUB_ID)
    return Origins(base_model, _value(metadata, "license", _LICENSE))


def _cached_model(folder: Path) -> str:
    """Return the id of a model in the cache of the hub's client; "" for another folder."""
    for part in folder.parts:
        match = _CACHED.fullmatch(part)
        if match is not None:
            return f"{match[1]}/{match[2]}"
    return ""


def _metadata(card: Path) -> str:
    """Return the lines of YAML at the beginning of a model card; "" if it has none."""
    if not card.is_file():
        return ""
    with card.open(encoding="utf-8") as file:
        text = file.read(MAX_CARD_CHARACTERS)
    begin, _, rest = text.partition("---\n")
    metadata, end, _ = rest.partition("\n---")
    if begin or not end:
        return ""
    return metadata


def _value(metadata: str, key: str, pattern: re.Pattern[str]) -> str:
    """Return the value of a key, or the first of a list; "" if it is missing or not as expected."""
    found = re.search(rf"^{key}:[ \t]*(?:\n[ \t]*-[ \t]*)?[\"']?([^\s\"']+)[\"']?[ \t]*$", metadata, re.MULTILINE)
    if found is None or not pattern.fullmatch(found[1]):
        return ""
    return found[1]


def _data_sets(folder: Path, depth: int) -> Iterator[str]:
    """Yield the ids of the hub's data sets that a data directory was made from."""
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
        # Made from other data directories.
        earlier = _texts(source.get("folders")) or _texts([source.get("folder")])
        for path in earlier:
            yield from _data_sets(Path(path), depth - 1)


def _texts(value: object) -> list[str]:
    """Return the strings in a list; [] if the value is not a list."""
    if not isinstance(value, list):
        return []
    return [text for text in value if isinstance(text, str)]
