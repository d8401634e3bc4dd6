"""What exists by name. Each line names the file that defines a thing and says what a configuration must know of it.

To add one, write its file and its line here (CONTRIBUTING.md has the table); a program of one's own adds its entries when it
starts (examples/add_encoding.py). Nothing here imports torch, so that a configuration
is checked, and help is printed, without it.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Entry:
    """target: "package.module:attribute" of the definition. description: a phrase for tables and model cards."""

    target: str
    description: str

    def load(self) -> Any:
        """Import the definition."""
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(module), attribute)


@dataclass(frozen=True)
class EncodingEntry(Entry):
    """A position encoding: a subclass of megatape.model.encodings.encoding.Encoding.

    exported: "module:class" of its code in exported models, a subclass of megatape.hf.modeling.encoding.Encoding; None if no model
    family but one of transformers' own can hold it. rotates: heads are made of planes, so that head_dim must be even. scalable:
    model.scaling may change its frequencies. paired_embedding: it adds pairs of a sine and a cosine to the embedding, so that
    hidden_size must be even. max_positions: the most that model.max_positions may be, None for any."""

    exported: str | None = None
    rotates: bool = False
    scalable: bool = False
    paired_embedding: bool = False
    max_positions: int | None = None


@dataclass(frozen=True)
class OptimizerEntry(Entry):
    """An optimizer: a function of parameter groups and the optimizer section of the configuration that returns a torch optimizer.

    state: kinds of float32 numbers that it keeps for each weight, by torch's names for them, which checkpoints use too.
    counts_steps: whether it keeps the number of steps as `step` besides. Nothing else of its state is saved."""

    state: tuple[str, ...] = ()
    counts_steps: bool = False

    @property
    def state_bytes(self) -> int:
        """Bytes of its state for each weight, without the float32 master weight itself."""
        return 4 * len(self.state)


_TAPE = "contextualized equivariant position encoding (TAPE, https://arxiv.org/abs/2501.00712)"


def _encoding(target: str, description: str, exported: bool = True, **properties: Any) -> EncodingEntry:
    """Entry of the class "file:class" of megatape/model/encodings/, and of the same class of megatape/hf/modeling/encoding_<file>.py."""
    code = f"megatape.hf.modeling.encoding_{target}" if exported else None
    return EncodingEntry(f"megatape.model.encodings.{target}", description, code, **properties)


ENCODINGS: dict[str, EncodingEntry] = {
    "tape": _encoding("tape:Tape", _TAPE, rotates=True, scalable=True),
    "tape_attention_only": _encoding("tape:TapeAttentionOnly", f"{_TAPE}, updated by attention only", rotates=True),
    "tape_mlp_only": _encoding("tape:TapeMlpOnly", f"{_TAPE}, updated by the feed-forward network only", rotates=True),
    "tape_no_rotation_equivariance": _encoding(
        "tape_no_rotation_equivariance:TapeNoRotationEquivariance", f"{_TAPE}, without rotation equivariance", rotates=True
    ),
    "tape_vector": _encoding(
        "tape_vector:TapeVector", f"{_TAPE}, updated along the head size instead of the channels", rotates=True
    ),
    "tape_vector_no_rotation_equivariance": _encoding(
        "tape_vector:TapeVectorNoRotationEquivariance",
        f"{_TAPE}, updated along the head size, without rotation equivariance",
        rotates=True,
    ),
    "tape_no_equivariance": _encoding(
        "tape_no_equivariance:TapeNoEquivariance", f"{_TAPE}, without equivariance", rotates=True
    ),
    "rope": _encoding("rope:Rope", "rotary position encoding", exported=False, rotates=True, scalable=True),
    "randpe": _encoding("randpe:RandPE", "rotary encoding of random positions (RandPE)", rotates=True),
    # Beyond 2^18 positions the scales of xPos leave the range of float32.
    "xpos": _encoding("xpos:XPos", "xPos position encoding", rotates=True, max_positions=2**18),
    "alibi": _encoding("alibi:Alibi", "ALiBi attention biases"),
    "t5": _encoding("t5:T5", "T5's relative attention biases"),
    "fire": _encoding("fire:Fire", "FIRE attention biases"),
    "sinusoidal": _encoding("sinusoidal:Sinusoidal", "sinusoidal position embeddings", paired_embedding=True),
    "nope": _encoding("nope:NoPE", "no position encoding (NoPE)"),
}

# Architectures of exported models: subclasses of megatape.hf.families.family.Family. The first one that represents a model holds it.
FAMILIES: dict[str, Entry] = {
    "llama": Entry("megatape.hf.families.llama:Llama", "transformers' Llama"),
    "tape": Entry(
        "megatape.hf.families.tape:Tape", "a transformer with any position encoding, whose code lies beside its weights"
    ),
}

OPTIMIZERS: dict[str, OptimizerEntry] = {
    "adamw": OptimizerEntry("megatape.optim.adamw:adamw", "AdamW", state=("exp_avg", "exp_avg_sq"), counts_steps=True),
}

SCHEDULES: dict[str, Entry] = {
    "linear": Entry("megatape.optim.schedules:linear", "a straight line down to final_fraction of the peak"),
    "cosine": Entry("megatape.optim.schedules:cosine", "half a cosine down to final_fraction of the peak"),
    "constant": Entry("megatape.optim.schedules:constant", "the peak"),
}


# In order of preference: without a choice of training.attention the first that can do what an encoding asks for runs.
AUTO = "auto"
BACKENDS: dict[str, Entry] = {
    "flex": Entry("megatape.attention.flex:Flex", "torch's flex_attention, compiled: biases by distance, on GPUs"),
    "sdpa": Entry("megatape.attention.sdpa:Sdpa", "PyTorch's scaled dot product attention: without biases"),
    "blocked": Entry("megatape.attention.blocked:Blocked", "by blocks of query rows in plain PyTorch: everything, anywhere"),
}

# Ways to measure a trained model: subclasses of megatape.tasks.task.Task.
TASKS: dict[str, Entry] = {
    "addition": Entry("megatape.tasks.addition:Addition", "exact match over the grid of operand lengths"),
}
