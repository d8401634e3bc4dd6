"""Variants of a model to compare: an encoding, optionally with other model settings or with scaled frequencies in tests.

A control has the parameters or FLOPs of the model with another encoding, because its MLP is wider or narrower.
"""

from dataclasses import dataclass
from typing import NamedTuple

from megatape.accounting.whole_model.flops import forward_flops
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import Config, ModelConfig
from megatape.errors import UserError, flag
from megatape.errors.suggestions import choose_one
from megatape.lab.encodings import parse_encodings, with_encoding
from megatape.nn.fp8_limits import FP8_MULTIPLE
from megatape.registry import ENCODINGS

# Kinds of model.scaling. llama3 takes more than two lengths.
SCALINGS = ("linear", "theta", "yarn")
# Start of a change of model.layers
LAYERS = "layers="
# Characters of labels -> those in names of folders
FOLDER_CHARACTERS = str.maketrans({":": "_", ",": "_", "@": "-", "*": "x"})


class MatchedCost(NamedTuple):
    """Costs that a control can match: a model's number of weights, and its forward FLOPs per sample."""

    params: int
    flops: int


class Control(NamedTuple):
    """Goal of a control: to cost as much as the model with another encoding.

    Attributes:
        quantity: Quantity to match, a field of MatchedCost.
        encoding: The other encoding.
    """

    quantity: str
    encoding: str

    def amount(self, cost: MatchedCost) -> int:
        """Return the quantity to match."""
        amount: int = getattr(cost, self.quantity)
        return amount


@dataclass(frozen=True)
class EncodingVariant:
    """A row of a comparison, such as tape+yarn:position_size=12.

    Attributes:
        encoding: Encoding name.
        changes: Changed model settings as the user writes them, such as position_size=12.
        control: Goal of a control, None for other variants.
        scaling: Kind of model.scaling for tests longer than training, or None.
    """

    encoding: str
    changes: tuple[str, ...]
    control: Control | None
    scaling: str | None

    @property
    def label(self) -> str:
        """Label in the form of the option."""
        if self.scaling is None:
            return self.trained
        return ":".join([f"{self.encoding}+{self.scaling}", *self._details])

    @property
    def trained(self) -> str:
        """Label without the scaling. Variants sharing it share their training."""
        return ":".join([self.encoding, *self._details])

    @property
    def _details(self) -> list[str]:
        """Changes and control in the form of the option."""
        details = [*self.changes]
        if self.control is not None:
            details.append(f"{self.control.quantity}={self.control.encoding}")
        return details

    @property
    def overrides(self) -> tuple[str, ...]:
        """Values of --set for training. A control also needs `overrides_for`."""
        return (f"model.encoding={self.encoding}", *(f"model.{change}" for change in self.changes))

    def mlp_size(self, config: Config) -> int:
        """Return the MLP width. A control gets the width that brings its cost closest to the other encoding's.

        The cost is an affine function of the width, so two widths determine it.

        Args:
            config: Configuration with `overrides`.

        Raises:
            UserError: Even the narrowest MLP costs more than the other encoding.
        """
        if self.control is None:
            return config.model.mlp_size
        unit = config.parallel.tp
        if config.training.fp8 != "none":
            unit *= FP8_MULTIPLE
        other = with_encoding(config.model, self.control.encoding)
        goal = self.control.amount(_cost(config, other, config.model.mlp_size))
        first = self.control.amount(_cost(config, config.model, unit))
        second = self.control.amount(_cost(config, config.model, 2 * unit))
        num_units = 1 + round((goal - first) / (second - first))
        if num_units < 1:
            raise UserError(
                f"{flag('encodings')}: {self.label}: even with an MLP of width {unit}, {self.encoding} has {first:,} "
                f"{self.control.quantity}, more than {self.control.encoding}'s {goal:,}: exchange the two encodings"
            )
        return unit * num_units

    def overrides_for(self, config: Config) -> list[str]:
        """Return the values of --set for training, including a control's MLP width.

        Args:
            config: Configuration with `overrides`.
        """
        overrides = [*self.overrides]
        if self.control is not None:
            overrides.append(f"model.mlp_size={self.mlp_size(config)}")
        return overrides

    def describe_control(self, config: Config) -> str:
        """Describe the costs of a control and its goal.

        Args:
            config: Configuration with `overrides`.
        """
        assert self.control is not None
        encoding = self.control.encoding
        width = self.mlp_size(config)
        cost = _cost(config, config.model, width)
        other = _cost(config, with_encoding(config.model, encoding), config.model.mlp_size)
        return (
            f"`{self.label}` has mlp_size {width} instead of {config.model.mlp_size}: {cost.params:,} parameters and "
            f"{cost.flops:,} FLOPs in the forward pass of {config.data.sequence_length} tokens; `{encoding}` has "
            f"{other.params:,} and {other.flops:,}."
        )


