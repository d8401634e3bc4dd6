"""Figures of a trained model: numbers with names, and the columns for them in tables and in files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self

from megatape.errors import UserError

# Column title -> value.
Columns = dict[str, float]
# Start of the titles of losses by position.
BY_POSITION = "loss at positions "


class _Column(NamedTuple):
    """Column of a figure, or its columns if it has a value for each key, such as a length.

    Attributes:
        title: Title. "{}" stands for the key.
        on_validation_text: Whether the value depends on how validation text was selected.
        key: Reads the key from its text in the title. None for a figure with one value.
    """

    title: str
    on_validation_text: bool
    key: Callable[[str], Any] | None


def _column(title: str, on_validation_text: bool = False, key: Callable[[str], Any] | None = None) -> dict[str, _Column]:
    """Return the metadata of a figure."""
    return {"column": _Column(title, on_validation_text, key)}


@dataclass(frozen=True)
class Figures:
    """Figures of a trained model, in the order of their columns. Those not measured are None, or empty.

    Attributes:
        peak_memory: Peak device memory in training in GiB, 0 if it was not recorded.
        tokens_per_second: Median training throughput.
        first_loss: Training loss at step 1 in nats, before the weights change.
        last_loss: Mean training loss over the last 2% of steps in nats.
        validation_loss: Loss on all validation samples in nats.
        part_losses: Validation loss in nats on each data part evaluated separately, by part name.
        trained_digits: Right answers in % to additions whose operands are as long as in training.
        more_digits: Right answers in % to additions with longer operands.
        all_digits: Right answers in % to all additions.
        perplexity: Perplexity by sequence length in tokens.
        by_position: Loss in nats by range of positions, such as "65-128".
        passkey: Right passkeys in %, by text length in tokens.
    """

    peak_memory: float | None = field(default=None, metadata=_column("peak memory (GiB)"))
    tokens_per_second: float | None = field(default=None, metadata=_column("tokens/s"))
    first_loss: float | None = field(default=None, metadata=_column("first loss"))
    last_loss: float | None = field(default=None, metadata=_column("last loss"))
    validation_loss: float | None = field(default=None, metadata=_column("validation loss", on_validation_text=True))
    part_losses: dict[str, float] = field(
        default_factory=dict, metadata=_column("validation loss of {}", key=str, on_validation_text=True)
    )
    trained_digits: float | None = field(default=None, metadata=_column("trained lengths (%)"))
    more_digits: float | None = field(default=None, metadata=_column("beyond (%)"))
    all_digits: float | None = field(default=None, metadata=_column("all (%)"))
    perplexity: dict[int, float] = field(
        default_factory=dict, metadata=_column("perplexity at {}", key=int, on_validation_text=True)
    )
    by_position: dict[str, float] = field(
        default_factory=dict, metadata=_column(f"{BY_POSITION}{{}}", key=str, on_validation_text=True)
    )
    passkey: dict[int, float] = field(default_factory=dict, metadata=_column("passkey at {} (%)", key=int))

    @property
    def depend_on_validation_text(self) -> bool:
        """Whether a figure depends on how validation text was selected."""
        return bool(self.validation_loss is not None or self.part_losses or self.perplexity or self.by_position)

    def columns(self, selection_note: str = "") -> Columns:
        """Return the measured figures by column title.

        Args:
            selection_note: Suffix for titles of figures that depend on how validation text was selected.
        """
        columns: Columns = {}
        for figure in fields(self):
            column: _Column = figure.metadata["column"]
            value = getattr(self, figure.name)
            note = selection_note if column.on_validation_text else ""
            if column.key is not None:
                for key, value_of_key in value.items():
                    columns[column.title.format(key) + note] = value_of_key
            elif value is not None:
                columns[column.title + note] = value
        return columns

    @classmethod
    def of_columns(cls, columns: Mapping[str, float]) -> Self:
        """Return the figures in the columns of a file. Raises UserError for an unknown column."""
        values: dict[str, Any] = {}
        for title, value in columns.items():
            name, key = _figure_of(title)
            if key is None:
                values[name] = value
            else:
                values.setdefault(name, {})[key] = value
        return cls(**values)


def _figure_of(title: str) -> tuple[str, Any]:
    """Return the name and the key of the figure in a column. The key of a figure with one value is None."""
    for figure in fields(Figures):
        column: _Column = figure.metadata["column"]
        if column.key is None:
            if title == column.title:
                return figure.name, None
            continue
        begin, end = column.title.split("{}")
        text = title.removeprefix(begin).removesuffix(end)
        if title == begin + text + end:
            try:
                return figure.name, column.key(text)
            except ValueError:
                continue
    raise UserError(f"{title!r} is not a figure of this version")
