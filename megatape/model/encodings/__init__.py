"""The position encodings by name. A new one is a file here, a line below and a name in config.EncodingName."""

from megatape.config import EncodingName, ModelConfig
from megatape.model.encodings.alibi import Alibi
from megatape.model.encodings.encoding import Encoding
from megatape.model.encodings.fire import Fire
from megatape.model.encodings.nope import NoPE
from megatape.model.encodings.randpe import RandPE
from megatape.model.encodings.rope import Rope
from megatape.model.encodings.sinusoidal import Sinusoidal
from megatape.model.encodings.t5 import T5
from megatape.model.encodings.tape import Tape, TapeAttentionOnly, TapeMlpOnly
from megatape.model.encodings.tape_no_equivariance import TapeNoEquivariance
from megatape.model.encodings.tape_no_rotation_equivariance import TapeNoRotationEquivariance
from megatape.model.encodings.tape_vector import TapeVector, TapeVectorNoRotationEquivariance
from megatape.model.encodings.xpos import XPos

ENCODINGS: dict[EncodingName, type[Encoding]] = {
    "tape": Tape,
    "tape_attention_only": TapeAttentionOnly,
    "tape_mlp_only": TapeMlpOnly,
    "tape_no_rotation_equivariance": TapeNoRotationEquivariance,
    "tape_vector": TapeVector,
    "tape_vector_no_rotation_equivariance": TapeVectorNoRotationEquivariance,
    "tape_no_equivariance": TapeNoEquivariance,
    "rope": Rope,
    "randpe": RandPE,
    "xpos": XPos,
    "alibi": Alibi,
    "t5": T5,
    "fire": Fire,
    "sinusoidal": Sinusoidal,
    "nope": NoPE,
}


def encoding_of(config: ModelConfig) -> Encoding:
    """The encoding that a model with this configuration has."""
    return ENCODINGS[config.encoding](config)