def _cost(config: Config, model: ModelConfig, mlp_size: int) -> MatchedCost:
    """Return a model's cost with this MLP width, for the samples of a run."""
    model = model.model_copy(update={"mlp_size": mlp_size})
    groups = config.training.num_shifted_groups
    return MatchedCost(count_parameters(model).total, forward_flops(model, config.data.sequence_length, groups))


def parse_variants(text: str) -> list[EncodingVariant]:
    """Parse a list such as "rope,tape+yarn,tape:position_size=12,tape:layers=tape@full,rope@1024*3".

    Raises:
        UserError: An encoding or a scaling is unknown, the encoding does not support the scaling, or a variant is repeated.
    """
    variants = [_parse(entry) for entry in _entries(text)]
    for variant in variants:
        if variants.count(variant) > 1:
            raise UserError(f"{flag('encodings')}: {variant.label} is listed twice")
    return variants


def _entries(text: str) -> list[str]:
    """Split a list at its commas, except for those of a pattern of layers, whose entries have a window or a count."""
    entries: list[str] = []
    for part in text.split(","):
        entry = part.strip()
        head, *_ = entry.split(":")
        is_layer = "@" in head or "*" in head
        if is_layer and entries and f":{LAYERS}" in entries[-1]:
            entries[-1] += f",{entry}"
        else:
            entries.append(entry)
    return entries


def folder_name(label: str) -> str:
    """Return the name of the folder with a variant's runs, without the characters that a shell expands."""
    return label.translate(FOLDER_CHARACTERS)


def _parse(entry: str) -> EncodingVariant:
    """Parse a variant such as "tape+yarn:position_size=12:params=rope"."""
    head, *all_changes = entry.split(":")
    encoding, plus, scaling = head.partition("+")
    parse_encodings(encoding)
    if plus:
        _check_scaling(head, encoding, scaling)
    prefixes = tuple(f"{quantity}=" for quantity in MatchedCost._fields)
    controls = [change for change in all_changes if change.startswith(prefixes)]
    changes = [change for change in all_changes if change not in controls]
    sets_mlp_size = any(change.startswith("mlp_size=") for change in changes)
    if len(controls) > 1 or (controls and sets_mlp_size):
        raise UserError(f"{flag('encodings')}: {entry}: {controls[0]} chooses mlp_size: remove the other setting of it")
    _check_changes(entry, changes)
    control = None
    if controls:
        quantity, _, other = controls[0].partition("=")
        if parse_encodings(other) == [encoding]:
            raise UserError(
                f"{flag('encodings')}: {entry}: {encoding} is its own encoding: name another one, as in rope:{quantity}=tape"
            )
        control = Control(quantity, other)
    return EncodingVariant(encoding, tuple(changes), control, scaling or None)


def _check_scaling(head: str, encoding: str, scaling: str) -> None:
    """Raise UserError unless the encoding supports the scaling."""
    if not ENCODINGS[encoding].scalable:
        scalable = " and ".join(name for name, entry in ENCODINGS.items() if entry.scalable)
        raise UserError(f"{flag('encodings')}: {head}: {encoding} has no scaling; only {scalable} do")
    if scaling not in SCALINGS:
        raise UserError(f"{flag('encodings')}: {head}: {scaling!r} is not a scaling: {choose_one(scaling, SCALINGS)}")


def _check_changes(entry: str, changes: list[str]) -> None:
    """Raise UserError unless the changes are model settings, each given once."""
    for change in changes:
        if "=" not in change or change.startswith(("encoding=", "scaling")):
            raise UserError(
                f"{flag('encodings')}: {entry}: {change!r} is not a model setting: write one such as position_size=12; "
                "encoding and scaling come first, as in tape+yarn"
            )
    keys = [change.partition("=")[0] for change in changes]
    if len(set(keys)) < len(keys):
        raise UserError(f"{flag('encodings')}: {entry}: a setting is given twice")
