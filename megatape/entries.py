"""Types of registry entries.

An entry says where a part is defined and which settings it supports, so that both are known without importing the part. By
default it claims no support: a setting that needs a claim is an error until the entry makes it.
"""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Literal, Self

from megatape.errors import UserError


@dataclass(frozen=True)
class Entry:
    """A named part.

    Attributes:
        target: Location of the definition, "package.module:attribute".
        description: Phrase for help, tables and model cards.
    """

    target: str
    description: str

    def load(self) -> Any:
        """Import and return the part."""
        return resolve_name(self.target)

    @property
    def is_built_in(self) -> bool:
        """Whether the part is MegaTAPE's own."""
        return self.target.startswith("megatape.")


@dataclass(frozen=True)
class EncodingTraits:
    """Settings that a position encoding supports, and sizes that it needs.

    Attributes:
        rotates: Whether it rotates pairs of a head's channels. Then model.rotary_fraction works, and head_dim must be even.
        scalable: Whether model.scaling may rescale its frequencies.
        shiftable: Whether training.num_shifted_groups may divide its attention into groups.
        divides_heads: Whether its per-head weights follow sequence-parallel ranks, using EncodingModule.local_heads. Needed for
            parallel.sp above 1.
        whole_samples: Reason why attention needs all tokens of a sample on one rank, ruling out parallel.cp above 1; "" if a
            sample may be split across context-parallel ranks.
        by_layer: Whether layers apply it, so that model.layers and model.nope_every may leave some layers without it.
        layer_state: Name of the state that its layers read, "" if they read none. Encodings with the same name, or with "", can
            be mixed in model.layers. None: it only mixes with layers without positions.
        updates_state: Whether its layers update that state, which other encodings' layers then read as it started. A model has
            at most one such encoding.
        reads_scores: Whether its positions depend on the scores, which model.attention_scale would change.
        sliced: Whether it slices the hidden state by key/value head, so hidden_size must be a multiple of their number.
        paired_embedding: Whether it adds sine and cosine pairs to the embedding, so hidden_size must be even.
        max_positions: Upper limit for model.max_positions, None for no limit.
    """

    rotates: bool = False
    scalable: bool = False
    shiftable: bool = False
    divides_heads: bool = False
    whole_samples: str = 'its registry entry does not set whole_samples to ""'
    by_layer: bool = False
    layer_state: str | None = None
    updates_state: bool = False
    reads_scores: bool = True
    sliced: bool = False
    paired_embedding: bool = False
    max_positions: int | None = None


@dataclass(frozen=True)
class EncodingEntry(EncodingTraits, Entry):
    """A position encoding: a subclass of megatape.encodings.encoding.Encoding."""

    @classmethod
    def with_traits(cls, target: str, description: str, traits: EncodingTraits) -> Self:
        """Return an entry with shared traits."""
        return cls(target, description, **vars(traits))


@dataclass(frozen=True)
class FamilyEntry(Entry):
    """An architecture in transformers: a subclass of megatape.hf.families.family.Family.

    Attributes:
        encodings: Supported position encodings, None for all.
        attention_bias: Supported values of model.attention_bias.
        qk_norm: Supported values of model.qk_norm.
        normalizations: Supported values of model.normalization.
        switches: Whether it supports model.logit_softcap, nope_every, rotary_fraction and attention_scale.
        whole_heads: Whether hidden_size must be a multiple of num_heads.
        windows: Attention windows that it supports.
            none: Full attention in all layers.
            one: Also the same window in all layers.
            some: Also full attention in some layers, and the same window in the others.
            any: A window of its own in each layer.
    """

    encodings: tuple[str, ...] | None = ()
    attention_bias: tuple[str, ...] = ()
    qk_norm: tuple[bool, ...] = ()
    normalizations: tuple[str, ...] = ()
    switches: bool = False
    whole_heads: bool = False
    windows: Literal["none", "one", "some", "any"] = "none"


@dataclass(frozen=True)
class ConfigurableEntry(Entry):
    """A part with its own configuration section.

    Attributes:
        options: Type of the section, "package.module:class".
    """

    options: str

    def load_options(self) -> Any:
        """Import and return the type of the section."""
        return resolve_name(self.options)


@dataclass(frozen=True)
class OptimizerEntry(ConfigurableEntry):
    """An optimizer: a function that takes parameter groups and its section, and returns a torch optimizer.

    Its section is a subclass of megatape.config.OptimizerConfig. An optimizer that updates whole matrices is a subclass of
    megatape.optim.matrices.MatrixOptimizer; its `state` is for all other weights.

    Attributes:
        state: Names of its float32 tensors with one number per weight, in torch's state_dict and in checkpoints.
        counts_steps: Whether it also keeps `step`, the number of steps. The first step fails if it keeps anything else.
        matrix_state: "package.module:function" that maps a whole matrix's shape to the shapes of its state tensors by name;
            None if it updates no whole matrices.
        matrix_flops: "package.module:function" that maps a whole matrix's shape to the FLOPs of its update, for distributing
            matrices over ranks and estimating time. None: matrices are distributed by their elements.
    """

    state: tuple[str, ...] = ()
    counts_steps: bool = False
    matrix_state: str | None = None
    matrix_flops: str | None = None

    def matrix_shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the float32 state tensors for a whole matrix, by name.

        Raises:
            UserError: The entry has no `matrix_state`.
        """
        if self.matrix_state is None:
            raise UserError(f"the entry of {self.target} updates whole matrices, but has no `matrix_state`: add it")
        return resolve_name(self.matrix_state)(shape)

    def update_flops(self, shape: tuple[int, ...]) -> int:
        """Return the FLOPs of updating a whole matrix, 0 if unknown."""
        if self.matrix_flops is None:
            return 0
        return resolve_name(self.matrix_flops)(shape)


@dataclass(frozen=True)
class ScheduleEntry(ConfigurableEntry):
    """A learning-rate decay: a function of progress and its section, a megatape.config.ScheduleConfig or a subclass."""

    options: str = "megatape.config:ScheduleConfig"


@dataclass(frozen=True)
class SinkEntry(Entry):
    """A destination for metrics: a subclass of megatape.training.sinks.sink.Sink.

    Attributes:
        package: Additional package that it needs, installed by an extra of the same name; "" for none.
    """

    package: str = ""
