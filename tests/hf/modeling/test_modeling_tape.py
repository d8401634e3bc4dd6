"""Exported models give training's logits."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, MistralForCausalLM

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
def check(found: Exported, attention: str = "sdpa") -> None:
    """Check that an exported model has the logits of its source."""
    tokens = prompt()
    expected = found.ours(tokens, found.positions(tokens))
    assert_close(found.load(attn_implementation=attention)(tokens).logits, expected, bounds.EXPORTED)


@pytest.mark.parametrize("attention", slow_but(["sdpa"], ["sdpa", "eager"]))
@pytest.mark.parametrize(("shape", "encoding"), ENCODINGS)
def test_every_encoding(exported: Callable[..., Exported], shape: str, encoding: str, attention: str) -> None:
    found = exported(shape, encoding)
    remote = dict.fromkeys(("mixed", "capped", "partial", "log", "interleaved"), "TapeForCausalLM")
    rope = ({"features": "Qwen3ForCausalLM"} | remote).get(shape, "LlamaForCausalLM")
    assert type(found.load()).__name__ == (rope if encoding == "rope" else "TapeForCausalLM")
    check(found, attention)


@pytest.mark.parametrize("encoding", ["alibi", "t5", "fire"])
def test_biases_of_twelve_heads_and_long_texts(exported: Callable[..., Exported], encoding: str) -> None:
    """Twelve is no power of two, which changes the slopes. Long texts reach beyond the first buckets and thresholds."""
    found = exported("twelve", encoding)
    tokens = prompt(batch=1, length=700)
    with torch.no_grad():
        expected = found.ours(tokens, positions(tokens))
        assert_close(found.load()(tokens).logits, expected, bounds.EXPORTED)


@torch.no_grad()
def test_randpe_uses_the_evaluation_draw_of_a_length(exported: Callable[..., Exported]) -> None:
    """Positions are drawn for the run's sequence length or a longer text's. A growing text must announce its final length."""
    found = exported("grouped", "randpe")
    model = found.load()
    assert (model.config.position_length, model.config.position_seed) == (64, 1234)
    draws = found.ours.encoding.positions(random_offset=False)

    def expected(tokens: Tensor, length: int) -> Tensor:
        logits: Tensor = found.ours(
            tokens, torch.from_numpy(draws.evaluation(length, 1234))[: tokens.shape[1]].expand_as(tokens)
        )
        return logits

    short = prompt()
    long = prompt(length=80)
    assert_close(model(short).logits, expected(short, 64), bounds.EXPORTED)
    assert_close(model(long).logits, expected(long, 80), bounds.EXPORTED)
    apart = model(short, position_length=torch.tensor([64, 100])).logits  # each text its own
    assert_close(apart, torch.cat([expected(short[:1], 64), expected(short[1:], 100)]), bounds.EXPORTED)
    assert relative_difference(expected(short, 64), expected(short, 100)) > 100 * bounds.EXPORTED.limit
    cache = model(short, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="token 80 of a text whose first one was placed as in a text of at most 64"):
        model(long[:, 40:], past_key_values=cache)
    with pytest.raises(ValueError, match=r"a text of 129 tokens, with .* of 0 .. 127 \(2 max_position_embeddings\): shorten"):
        model(short, position_length=torch.tensor([129]))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("shape", SHAPES)
def test_tape(exported: Callable[..., Exported], shape: str, attention: str) -> None:
    found = exported(shape)
    assert type(found.load()).__name__ == "TapeForCausalLM"
    check(found, attention)


@pytest.mark.parametrize("shape", SHAPES)
def test_rope_is_a_plain_llama(exported: Callable[..., Exported], shape: str) -> None:
    """If hidden_size is not a multiple of num_heads, the export is a Mistral."""
    found = exported(shape, encoding="rope")
    assert type(found.load()) is (MistralForCausalLM if shape == "odd" else LlamaForCausalLM)
    assert not list(found.folder.glob("*.py"))
    check(found)


def test_tied_embeddings_are_stored_and_held_once(exported: Callable[..., Exported]) -> None:
    for encoding in ("tape", "rope"):
        folders = [exported(shape, encoding) for shape in ("tied", "plain")]
        tied, untied = (found.load() for found in folders)
        assert tied.lm_head.weight is tied.model.embed_tokens.weight
        assert untied.lm_head.weight is not untied.model.embed_tokens.weight
        sizes = [(found.folder / "model.safetensors").stat().st_size for found in folders]
        assert sizes[1] - sizes[0] > 4 * VOCAB_SIZE * 32


def test_bfloat16_keeps_the_position_tensor_in_float32(exported: Callable[..., Exported]) -> None:
    found = exported("grouped", precision="bfloat16")
    theirs = found.load()
    assert theirs.dtype == torch.bfloat16
    states: list[Tensor] = []
    for layer in theirs.model.layers:
        layer.register_forward_hook(lambda module, args, result: states.append(result[1]))
    tokens = prompt()
    with torch.no_grad():
        logits = theirs(tokens).logits
        expected = found.ours.bfloat16()(tokens, positions(tokens))
    assert {state.dtype for state in states} == {torch.float32}
    assert logits.dtype == torch.bfloat16
    # bfloat16 has 8 bits; training computes attention in float32 on the CPU and rounds elsewhere.
    error = F.mse_loss(logits.float(), expected.float()) / expected.float().var()
    assert_within(float(error), bounds.EXPORTED_BFLOAT16)


def test_loss_is_shifted_and_ignores_what_it_is_told_to(exported: Callable[..., Exported]) -> None:
    found = exported("plain")
    tokens = prompt()
    labels = tokens.clone()
    labels[:, :10] = -100
    with torch.no_grad():
        loss = found.load()(tokens, labels=labels).loss
        expected = F.cross_entropy(found.ours(tokens, positions(tokens))[:, 9:-1].flatten(0, 1), tokens[:, 10:].flatten())
    assert_close(loss, expected, bounds.EXPORTED)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("shape", "encoding"),
    [(shape, "tape") for shape in ("grouped", "log")]
    + [("grouped", name) for name in ("path_fox", "selective_rope_gated", "tape_selective_rope")],
)
def test_packed_documents_as_in_training(exported: Callable[..., Exported], shape: str, encoding: str, attention: str) -> None:
    """Restarting positions separate documents, as data.mask_documents does.

    Scores scaled by the number of keys count only the document's own keys, and features of previous tokens read no other
    document.
    """
    found = exported(shape, encoding)
    lengths = (17, 23)
    tokens = prompt(batch=1)
    restarted = torch.cat([torch.arange(length) for length in lengths])[None]
    document_starts = torch.tensor([0] * lengths[0] + [lengths[0]] * lengths[1])[None]
    with torch.no_grad():
        logits = found.load(attn_implementation=attention)(tokens, position_ids=restarted, use_cache=False).logits
        expected = found.ours(tokens, restarted, document_starts)
        apart = found.ours(tokens, positions(tokens))
    assert_close(logits, expected, bounds.EXPORTED)
    assert relative_difference(apart, expected) > 100 * bounds.EXPORTED.limit


def test_offsets_of_positions_do_not_matter(exported: Callable[..., Exported]) -> None:
    model = exported("plain").load()
    tokens = prompt()
    with torch.no_grad():
        expected = model(tokens).logits
        shifted = model(tokens, position_ids=positions(tokens) + 131_072).logits
    assert not torch.equal(shifted, expected)
    assert_close(shifted, expected, bounds.OFFSET)


def test_hidden_states_and_attentions(exported: Callable[..., Exported]) -> None:
    found = exported("grouped")
    tokens = prompt()
    with torch.no_grad():
        output = found.load(attn_implementation="eager")(tokens, output_hidden_states=True, output_attentions=True)
        with recorded_streams(found.ours) as streams:
            found.ours(tokens, positions(tokens))
    assert_close(output.hidden_states[1], streams[0][0], bounds.EXPORTED)
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


def test_gradients_are_the_same_with_gradient_checkpointing(exported: Callable[..., Exported]) -> None:
    model = exported("grouped").load()
    tokens = prompt()
    gradients = []
    for checkpointing in (False, True):
        model.zero_grad()
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        gradients.append({name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None})
        model.gradient_checkpointing_disable()
        model.eval()
    assert gradients[0].keys() == gradients[1].keys()
    assert any("position.gain" in name for name in gradients[0])
    for name, gradient in gradients[0].items():
        assert torch.equal(gradients[1][name], gradient), name


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
def test_what_the_code_does_not_know_is_refused(
    exported: Callable[..., Exported], encoding: str, changes: dict[str, Any], message: str
) -> None:
    model = exported("grouped", encoding).load()
    with pytest.raises(ValueError, match=message):
        type(model)(type(model.config)(**changes))


@pytest.mark.parametrize("encoding", ["fire", "t5"])
def test_a_new_bias_starts_as_in_training(exported: Callable[..., Exported], encoding: str) -> None:
    config = AutoConfig.from_pretrained(exported("grouped", encoding).folder, trust_remote_code=True)
    torch.manual_seed(0)  # the spread of so few weights is itself widely spread
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    ours = dict(exported("grouped", encoding).ours.named_parameters())
    for name, weight in model.named_parameters():
        if ".bias." in name:
            constant = spec_of(ours[f"blocks.0.attention.bias.{name.rpartition('.')[2]}"]).init
            if constant is None:
                assert 0.01 < weight.std() < 0.03, name
            else:
                assert (weight == constant).all(), name


def test_new_phases_start_within_their_bounds(exported: Callable[..., Exported]) -> None:
    config = AutoConfig.from_pretrained(exported("grouped", "pope_uniform").folder, trust_remote_code=True)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    phases = torch.cat([weight.flatten() for name, weight in model.named_parameters() if name.endswith(".delta")])
    assert -2 * math.pi <= phases.min() < -math.pi < phases.max() <= 0
