"""Exported models have the logits of training."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, MistralForCausalLM, PreTrainedModel

from megatape.model.recorded_streams import recorded_streams
from megatape.nn.parameters import spec_of
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, assert_within, relative_difference
from tests.helpers.checks.slow import slow_but
from tests.helpers.models.exports import ENCODINGS, SHAPES, Exported
from tests.helpers.models.memory_checkpoint import VOCAB_SIZE

pytestmark = pytest.mark.numerics


def prompt(batch: int = 2, length: int = 40) -> Tensor:
    return torch.randint(3, VOCAB_SIZE, (batch, length), generator=torch.Generator().manual_seed(5))


def positions(tokens: Tensor) -> Tensor:
    return torch.arange(tokens.shape[1]).expand_as(tokens)


@torch.no_grad()
def assert_equals_training(export: Exported, attention: str = "sdpa") -> None:
    """Assert that an exported model has the logits of its source."""
    tokens = prompt()
    expected = export.ours(tokens, export.positions(tokens))
    logits = export.load(attn_implementation=attention)(tokens).logits
    assert_close(logits, expected, bounds.EXPORTED)


# Shapes whose export with rotary positions is not a Llama
ROPE_CLASSES = {
    "features": "Qwen3ForCausalLM",
    "mixed": "TapeForCausalLM",
    "capped": "TapeForCausalLM",
    "partial": "TapeForCausalLM",
    "log": "TapeForCausalLM",
    "interleaved": "TapeForCausalLM",
    "mixture_of_rope": "TapeForCausalLM",
}


@pytest.mark.parametrize("attention", slow_but(["sdpa"], ["sdpa", "eager"]))
@pytest.mark.parametrize(("shape", "encoding"), ENCODINGS)
def test_every_encoding(exported: Callable[..., Exported], shape: str, encoding: str, attention: str) -> None:
    export = exported(shape, encoding)
    model_class = "TapeForCausalLM"
    if encoding == "rope":
        model_class = ROPE_CLASSES.get(shape, "LlamaForCausalLM")
    assert type(export.load()).__name__ == model_class
    assert_equals_training(export, attention)


@pytest.mark.parametrize("encoding", ["alibi", "t5", "fire"])
def test_biases_of_twelve_heads_and_long_texts(exported: Callable[..., Exported], encoding: str) -> None:
    """Twelve is no power of two, which changes the slopes. Long texts reach beyond the first buckets and thresholds."""
    export = exported("twelve", encoding)
    tokens = prompt(batch=1, length=700)
    with torch.no_grad():
        expected = export.ours(tokens, positions(tokens))
        assert_close(export.load()(tokens).logits, expected, bounds.EXPORTED)


def randpe_logits(export: Exported, tokens: Tensor, length: int) -> Tensor:
    """Return training's logits of tokens placed as in a text of this length."""
    draws = export.ours.encoding.positions(random_offset=False)
    drawn = torch.from_numpy(draws.evaluation(length, 1234))
    logits: Tensor = export.ours(tokens, drawn[: tokens.shape[1]].expand_as(tokens))
    return logits


@torch.no_grad()
def test_randpe_uses_the_evaluation_draw_of_a_length(exported: Callable[..., Exported]) -> None:
    """Positions are drawn for the run's sequence length, or a longer text's, or the announced one of each text."""
    export = exported("grouped", "randpe")
    model = export.load()
    short = prompt()
    long = prompt(length=80)
    assert (model.config.position_length, model.config.position_seed) == (64, 1234)

    assert_close(model(short).logits, randpe_logits(export, short, 64), bounds.EXPORTED)
    assert_close(model(long).logits, randpe_logits(export, long, 80), bounds.EXPORTED)
    logits = model(short, position_length=torch.tensor([64, 100])).logits
    assert_close(logits[:1], randpe_logits(export, short[:1], 64), bounds.EXPORTED)
    assert_close(logits[1:], randpe_logits(export, short[1:], 100), bounds.EXPORTED)
    difference = relative_difference(randpe_logits(export, short, 64), randpe_logits(export, short, 100))
    assert difference > 100 * bounds.EXPORTED.limit


