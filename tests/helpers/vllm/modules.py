"""Modules of vLLM that the plugin imports, with the stand-ins as their content."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from torch import Tensor, nn

from tests.helpers.vllm.attention import Attention, AttentionBackendEnum
from tests.helpers.vllm.layers import (
    LogitsProcessor,
    MergedColumnParallelLinear,
    ParallelLMHead,
    QKVParallelLinear,
    RMSNorm,
    RowParallelLinear,
    SiluAndMul,
    VocabParallelEmbedding,
)
from tests.helpers.vllm.ranks import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
)

PLUGIN = Path(__file__).parents[3] / "examples" / "vllm"


class VllmConfig:
    """Configuration of a model in float32, without quantization."""

    def __init__(self, folder: Path, hf_config: Any) -> None:
        self.model_config = SimpleNamespace(model=str(folder), hf_config=hf_config, code_revision=None)
        self.cache_config = None
        self.quant_config = None


class ModelRegistry:
    models: dict[str, str] = {}  # noqa: RUF012

    @classmethod
    def register_model(cls, model_arch: str, model_cls: str) -> None:
        cls.models[model_arch] = model_cls


def get_current_vllm_config() -> Any:
    return SimpleNamespace(attention_config=SimpleNamespace(backend=None))


def default_weight_loader(param: nn.Parameter, loaded_weight: Tensor) -> None:
    assert param.shape == loaded_weight.shape
    param.data.copy_(loaded_weight)


def maybe_prefix(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


# vLLM's module -> what the plugin imports from it
CONTENT: dict[str, tuple[Any, ...]] = {
    "vllm": (ModelRegistry,),
    "vllm.config": (VllmConfig, get_current_vllm_config),
    "vllm.distributed": (
        get_tensor_model_parallel_rank,
        get_tensor_model_parallel_world_size,
        tensor_model_parallel_all_gather,
    ),
    "vllm.model_executor.layers.activation": (SiluAndMul,),
    "vllm.model_executor.layers.attention": (Attention,),
    "vllm.model_executor.layers.layernorm": (RMSNorm,),
    "vllm.model_executor.layers.linear": (MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear),
    "vllm.model_executor.layers.logits_processor": (LogitsProcessor,),
    "vllm.model_executor.layers.vocab_parallel_embedding": (ParallelLMHead, VocabParallelEmbedding),
    "vllm.model_executor.model_loader.weight_utils": (default_weight_loader,),
    "vllm.model_executor.models.utils": (maybe_prefix,),
    "vllm.v1.attention.backends.registry": (AttentionBackendEnum,),
}


@contextmanager
def plugin_modules() -> Iterator[ModuleType]:
    """Import the plugin with the stand-in as vLLM. Yields the plugin."""
    added = []
    for name, content in CONTENT.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            parent = ".".join(parts[:end])
            if parent not in sys.modules:
                sys.modules[parent] = ModuleType(parent)
                added.append(parent)
        for each in content:
            setattr(sys.modules[name], each.__name__, each)
    sys.path.insert(0, str(PLUGIN))
    try:
        yield importlib.import_module("tape_vllm")
    finally:
        sys.path.remove(str(PLUGIN))
        added += [name for name in sys.modules if name.partition(".")[0] == "tape_vllm"]
        for name in added:
            del sys.modules[name]
