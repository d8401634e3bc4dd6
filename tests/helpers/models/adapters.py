"""In-memory checkpoints of runs training adapters."""

from pathlib import Path
from typing import Any

import torch

from megatape.model.transformer import Transformer
from tests.helpers.models.memory_checkpoint import VOCAB_SIZE, MemoryCheckpoint, memory_checkpoint

TARGETS = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "o_proj",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
}
TOKENS = torch.randint(VOCAB_SIZE, (2, 24), generator=torch.Generator().manual_seed(3))


def adapted(tokenizer: Path, trainable: list[str], **changes: Any) -> tuple[MemoryCheckpoint, Transformer]:
    """Return an in-memory checkpoint of a run training these adapters, and its model."""
    lora = {"rank": 3, "alpha": 6.0, "dropout": 0.1, "targets": list(TARGETS)}
    return memory_checkpoint(tokenizer, trainable=trainable, num_kv_heads=2, lora=lora, **changes)


CASES: dict[str, dict[str, Any]] = {
    "adapters": {"encoding": "rope", "trainable": ["adapters"]},
    "paper": {"encoding": "rope", "trainable": ["adapters", "norms", "embeddings"]},
    "tape": {"encoding": "tape", "trainable": ["adapters", "norms", "embeddings", "position"]},
    "tied": {"encoding": "tape", "trainable": ["adapters", "embeddings"], "tie_embeddings": True},
    "biased": {"encoding": "tape", "trainable": ["adapters", "*norm*"], "attention_bias": "qkvo", "qk_norm": True},
}
