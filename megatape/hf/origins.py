"""Origins of a model, read from the folders that it was made from, for the metadata of model cards.

A model card on the Hugging Face hub names the model that training started from, its license and the data sets, by ids of the
hub. Paths of this machine are not included.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from megatape.checkpoint.manifest import MANIFEST
from megatape.checkpoint.reader import CheckpointReader
from megatape.config import Config
from megatape.data.shards.index import load_index
from megatape.hf.import_record import IMPORT, read_record
from megatape.registry import SOURCES

CARD = "README.md"
MAX_CARD_CHARACTERS = 2**16
MAX_DEPTH = 8  # Longest chain of models that started from one another, or of data directories made from one another.
C4 = "allenai/c4"  # Id of the data set behind the source c4.

_ID = re.compile(r"[\w.-]+/[\w.-]+")
_DATA_SET = re.compile(r"[\w.-]+(/[\w.-]+)?")
_LICENSE = re.compile(r"[\w.-]+")
_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")  # Folder of a model in the cache of the hub's client.


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


def origins_of(config: Config) -> Origins:
    """Find the origins of a run's model. Folders that are gone or damaged add nothing.

    Args:
        config: Configuration of the run.
    """
    return _of_run(config, MAX_DEPTH)


def _of_run(config: Config, depth: int) -> Origins:
    """Find the origins of a run and of the runs before it, whose data sets come first."""
    found = Origins()
    if config.training.init_from is not None and depth > 0:
        found = _of_model(Path(config.training.init_from), depth - 1)
    own = [name for path in config.data.paths for name in _data_sets(Path(path), MAX_DEPTH)]
    data_sets = dict.fromkeys([*found.data_sets, *own])
    return replace(found, data_sets=tuple(data_sets))


def _of_model(folder: Path, depth: int) -> Origins:
    """Find the origins of a model that training started from."""
    found = Origins()
    with suppress(OSError, ValueError):
        if (folder / MANIFEST).is_file():
            found = _of_run(CheckpointReader(folder).config, depth)
        elif (folder / IMPORT).is_file():
            record = read_record(folder)
            found = _of_folder(Path(record.source))
            if _ID.fullmatch(record.hub):
                found = replace(found, base_model=record.hub)
        else:
            found = _of_folder(folder)
    return found


def _of_folder(folder: Path) -> Origins:
    """Read the model card in a folder of transformers. The card of a fine-tuned model names the model it started from."""
    metadata = _metadata(folder / CARD)
    cached = next((match for part in folder.parts if (match := _CACHED.fullmatch(part))), None)
    if cached is not None:
        base_model = f"{cached[1]}/{cached[2]}"
    else:
        base_model = _value(metadata, "base_model", _ID)
    return Origins(base_model, _value(metadata, "license", _LICENSE))


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
    if source.get("kind") == "c4":
        yield C4
    elif source.get("kind") == "hub":
        yield from (name for name in _texts(source.get("inputs")) if _DATA_SET.fullmatch(name))
    elif depth > 0 and source.get("kind") not in SOURCES:
        earlier = _texts(source.get("folders")) or _texts([source.get("folder")])
        for path in earlier:
            yield from _data_sets(Path(path), depth - 1)


def _texts(value: object) -> list[str]:
    """Return the strings in a list; [] if the value is not a list."""
    if not isinstance(value, list):
        return []
    return [text for text in value if isinstance(text, str)]
