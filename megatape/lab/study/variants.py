"""Variants of a model to compare: an encoding, optionally with other model settings or with scaled frequencies in tests.

A control has the parameters or the FLOPs of the model with another encoding, by another width of its MLP.
"""

from dataclasses import dataclass

from megatape.accounting.flops import forward_flops
from megatape.accounting.parameters import count_parameters
from megatape.config import Config, ModelConfig
from megatape.errors import UserError, choose_one
from megatape.lab.encodings import parse_encodings, with_encoding
from megatape.nn.limits import FP8_MULTIPLE
from megatape.registry import ENCODINGS

CONTROLS = ("params", "flops")
SCALINGS = ("linear", "theta", "yarn")  # llama3 takes more than two lengths


@dataclass(frozen=True)
class Variant:
    """One row of a comparison.

    Attributes:
        trained: Label without the scaling; variants with the same one share their training.
        settings: Overrides of the configuration for training.
        scaling: Kind of model.scaling for tests that are longer than training, or None.
        control: What a control has in common with another encoding, one of CONTROLS, and that encoding; None for others.
    """

    trained: str
    settings: tuple[str, ...]
    scaling: str | None
    control: tuple[str, str] | None = None

    @property
    def label(self) -> str:
        """As typed, with the scaling after the encoding."""
        encoding, *changes = self.trained.split(":")
        return ":".join([f"{encoding}+{self.scaling}" if self.scaling else encoding, *changes])

    def mlp_size(self, config: Config) -> int:
        """Width of the MLP, of a control the one whose cost is nearest to that of the other encoding.

        The cost is an affine function of the width, so that two widths give all.

        Args:
            config: With `settings`.

        Raises:
            UserError: The other encoding has fewer than the narrowest MLP.
        """
        if self.control is None:
            return config.model.mlp_size
        unit = config.parallel.tp * (1 if config.training.fp8 == "none" else FP8_MULTIPLE)
        place = CONTROLS.index(self.control[0])
        goal = _costs(config, with_encoding(config.model, self.control[1]), config.model.mlp_size)[place]
        first, second = (_costs(config, config.model, count * unit)[place] for count in (1, 2))
        width = unit * (1 + round((goal - first) / (second - first)))
        if width < unit:
            raise UserError(f"encodings: {self.label}: even an MLP of width {unit} has more: exchange the two encodings")
        return width

    def settings_for(self, config: Config) -> list[str]:
        """Overrides of the configuration for training. config: with `settings`."""
        return [*self.settings, *([f"model.mlp_size={self.mlp_size(config)}"] if self.control else [])]

    def describe_control(self, config: Config) -> str:
        """Costs of a control and of the other encoding. config: with `settings`."""
        assert self.control is not None
        width = self.mlp_size(config)
        encoding = self.control[1]
        length = config.data.sequence_length
        parameters, flops = _costs(config, config.model, width)
        wanted, wanted_flops = _costs(config, with_encoding(config.model, encoding), config.model.mlp_size)
        return (
            f"`{self.label}` has mlp_size {width} instead of {config.model.mlp_size}: {parameters:,} parameters and {flops:,} "
            f"FLOPs in the forward pass of {length} tokens; `{encoding}` has {wanted:,} and {wanted_flops:,}."
        )


def _costs(config: Config, model: ModelConfig, mlp_size: int) -> tuple[int, int]:
    """Parameters, and FLOPs of the forward pass of a sample, with this width: in the order of CONTROLS."""
    model = model.model_copy(update={"mlp_size": mlp_size})
    groups = config.training.num_shifted_groups
    return count_parameters(model).total, forward_flops(model, config.data.sequence_length, groups)


def parse_variants(text: str) -> list[Variant]:
    """The variants of a list such as "rope,tape+yarn,tape:position_size=12".

    Raises UserError for an unknown encoding or scaling, a scaling the encoding does not support, or a repeated variant.
    """
    variants = [_parse(entry.strip()) for entry in text.split(",")]
    for variant in variants:
        if variants.count(variant) > 1:
            raise UserError(f"encodings: {variant.label} is listed twice")
    return variants


def _parse(entry: str) -> Variant:
    head, *changes = entry.split(":")
    encoding, plus, scaling = head.partition("+")
    parse_encodings(encoding)
    if plus and not ENCODINGS[encoding].scalable:
        scalable = " and ".join(name for name, entry in ENCODINGS.items() if entry.scalable)
        raise UserError(f"encodings: {head}: {encoding} has no scaling; only {scalable} do")
    if plus and scaling not in SCALINGS:
        raise UserError(f"encodings: {head}: {scaling!r} is not a scaling: {choose_one(scaling, SCALINGS)}")
    controls = [change for change in changes if change.startswith(tuple(f"{kind}=" for kind in CONTROLS))]
    if len(controls) > 1 or (controls and any(change.startswith("mlp_size=") for change in changes)):
        raise UserError(f"encodings: {entry}: {controls[0]} chooses mlp_size: remove the other setting of it")
    changes = [change for change in changes if change not in controls]
    for change in changes:
        if "=" not in change or change.startswith(("encoding=", "scaling")):
            raise UserError(
                f"encodings: {entry}: {change!r} is not a model setting: write one such as position_size=12; encoding and "
                "scaling come first, as in tape+yarn"
            )
    settings = (f"model.encoding={encoding}", *(f"model.{change}" for change in changes))
    if len({change.partition("=")[0] for change in changes}) < len(changes):
        raise UserError(f"encodings: {entry}: a setting is given twice")
    control = None
    for kind, _, other in (text.partition("=") for text in controls):
        if parse_encodings(other) == [encoding]:
            raise UserError(f"encodings: {entry}: {encoding} is its own encoding: name another one, as in rope:{kind}=tape")
        control = kind, other
    return Variant(":".join([encoding, *changes, *controls]), settings, scaling or None, control)