@torch.no_grad()
def test_randpe_refuses_texts_beyond_the_announced_length(exported: Callable[..., Exported]) -> None:
    model = exported("grouped", "randpe").load()
    short = prompt()
    cache = model(short, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="token 80 of a text whose first one was placed as in a text of at most 64"):
        model(prompt(length=80)[:, 40:], past_key_values=cache)
    with pytest.raises(ValueError, match=r"a text of 129 tokens, with .* of 0 .. 127 \(2 max_position_embeddings\): shorten"):
        model(short, position_length=torch.tensor([129]))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("shape", SHAPES)
def test_tape(exported: Callable[..., Exported], shape: str, attention: str) -> None:
    export = exported(shape)
    assert type(export.load()).__name__ == "TapeForCausalLM"
    assert_equals_training(export, attention)


@pytest.mark.parametrize("shape", SHAPES)
def test_rope_is_a_plain_llama(exported: Callable[..., Exported], shape: str) -> None:
    """If hidden_size is not a multiple of num_heads, the export is a Mistral."""
    export = exported(shape, encoding="rope")
    model_class: type[PreTrainedModel] = LlamaForCausalLM
    if shape == "odd":
        model_class = MistralForCausalLM
    assert type(export.load()) is model_class
    assert not list(export.folder.glob("*.py"))
    assert_equals_training(export)


@pytest.mark.parametrize("encoding", ["tape", "rope"])
def test_tied_embeddings_are_stored_and_loaded_once(exported: Callable[..., Exported], encoding: str) -> None:
    tied = exported("tied", encoding)
    untied = exported("plain", encoding)

    tied_model = tied.load()
    untied_model = untied.load()

    assert tied_model.lm_head.weight is tied_model.model.embed_tokens.weight
    assert untied_model.lm_head.weight is not untied_model.model.embed_tokens.weight
    tied_size = (tied.folder / "model.safetensors").stat().st_size
    untied_size = (untied.folder / "model.safetensors").stat().st_size
    assert untied_size - tied_size > 4 * VOCAB_SIZE * 32


def test_bfloat16_keeps_the_position_tensor_in_float32(exported: Callable[..., Exported]) -> None:
    export = exported("grouped", precision="bfloat16")
    model = export.load()
    assert model.dtype == torch.bfloat16
    states: list[Tensor] = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda module, args, result: states.append(result[1]))
    tokens = prompt()

    with torch.no_grad():
        logits = model(tokens).logits
        expected = export.ours.bfloat16()(tokens, positions(tokens))

    assert {state.dtype for state in states} == {torch.float32}
    assert logits.dtype == torch.bfloat16
    # bfloat16 has 8 bits. On the CPU, training computes attention in float32 and rounds in other places.
    error = F.mse_loss(logits.float(), expected.float()) / expected.float().var()
    assert_within(float(error), bounds.EXPORTED_BFLOAT16)


def test_loss_shifts_labels_and_skips_ignored_ones(exported: Callable[..., Exported]) -> None:
    export = exported("plain")
    tokens = prompt()
    labels = tokens.clone()
    labels[:, :10] = -100
    with torch.no_grad():
        loss = export.load()(tokens, labels=labels).loss
        logits = export.ours(tokens, positions(tokens))
    expected = F.cross_entropy(logits[:, 9:-1].flatten(0, 1), tokens[:, 10:].flatten())
    assert_close(loss, expected, bounds.EXPORTED)


PACKED = [("grouped", "tape"), ("log", "tape")]
PACKED += [("grouped", name) for name in ("path_fox", "selective_rope_gated", "tape_selective_rope")]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("shape", "encoding"), PACKED)
def test_packed_documents_as_in_training(exported: Callable[..., Exported], shape: str, encoding: str, attention: str) -> None:
    """Restarting positions separate documents, as data.mask_documents does.

    Scores scaled by the number of keys count only the document's own keys, and features of previous tokens read no other
    document.
    """
    export = exported(shape, encoding)
    tokens = prompt(batch=1)
    restarted = torch.cat([torch.arange(17), torch.arange(23)])[None]
    document_starts = torch.tensor([0] * 17 + [17] * 23)[None]
    with torch.no_grad():
        logits = export.load(attn_implementation=attention)(tokens, position_ids=restarted, use_cache=False).logits
        expected = export.ours(tokens, restarted, document_starts)
        not_packed = export.ours(tokens, positions(tokens))
    assert_close(logits, expected, bounds.EXPORTED)
    assert relative_difference(not_packed, expected) > 100 * bounds.EXPORTED.limit


