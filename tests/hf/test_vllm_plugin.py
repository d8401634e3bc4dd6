"""The vLLM plugin (examples/vllm) with a stand-in for vLLM: exported models give the tokens that they give in transformers."""

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.exports import Exported
from tests.helpers.models.memory_checkpoint import VOCAB_SIZE
from tests.helpers.vllm.engine import Engine
from tests.helpers.vllm.modules import ModelRegistry, plugin_modules
from tests.helpers.vllm.ranks import Chunk

PROMPT_LENGTHS = {"a": 3, "b": 11, "c": 7}
CHUNK = 4
NUM_NEW = 6


@pytest.fixture(scope="module")
def plugin() -> Iterator[ModuleType]:
    with plugin_modules() as module:
        yield module


@pytest.fixture(scope="module")
def model_class(plugin: ModuleType) -> Any:
    """The class that vLLM imports by the name in its registry."""
    plugin.register()
    module, _, name = ModelRegistry.models["TapeForCausalLM"].partition(":")
    return getattr(__import__(module, fromlist=[name]), name)


def engine_of(model_class: Any, exported: Exported, num_ranks: int = 1) -> tuple[Engine, PreTrainedModel]:
    model = exported.load()
    return Engine(model_class, exported.folder, model.config, model.state_dict(), num_ranks), model


def prompts() -> dict[str, list[int]]:
    generator = torch.Generator().manual_seed(7)
    return {
        name: torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for name, length in PROMPT_LENGTHS.items()
    }


def run_requests(engine: Engine) -> tuple[dict[str, list[int]], dict[str, Tensor]]:
    """Generate greedily as vLLM does: prompts in chunks, and other requests' new tokens in the same batches.

    Returns:
        Request -> its tokens; request -> logits of its last token.
    """
    texts = prompts()
    num_computed = dict.fromkeys(texts, 0)
    num_final = {name: len(tokens) + NUM_NEW for name, tokens in texts.items()}
    last_logits: dict[str, Tensor] = {}
    while running := [name for name in texts if len(texts[name]) < num_final[name]]:
        chunks = []
        tokens: list[int] = []
        positions: list[int] = []
        for name in running:
            begin = num_computed[name]
            end = min(len(texts[name]), begin + CHUNK)
            chunks.append(Chunk(name, end - begin))
            tokens += texts[name][begin:end]
            positions += range(begin, end)
            num_computed[name] = end
        logits = engine.run(torch.tensor(tokens), torch.tensor(positions), chunks)
        end_of_chunk = 0
        for name, num_tokens in chunks:
            end_of_chunk += num_tokens
            if num_computed[name] == len(texts[name]):
                last_logits[name] = logits[end_of_chunk - 1]
                texts[name].append(int(last_logits[name].argmax()))
    return texts, last_logits


def check_requests(engine: Engine, model: PreTrainedModel) -> None:
    """Compare the tokens of all requests, and the logits of each one's last token, with those of transformers."""
    texts, last_logits = run_requests(engine)
    # The end token is a token like others here.
    model.generation_config.eos_token_id = None
    for name, prompt in prompts().items():
        ids = torch.tensor([prompt])
        expected = model.generate(ids, max_new_tokens=NUM_NEW, do_sample=False)[0].tolist()
        assert texts[name] == expected, name
        with torch.no_grad():
            logits = model(torch.tensor([texts[name][:-1]])).logits[0, -1]
        assert_close(last_logits[name], logits, bounds.EXPORTED)


@pytest.mark.numerics
@pytest.mark.parametrize(
    ("shape", "encoding"),
    [("grouped", "tape"), ("mixed", "tape"), ("interleaved", "tape"), ("mixture_of_tape", "tape"), ("grouped", "xpos")],
)
def test_same_tokens_as_transformers(model_class: Any, exported: Callable[..., Exported], shape: str, encoding: str) -> None:
    """Greedy tokens of several requests are those of `generate`, whatever else runs in a batch."""
    check_requests(*engine_of(model_class, exported(shape, encoding)))


@pytest.mark.numerics
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "encoding"),
    [
        *((shape, "tape") for shape in ("plain", "tied", "odd", "single", "yarn", "llama3", "features", "capped", "partial")),
        ("interleaved", "rope"),
        *(("features", encoding) for encoding in ("tape_attention_only", "tape_mlp_only", "tape_vector")),
    ],
)
def test_every_shape(model_class: Any, exported: Callable[..., Exported], shape: str, encoding: str) -> None:
    """Every shape that exports have, and ablations of TAPE."""
    check_requests(*engine_of(model_class, exported(shape, encoding)))


@pytest.mark.numerics
def test_tensor_parallel_ranks(model_class: Any, exported: Callable[..., Exported]) -> None:
    """Two ranks, each with the keys, values and states of half the heads, give the tokens of one process."""
    check_requests(*engine_of(model_class, exported("mixed"), num_ranks=2))


def test_cache_is_one_and_a_half_times_a_llama(model_class: Any, exported: Callable[..., Exported]) -> None:
    """A token's page has keys, values and states of one width in every layer, as docs/export.md says."""
    engine, model = engine_of(model_class, exported("grouped"))
    run_requests(engine)
    pages = set()
    for layer in engine.models[0].model.layers:
        key, value = layer.self_attn.attn.cache["a"]
        pages.add((key.shape[-1], value.shape[-1]))
    head_dim = model.config.head_dim
    assert pages == {(head_dim, 2 * head_dim)}


@pytest.mark.parametrize(
    ("shape", "encoding", "message"),
    [
        ("grouped", "alibi", "encoding alibi: it adds a bias to the scores"),
        ("grouped", "path", "encoding path: it reads the content of queries and keys"),
        ("grouped", "randpe", "encoding randpe: it draws random positions"),
        ("log", "tape", "attention_scale log_n: not supported here"),
    ],
)
def test_refused_model(model_class: Any, exported: Callable[..., Exported], shape: str, encoding: str, message: str) -> None:
    """A model that vLLM's attention cannot compute ends with its reason before loading weights."""
    with pytest.raises(ValueError, match=message):
        engine_of(model_class, exported(shape, encoding))


def test_ranks_that_do_not_divide_heads(model_class: Any, exported: Callable[..., Exported]) -> None:
    with pytest.raises(ValueError, match="tensor_parallel_size 4: it must divide the model's 2 key/value heads"):
        engine_of(model_class, exported("grouped"), num_ranks=4)
