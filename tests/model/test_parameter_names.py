"""Parameter names in every layout, used by checkpoints, exports and patterns in training.trainable.

parameter_names.json was recorded before layouts became wrappers of blocks. No layout may change a name or the order.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from megatape.config import ModelConfig
from megatape.distributed.mesh import Axis
from tests.helpers.models.small_models import SHAPE, model_with

RECORDED = json.loads((Path(__file__).parent / "parameter_names.json").read_text())

LORA = {"rank": 2, "alpha": 2.0, "targets": ["query", "key", "value", "output", "gate", "up", "down"]}
MODELS: dict[str, dict[str, Any]] = {
    "tape": {},
    "tape, grouped queries": {"num_kv_heads": 2},
    "rope": {"encoding": "rope"},
    "tape_vector": {"encoding": "tape_vector"},
    "fox": {"encoding": "fox"},
    "path": {"encoding": "path"},
    "tape_fox": {"encoding": "tape_fox", "nope_every": 2},
    "sinusoidal": {"encoding": "sinusoidal"},
    "lora": {"lora": LORA},
    "lora of some layers": {"encoding": "rope", "lora": LORA | {"targets": ["down", "query"]}},
    "switches": {"qk_norm": True, "tie_embeddings": True, "attention_bias": "qkvo", "attention_scale": "log_n"},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "tensor": {"tensor_axis": Axis("tensor", 2, 1)},
    "sequence": {"sequence_axis": Axis("sequence", 2, 1)},
    "context": {"context_axis": Axis("context", 2, 1)},
    "selective": {"activation_checkpointing": "selective"},
    "full": {"activation_checkpointing": "full"},
    "offload": {"activation_checkpointing": "offload"},
    "chunks": {"chunk_tokens": 16, "activation_checkpointing": "offload"},
    "compiled": {"compiler": "eager"},
    "shifted": {"num_shifted_groups": 2},
    "every rank": {
        "tensor_axis": Axis("tensor", 2, 0),
        "sequence_axis": Axis("sequence", 2, 1),
        "context_axis": Axis("context", 2, 0),
        "chunk_tokens": 4,
        "activation_checkpointing": "full",
    },
}
TRAINED = ["position", "adapters", "norms", "*.mlp.down.weight"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_names_are_those_recorded(model: str, layout: str) -> None:
    config = ModelConfig(**SHAPE | MODELS[model])
    built = model_with(config, **LAYOUTS[layout])
    assert list(dict(built.named_parameters())) == RECORDED[model]["parameters"]
    assert list(built.state_dict()) == RECORDED[model]["parameters"]


@pytest.mark.parametrize("model", MODELS)
def test_patterns_choose_the_same_parameters(model: str) -> None:
    config = ModelConfig(**SHAPE | MODELS[model])
    built = model_with(config, trainable=TRAINED, frozen=["blocks.0.*"])
    trained = [name for name, parameter in built.named_parameters() if parameter.requires_grad]
    assert trained == RECORDED[model]["trained"]
