"""Types of the entries in the tables of megatape/registry.py.

An entry says where a part is defined and which settings it supports. It is read without importing the part. An entry claims
nothing by default: a setting that needs a claim is refused until the entry makes it.
"""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Self

from megatape.errors import UserError


@dataclass(frozen=True)
class Entry:
    """A named part.

    Attributes:
        target: Where the part is defined, as "package.module:attribute".
        description: Phrase for help texts, tables and model cards.
    """

    target: str
    description: str

    def load(self) -> Any:
        """Import and return the part."""
        return resolve_name(self.target)

    @property
    def is_built_in(self) -> bool:
        """Whether MegaTAPE itself defines the part."""
        return self.target.startswith("megatape.")


@dataclass(frozen=True)
class EncodingTraits:
    """Settings that a position encoding supports, and sizes that it needs.

    Attributes:
        rotates: Whether it rotates pairs of a head's channels. Then model.rotary_fraction works, and head_dim must be even.
        scalable: Whether model.scaling may rescale its frequencies.
        shiftable: Whether training.num_shifted_groups may divide its attention into groups.
        divides_heads: Whether its per-head weights follow sequence-parallel ranks, by EncodingModule.local_heads. Needed for
            parallel.sp above 1.
        whole_samples: Reason why attention with it needs all tokens of a sample on one rank, which rules out parallel.cp above
            1; "" if the tokens of a sample may be on several context-parallel ranks.
        by_layer: Whether layers apply it, so that model.nope_every may leave some layers without it.
        reads_scores: Whether its positions depend on the scores, which model.attention_scale would change.
        sliced: Whether it divides the hidden state into a slice for each key/value head, so hidden_size must be a multiple.
        paired_embedding: Whether it adds pairs of a sine and a cosine to the embedding, so hidden_size must be even.
        max_positions: Upper limit of model.max_positions, or None if there is none.
    """

    rotates: bool = False
    scalable: bool = False
    shiftable: bool = False
    divides_heads: bool = False
    whole_samples: str = 'its registry entry does not set whole_samples to ""'
    by_layer: bool = False
    reads_scores: bool = True
    sliced: bool = False
    paired_embedding: bool = False
    max_positions: int | None = None


@dataclass(frozen=True)
class EncodingEntry(EncodingTraits, Entry):
    """A position encoding: a subclass of megatape.encodings.encoding.Encoding."""

    @classmethod
    def with_traits(cls, target: str, description: str, traits: EncodingTraits) -> Self:
        """Return the entry of an encoding that has the same traits as others."""
        return cls(target, description, **vars(traits))


@dataclass(frozen=True)
class FamilyEntry(Entry):
    """An architecture of transformers: a subclass of megatape.hf.families.family.Family.

    Attributes:
        encodings: Position encodings that it supports; None for all.
        attention_bias: Values of model.attention_bias that it supports.
        qk_norm: Values of model.qk_norm that it supports.
        normalizations: Values of model.normalization that it supports.
        switches: Whether it supports model.logit_softcap, nope_every, rotary_fraction and attention_scale.
        whole_heads: Whether hidden_size must be a multiple of num_heads.
        windows: Whether it supports model.sliding_window.
    """

    encodings: tuple[str, ...] | None = ()
    attention_bias: tuple[str, ...] = ()
    qk_norm: tuple[bool, ...] = ()
    normalizations: tuple[str, ...] = ()
    switches: bool = False
    whole_heads: bool = False
    windows: bool = False


@dataclass(frozen=True)
class ConfigurableEntry(Entry):
    """A part with a section of its own in the configuration.

    Attributes:
        options: Type of the section, as "package.module:class".
    """

    options: str

    def load_options(self) -> Any:
        """Import and return the type of the section."""
        return resolve_name(self.options)


@dataclass(frozen=True)
class OptimizerEntry(ConfigurableEntry):
    """An optimizer: a function that takes parameter groups and its section, and returns a torch optimizer.

    Its section is a subclass of megatape.config.OptimizerConfig. One that updates whole matrices is a subclass of
    megatape.optim.matrices.MatrixOptimizer; its `state` is that of the other weights.

    Attributes:
        state: Names of the float32 tensors that it keeps for each element of a weight, in torch's state_dict and in
            checkpoints.
        counts_steps: Whether it also keeps `step`, the number of steps, beside these tensors.
        matrix_state: Function from the shape of a whole matrix to the shapes of the tensors that it keeps for the matrix, by
            name; as "package.module:function", or None if it updates no whole matrices.
        matrix_flops: Function from the shape of a whole matrix to the FLOPs of its update, as "package.module:function". Ranks
            divide matrices by it, and plans estimate time by it. None: ranks divide matrices by their elements.
    """

    state: tuple[str, ...] = ()
    counts_steps: bool = False
    matrix_state: str | None = None
    matrix_flops: str | None = None

    def matrix_shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each float32 tensor that it keeps for a whole matrix of this shape, by name.

        Raises:
            UserError: The entry has no `matrix_state`.
        """
        if self.matrix_state is None:
            raise UserError(f"the entry of {self.target} updates whole matrices, but has no `matrix_state`: add it")
        return resolve_name(self.matrix_state)(shape)

    def update_flops(self, shape: tuple[int, ...]) -> int:
        """Return the FLOPs of the update of a whole matrix of this shape, 0 if they are not known."""
        if self.matrix_flops is None:
            return 0
        return resolve_name(self.matrix_flops)(shape)


@dataclass(frozen=True)
class ScheduleEntry(ConfigurableEntry):
    """A decay of the learning rate: a function of progress and its section.

    Its section is a megatape.config.ScheduleConfig or a subclass.
    """

    options: str = "megatape.config:ScheduleConfig"


@dataclass(frozen=True)
class SinkEntry(Entry):
    """A receiver of metrics: a subclass of megatape.training.sinks.sink.Sink.

    Attributes:
        package: Package that it needs besides those of every installation, which an extra of the same name installs; "" for
            none.
    """

    package: str = ""
