"""Pattern of a model's layers: the position encoding and the attention window of each layer.

    pattern:    entry, entry, ...               repeated until every layer has an entry
    entry:      ENCODING[@WINDOW][*COUNT]       WINDOW is a number of tokens, or full

Without @WINDOW a layer attends to all earlier tokens, and *COUNT stands for as many equal layers. "tape@full, rope@1024*3"
makes layers 0, 4, 8, ... TAPE with full attention, and all others RoPE with a window of 1024 tokens.

Exported models carry this file, so it only needs Python.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle, groupby, islice

from megatape.errors import ConfigError

# Name of the encoding that does nothing, in layers without positions.
NO_ENCODING = "nope"
FULL = "full"
ENTRY = re.compile(r"(?P<encoding>[A-Za-z_]\w*)(@(?P<window>\w+))?(\*(?P<count>\w+))?")
# Largest numbers that a pattern may have.
MAX_WINDOW = 2**31
MAX_LAYERS = 4096
EXAMPLE = "write ENCODING@WINDOW*COUNT, such as rope@1024*3 or tape@full"


@dataclass(frozen=True)
class LayerKind:
    """Position encoding and window of a layer.

    Attributes:
        encoding: Name of the position encoding.
        window: Number of tokens that a token attends to: itself and those just before it. None to attend to all earlier ones.
    """

    encoding: str
    window: int | None = None

    def __str__(self) -> str:
        return f"{self.encoding}@{self.window or FULL}"


@dataclass(frozen=True)
class LayerPattern:
    """Kinds of layers, repeated over a model's layers.

    Attributes:
        kinds: Kinds of one period, the first layer's first.
    """

    kinds: tuple[LayerKind, ...]

    def __str__(self) -> str:
        entries = []
        for kind, group in groupby(self.kinds):
            count = len([*group])
            entry = str(kind)
            if count > 1:
                entry += f"*{count}"
            entries.append(entry)
        return ", ".join(entries)

    @property
    def encodings(self) -> tuple[str, ...]:
        """Names of the encodings, in the order of their first layers."""
        return tuple(dict.fromkeys(kind.encoding for kind in self.kinds))

    @property
    def windows(self) -> set[int | None]:
        """Windows of the layers, or None for full attention."""
        return {kind.window for kind in self.kinds}

    def over(self, num_layers: int) -> tuple[LayerKind, ...]:
        """Return the kind of each of a model's layers."""
        return tuple(islice(cycle(self.kinds), num_layers))

    def renamed(self, old: str, new: str) -> "LayerPattern":
        """Return the pattern with the encoding `new` in all layers that have `old`."""
        kinds = []
        for kind in self.kinds:
            if kind.encoding == old:
                kind = replace(kind, encoding=new)
            kinds.append(kind)
        return LayerPattern(tuple(kinds))


def shortest_pattern(kinds: Sequence[LayerKind]) -> LayerPattern:
    """Return the shortest pattern that divides the layers with these kinds."""
    for length in range(1, len(kinds)):
        period = tuple(kinds[:length])
        if len(kinds) % length == 0 and period * (len(kinds) // length) == tuple(kinds):
            return LayerPattern(period)
    return LayerPattern(tuple(kinds))


@lru_cache(maxsize=256)
def parse_pattern(text: str) -> LayerPattern:
    """Parse a pattern such as "tape@full, rope@1024*3".

    Raises:
        ConfigError: An entry is not written as above.
    """
    kinds: list[LayerKind] = []
    for entry in text.split(","):
        kinds += _parse_entry(entry.strip())
    return shortest_pattern(kinds)


def canonical_text(text: str) -> str:
    """Return the text of a pattern as every configuration has it, so that equal patterns have equal texts."""
    return str(parse_pattern(text))


def _parse_entry(entry: str) -> list[LayerKind]:
    match = ENTRY.fullmatch(entry)
    if match is None:
        raise ConfigError(f"layers has an entry {entry!r}: {EXAMPLE}")
    window = None
    if match["window"] not in (None, FULL):
        window = _positive(match["window"], entry, MAX_WINDOW)
    count = 1
    if match["count"] is not None:
        count = _positive(match["count"], entry, MAX_LAYERS)
    return [LayerKind(match["encoding"], window)] * count


def _positive(text: str, entry: str, maximum: int) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= maximum:
        raise ConfigError(f"layers has an entry {entry!r}, in which {text} is not a number from 1 to {maximum}: {EXAMPLE}")
    return int(text)


def pattern_of(
    encoding: str, layers: str | None, nope_every: int | None = None, sliding_window: int | None = None
) -> LayerPattern:
    """Return the pattern of a model, from the settings of its configuration.

    Args:
        encoding: Position encoding of the model.
        layers: Pattern as a text, or None for layers that only differ by `nope_every`.
        nope_every: n if every n-th layer has no positions, or None.
        sliding_window: Window of all layers, or None.
    """
    if layers is not None:
        return parse_pattern(layers)
    kind = LayerKind(encoding, sliding_window)
    if nope_every is None:
        return LayerPattern((kind,))
    without_positions = LayerKind(NO_ENCODING, sliding_window)
    return LayerPattern((kind,) * (nope_every - 1) + (without_positions,))