def test_offsets_of_positions_do_not_matter(exported: Callable[..., Exported]) -> None:
    model = exported("plain").load()
    tokens = prompt()
    with torch.no_grad():
        expected = model(tokens).logits
        shifted = model(tokens, position_ids=positions(tokens) + 131_072).logits
    assert not torch.equal(shifted, expected)
    assert_close(shifted, expected, bounds.OFFSET)


def test_hidden_states_and_attentions(exported: Callable[..., Exported]) -> None:
    export = exported("grouped")
    tokens = prompt()
    with torch.no_grad():
        output = export.load(attn_implementation="eager")(tokens, output_hidden_states=True, output_attentions=True)
        with recorded_streams(export.ours) as streams:
            export.ours(tokens, positions(tokens))
    first_hidden_state, _ = streams[0]
    assert_close(output.hidden_states[1], first_hidden_state, bounds.EXPORTED)
    assert len(output.hidden_states) == len(output.attentions) + 1 == 4
    assert_close(output.attentions[0].sum(-1), torch.ones(2, 4, 40), bounds.PROBABILITIES)


def test_a_new_model_starts_from_rotary_positions(exported: Callable[..., Exported]) -> None:
    config = AutoConfig.from_pretrained(exported("grouped").folder, trust_remote_code=True)
    torch.manual_seed(0)  # W_down is a dozen numbers
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    for layer in model.model.layers:
        assert not layer.position.gain.any()
        assert not layer.position.up.any()
        assert 0.01 < layer.position.content.std() < 0.03
        assert 0.01 < layer.position.down.std() < 0.03


def test_gradient_checkpointing_changes_no_gradient(exported: Callable[..., Exported]) -> None:
    model = exported("grouped").load().train()
    tokens = prompt()

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}

    expected = gradients()
    model.gradient_checkpointing_enable()
    checkpointed = gradients()

    assert checkpointed.keys() == expected.keys()
    assert any("position.gain" in name for name in expected)
    for name, gradient in expected.items():
        assert torch.equal(checkpointed[name], gradient), name


def test_attention_that_needs_values_as_wide_as_keys_is_not_offered(exported: Callable[..., Exported]) -> None:
    with pytest.raises(ValueError, match="does not support an attention implementation through torch's flex_attention"):
        exported("plain").load(attn_implementation="flex_attention")


@pytest.mark.parametrize(
    ("encoding", "changes", "message"),
    [
        ("tape", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "'dynamic': use 'default'"),
        (
            "xpos",
            {"encoding": "xpos", "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type 'linear', but encoding xpos has no scaled frequencies",
        ),
        ("tape", {"encoding": "rope"}, "encoding is 'rope', but there is only code for tape"),
    ],
)
def test_unknown_settings_are_refused(
    exported: Callable[..., Exported], encoding: str, changes: dict[str, Any], message: str
) -> None:
    model = exported("grouped", encoding).load()
    with pytest.raises(ValueError, match=message):
        type(model)(type(model.config)(**changes))


@pytest.mark.parametrize("encoding", ["fire", "t5"])
def test_a_new_bias_starts_as_in_training(exported: Callable[..., Exported], encoding: str) -> None:
    config = AutoConfig.from_pretrained(exported("grouped", encoding).folder, trust_remote_code=True)
    torch.manual_seed(0)  # With so few weights, the standard deviation varies widely.
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    bias = exported("grouped", encoding).ours.blocks[0].attention.get_submodule("bias")
    for name, weight in model.named_parameters():
        if ".bias." not in name:
            continue
        constant = spec_of(bias.get_parameter(name.rpartition(".")[2])).init
        if constant is None:
            assert 0.01 < weight.std() < 0.03, name
        else:
            assert (weight == constant).all(), name


def test_new_phases_start_within_their_bounds(exported: Callable[..., Exported]) -> None:
    config = AutoConfig.from_pretrained(exported("grouped", "pope_uniform").folder, trust_remote_code=True)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    phases = torch.cat([weight.flatten() for name, weight in model.named_parameters() if name.endswith(".delta")])
    assert -2 * math.pi <= phases.min() < -math.pi < phases.max() <= 0
