"""Effects of each encoding: relevant positions, documents, grouped queries, scaling."""

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from megatape.attention.rotation import PositionState, rotate_qk
from megatape.config import ModelConfig, ScalingConfig
from megatape.config.sections.scaling import SCALINGS
from megatape.distributed.mesh import Axis
from megatape.encodings import encoding_of
from megatape.encodings.rope import frequencies
from megatape.encodings.sinusoidal import SinusoidalEmbedding
from megatape.hf.families.family import SCALING
from megatape.model.build import build_model, meta_model
from megatape.model.layout import Layout
from megatape.model.recorded_streams import recorded_streams
from megatape.nn.parameters import is_sharded, spec_of
from megatape.registry import ENCODINGS
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, relative_difference
from tests.helpers.models.packed_documents import assert_documents_are_independent
from tests.helpers.models.small_models import SHAPE, random_model, tokens_and_positions

pytestmark = pytest.mark.numerics


NAMES = tuple(ENCODINGS)
YARN: dict[str, Any] = {"kind": "yarn", "factor": 4.0, "original_length": 16}
LLAMA3: dict[str, Any] = YARN | {"kind": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
PLAIN_RELATIVE = ("tape", "tape_attention_only", "tape_mlp_only", "rope", "randpe", "xpos", "alibi", "t5", "kerple_log", "nope")
BY_CONTENT = ("fox", "cope", "pope", "path", "repo", "rope_conv", "selective_rope", "tape_fox", "tape_selective_rope")
# Encodings depending on position differences only
RELATIVE: list[dict[str, Any]] = [
    *({"encoding": name} for name in PLAIN_RELATIVE),
    *({"encoding": name} for name in ENCODINGS if name.startswith(BY_CONTENT)),
    {"encoding": "tape", "scaling": YARN},
    {"encoding": "rope", "scaling": {"kind": "linear", "factor": 4.0}},
]
# Encodings depending on absolute positions, by definition or as an ablation
ABSOLUTE = (
    "tape_no_rotation_equivariance",
    "tape_vector",
    "tape_vector_no_rotation_equivariance",
    "tape_no_equivariance",
    "fire",
    "grape_ap",
    "sinusoidal",
)


class HostOperators(TorchDispatchMode):
    """Records the names of operators taking or returning a tensor in host memory."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves([args, kwargs, result]) if isinstance(leaf, Tensor)]
        if any(tensor.device.type == "cpu" for tensor in tensors):
            self.names.append(str(func))
        return result


@pytest.mark.parametrize("encoding", NAMES)
def test_a_pass_copies_nothing_from_the_host(encoding: str) -> None:
    """A copy would wait for the device, and no CUDA graph can contain it. The meta device stands for a GPU."""
    shape = SHAPE | {"num_layers": 1, "encoding": encoding}
    ids = torch.zeros(2, 8, dtype=torch.long, device="meta")
    with HostOperators() as operators:
        model = meta_model(ModelConfig(**shape))
        with recorded_streams(model):
            loss = model(ids, ids, targets=ids, dropout_seeds=ids[:, 0])
        loss.backward()
    assert operators.names == []


@pytest.mark.parametrize("encoding", NAMES)
def test_every_encoding_states_its_equation(encoding: str) -> None:
    """The page about a suite shows it."""
    lines = inspect.cleandoc(vars(ENCODINGS[encoding].load())["equation"]).splitlines()
    assert lines
    assert [line for line in lines if not line.strip()] == []


@pytest.mark.parametrize("scaling", [YARN, LLAMA3], ids=["yarn", "llama3"])
@pytest.mark.parametrize("encoding", [name for name in NAMES if ENCODINGS[name].scalable])
def test_scaling_copies_nothing_from_the_host(encoding: str, scaling: dict[str, Any]) -> None:
    config = ModelConfig(**SHAPE | {"num_layers": 1, "encoding": encoding, "scaling": scaling})
    positions = torch.zeros(2, 8, dtype=torch.long, device="meta")
    with HostOperators() as operators:
        encoding_of(config).state(positions)
    assert operators.names == []


@pytest.mark.parametrize(("offset", "num_rows"), [(0, 1), (1, 2)], ids=["equal rows", "different rows"])
def test_fire_has_one_row_of_positions_if_all_are_equal(offset: int, num_rows: int) -> None:
    encoding = encoding_of(ModelConfig(**SHAPE | {"encoding": "fire"}))
    row = torch.arange(8)
    positions = row.expand(2, -1)
    if offset:
        positions = torch.stack([row, row + offset])
    state = encoding.state(positions)
    assert state is not None
    assert torch.equal(state, positions[:num_rows].float())


def test_every_encoding_is_relative_or_absolute() -> None:
    """A new encoding missing from both lists would miss both offset tests below."""
    relative = {changes["encoding"] for changes in RELATIVE}
    assert relative.isdisjoint(ABSOLUTE)
    assert relative.union(ABSOLUTE) == set(NAMES)


@pytest.mark.parametrize("changes", RELATIVE, ids=str)
def test_logits_do_not_depend_on_the_offset(changes: dict[str, Any]) -> None:
    """Angles are computed in float64, so an offset of 131072 only changes rounding elsewhere."""
    model = random_model(**changes, num_kv_heads=2)
    near = model(*tokens_and_positions())
    far = model(*tokens_and_positions(offset=131_072))
    assert_close(far, near, bounds.OFFSET)


@pytest.mark.parametrize("encoding", ABSOLUTE)
def test_logits_depend_on_the_offset(encoding: str) -> None:
    """The ablations give up this property. FIRE's bias is relative up to its threshold, 512 times a learned factor."""
    model = random_model(encoding=encoding)
    near = model(*tokens_and_positions())
    far = model(*tokens_and_positions(offset=3))
    min_difference = 1e-2
    if encoding == "fire":
        min_difference = 1e-4
    assert relative_difference(far, near) > min_difference


# Pairs only differing at the start of training
EQUAL_FUNCTIONS = [{"rope", "randpe"}, {"pope", "pope_uniform"}]


def test_every_encoding_is_a_different_function() -> None:
    """With the same random weights, no two other encodings have the same logits."""
    logits = {name: random_model(encoding=name)(*tokens_and_positions()).detach() for name in NAMES}
    for first, second in itertools.combinations(NAMES, 2):
        difference = relative_difference(logits[first], logits[second])
        if {first, second} in EQUAL_FUNCTIONS:
            assert difference == 0, (first, second)
        else:
            assert difference > 1e-3, (first, second)


# Encodings knowing the token order only by the causal mask
BY_MASK_ALONE = ("nope", "repo")


@pytest.mark.parametrize("encoding", NAMES)
def test_only_the_causal_mask_shows_nope_and_repo_the_order_of_tokens(encoding: str) -> None:
    """Swapping earlier tokens does not change one layer's logits for the last token. With any other encoding, it does."""
    tokens, positions = tokens_and_positions(length=9)
    swapped = tokens[:, [3, 1, 2, 0, 4, 5, 6, 7, 8]]
    model = random_model(encoding=encoding, num_layers=1)
    logits = model(tokens, positions)[:, -1]
    swapped_logits = model(swapped, positions)[:, -1]
    if encoding in BY_MASK_ALONE:
        assert_close(swapped_logits, logits, bounds.LOGITS)
    else:
        assert relative_difference(swapped_logits, logits) > 10 * bounds.LOGITS.limit


@pytest.mark.parametrize("encoding", NAMES)
def test_packed_documents_are_independent(encoding: str) -> None:
    model = random_model(encoding=encoding)
    # FIRE's output bias has no effect, so its gradient is rounding.
    first_layer = [name for name, _ in model.named_parameters() if name.startswith("blocks.0")]
    weight_names = [name for name in first_layer if not name.endswith("outer_bias")]
    assert_documents_are_independent(model, [0, 7, 90, 140, 150], weight_names)


@pytest.mark.parametrize("encoding", [name for name in NAMES if not ENCODINGS[name].sliced])
def test_grouped_queries_share_keys_values_and_channels(encoding: str) -> None:
    """A model with grouped queries equals the one with each key/value head repeated for its group.

    This excludes encodings that slice the hidden state by key/value heads, and TAPE's updates, which sum over a group's heads
    and mix channels. The next test has them.
    """
    grouped = random_model(encoding=encoding, num_kv_heads=2)
    repeated = random_model(encoding=encoding)
    repeated_weights = repeated.state_dict()
    for name, weight in grouped.state_dict().items():
        target = repeated_weights[name]
        if name.endswith(("position.gain", "position.up")):
            weight.zero_()
            target.zero_()
        elif ".position." in name:
            continue
        elif target.shape == weight.shape:
            target.copy_(weight)
        else:
            heads = weight.unflatten(0, (2, -1))
            target.copy_(heads.repeat_interleave(2, 0).flatten(0, 1))
    inputs = tokens_and_positions()
    assert_close(grouped(*inputs), repeated(*inputs), bounds.LOGITS)


def gain_of_head(encoding: str, gain: Tensor, head: int, width: int) -> Tensor:
    """Return the factor multiplying a head's A e: a number, or one per element of the state."""
    if encoding == "tape_no_rotation_equivariance":
        return gain[head].repeat_interleave(width // 2)
    if encoding == "tape_vector":
        return gain.repeat(2)
    if encoding == "tape_vector_no_rotation_equivariance":
        return gain.flatten()
    return gain[head]


@pytest.mark.parametrize("encoding", [name for name in NAMES if name.startswith("tape") and name != "tape_mlp_only"])
def test_a_channel_moves_by_the_sum_over_its_groups_heads(encoding: str) -> None:
    """e_l += sum over its group's heads h of g_h (A_h e_l), with a gain per head, per head and part, or per plane's row."""
    model = random_model(encoding=encoding, num_kv_heads=2)
    width = model.encoding.state_width
    generator = torch.Generator().manual_seed(2)
    e = torch.randn(2, 5, 2, width, generator=generator)
    attended_state = torch.randn(2, 5, 4, width, generator=generator)
    m = torch.randn(2, 5, 32, generator=generator)
    update: Any = model.blocks[0].position
    if update.feed_forward:
        update.up.data.zero_()
    gained = [gain_of_head(encoding, update.gain, head, width) * attended_state[:, :, head] for head in range(4)]
    expected = e + torch.stack([gained[0] + gained[1], gained[2] + gained[3]], dim=2)

    initial = e[:, :, :1]
    updated = update(PositionState(initial, e - initial), attended_state, m)

    assert_close(updated.tensor(2), expected, bounds.UPDATE)


def test_tape_mlp_only_has_no_gain() -> None:
    update = random_model(encoding="tape_mlp_only", num_kv_heads=2).blocks[0].position
    assert not hasattr(update, "gain")


@pytest.mark.parametrize("encoding", NAMES)
def test_sharded_parameters_are_tagged(encoding: str) -> None:
    """A sharded parameter without a tag would make the gradient norm wrong, unnoticed if the parameter is small."""
    config = ModelConfig(**SHAPE | {"encoding": encoding})
    full_shapes = {name: weight.shape for name, weight in build_model(config).named_parameters()}
    sharded_model = build_model(config, Layout(tensor_axis=Axis("tensor", 2, 1)))
    weight: Any
    for name, weight in sharded_model.named_parameters():
        if weight.shape == full_shapes[name]:
            assert not is_sharded(weight), name
            assert not hasattr(weight, "tensor_model_parallel"), name
            continue
        assert weight.tensor_model_parallel, name
        assert spec_of(weight).shape == full_shapes[name], name
        sharded_dim = spec_of(weight).sharded_dim
        assert 2 * weight.shape[sharded_dim] == full_shapes[name][sharded_dim], name


SHARDED_BIASES = {"t5": {"table"}, "fire": {"outer_weight", "outer_bias"}, "kerple_log": {"slope", "rate"}}


@pytest.mark.parametrize("encoding", NAMES)
def test_bias_weights_with_a_row_per_head(encoding: str) -> None:
    model = build_model(ModelConfig(**SHAPE | {"encoding": encoding}))
    by_head = set()
    for name, weight in model.named_parameters():
        if ".bias." in name and len(weight) == SHAPE["num_heads"]:
            by_head.add(name.rpartition(".")[2])
    assert by_head == SHARDED_BIASES.get(encoding, set())


def test_randpe_is_rope_at_other_positions() -> None:
    model = random_model(encoding="randpe")
    rope = random_model(encoding="rope")
    tokens, positions = tokens_and_positions()
    drawn = torch.from_numpy(model.encoding.positions(random_offset=True).evaluation(40, seed=1)).expand_as(positions)
    assert drawn.max() < 2 * SHAPE["max_positions"]
    assert torch.equal(model(tokens, drawn), rope(tokens, drawn))
    assert relative_difference(model(tokens, drawn), model(tokens, positions)) > 1e-3


@pytest.mark.parametrize("encoding", NAMES)
def test_which_encodings_take_random_offsets(encoding: str) -> None:
    model_encoding = encoding_of(ModelConfig(encoding=encoding, **SHAPE))
    max_offset = 0
    if encoding in ("rope", "rope_conv") or encoding.startswith("tape"):
        max_offset = 2 * 64
    assert model_encoding.positions(random_offset=True).max_offset == max_offset
    assert model_encoding.positions(random_offset=False).max_offset == 0


def test_xpos_products_decay_with_the_distance() -> None:
    """Per plane k: the rotary product of query i and key j, times zeta_k^((i - j) / 2048), zeta_k = (2k/R + 0.4) / 1.4."""
    config = ModelConfig(**SHAPE | {"encoding": "xpos", "max_positions": 4096})
    encoding = encoding_of(config)
    rope = encoding_of(ModelConfig(**SHAPE | {"encoding": "rope"}))
    positions = torch.tensor([[3000, 5, 1700]])
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 3, 4, 8, generator=generator)
    k = torch.randn(1, 3, 4, 8, generator=generator)

    rotated_q, rotated_k = encoding.rotate_qk(q, k, encoding.state(positions), ())

    plain_q, plain_k = rotate_qk(q, k, PositionState(rope.state(positions)))
    products = []
    expected = []
    for plane in range(4):
        pair = [plane, plane + 4]
        zeta = (2 * plane / 8 + 0.4) / 1.4
        for row, column in ((0, 1), (0, 2), (2, 1), (0, 0)):
            distance = int(positions[0, row] - positions[0, column])
            products.append((rotated_q[0, row, 0, pair] * rotated_k[0, column, 0, pair]).sum())
            plain_product = (plain_q[0, row, 0, pair] * plain_k[0, column, 0, pair]).sum()
            expected.append(plain_product * zeta ** (distance / 2048))
    assert_close(torch.stack(products), torch.stack(expected), bounds.DEFINITION)


def test_sinusoidal_embeddings_are_the_definition() -> None:
    expected = []
    for column in range(32):
        angle = 7 * 10000 ** (-(column // 2 * 2) / 32)
        function: Callable[[float], float] = math.sin
        if column % 2:
            function = math.cos
        expected.append(function(angle))
    embedded = SinusoidalEmbedding()(torch.zeros(1, 1, 32), torch.tensor([[7]]))
    assert_close(embedded[0, 0].double(), torch.tensor(expected, dtype=torch.float64), bounds.ANGLES)


@pytest.mark.parametrize(
    "scaling",
    [
        {"kind": "linear", "factor": 4.0},
        YARN,
        {"kind": "yarn", "factor": 32.0, "original_length": 4096},
        YARN | {"original_length": 500, "beta_fast": 20.0, "beta_slow": 2.0, "truncate": False, "attention_factor": 1.3},
        {"kind": "llama3", "factor": 8.0, "original_length": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"kind": "llama3", "factor": 3.0, "original_length": 100, "low_freq_factor": 1.5, "high_freq_factor": 3.0},
    ],
    ids=str,
)
@pytest.mark.parametrize(("head_dim", "base"), [(8, 1e4), (64, 1e4), (128, 5e5)])
def test_scaled_frequencies_are_those_of_transformers(scaling: dict[str, Any], head_dim: int, base: float) -> None:
    parameters = {theirs: scaling[ours] for theirs, ours in SCALING.items() if ours in scaling}
    parameters |= {"rope_type": scaling["kind"], "rope_theta": base}
    config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, rope_parameters=parameters)
    expected, size = ROPE_INIT_FUNCTIONS[scaling["kind"]](config, torch.device("cpu"))
    thetas, modulus = frequencies(head_dim, base, SCALINGS[scaling["kind"]](**scaling))
    assert_close(thetas / expected, torch.ones(head_dim // 2), bounds.FREQUENCIES)
    assert modulus == pytest.approx(size)


def test_theta_scaling_divides_the_slowest_frequency_by_the_factor() -> None:
    thetas, modulus = frequencies(64, 1e4, ScalingConfig(kind="theta", factor=4.0))
    plain, _ = frequencies(64, 1e4, None)
    assert modulus == 1.0
    assert float(thetas[0]) == 1.0
    assert float(thetas[-1]) == pytest.approx(float(plain[-1]) / 4)


@pytest.mark.parametrize("scaling", [{"kind": "linear", "factor": 4.0}, {"kind": "theta", "factor": 4.0}, YARN], ids=str)
def test_a_fresh_scaled_tape_gives_the_logits_of_the_scaled_rope(scaling: dict[str, Any]) -> None:
    tape = random_model(scaling=scaling)
    rope = random_model(encoding="rope", scaling=scaling)
    plain = random_model()
    for block in (*tape.blocks, *plain.blocks):
        block.position.gain.data.zero_()
        block.position.up.data.zero_()
    shared = {name: tensor for name, tensor in tape.state_dict().items() if ".position." not in name}
    rope.load_state_dict(shared)
    inputs = tokens_and_positions()
    assert_close(tape(*inputs), rope(*inputs), bounds.LOGITS)
    assert relative_difference(plain(*inputs), rope(*inputs)) > 1e-3


def test_our_own_ablation_contains_the_authors_one() -> None:
    """With equal weights for cosines and sines, tape_vector_no_rotation_equivariance is tape_vector."""
    vector = random_model(encoding="tape_vector")
    separate = random_model(encoding="tape_vector_no_rotation_equivariance")
    weights = vector.state_dict()
    for name, weight in weights.items():
        if name.endswith("position.gain"):
            weights[name] = weight.expand(2, -1)
        elif name.endswith(("position.up", "position.down")):
            weights[name] = weight.repeat(2, 1)
    separate.load_state_dict(weights)
    assert_close(separate(*tokens_and_positions()), vector(*tokens_and_positions()), bounds.LOGITS)


@pytest.mark.parametrize("encoding", NAMES)
def test_every_parameter_of_the_encoding_matters(encoding: str) -> None:
    """Exceptions are the last layer's update, read by nothing, and FIRE's output bias, ignored by softmax."""
    model = random_model(encoding=encoding)
    inputs = tokens_and_positions()
    logits = model(*inputs).detach()
    for name, weight in model.named_parameters():
        if ".position." not in name and ".bias." not in name:
            continue
        original = weight.data.clone()
        weight.data.add_(torch.randn(original.shape, generator=torch.Generator().manual_seed(3)))
        changed_logits = model(*inputs)
        weight.data = original
        if name.startswith("blocks.2.position") or name.endswith("outer_bias"):
            assert_close(changed_logits, logits, bounds.LOGITS, what=name)
        else:
            assert relative_difference(changed_logits, logits) > 10 * bounds.LOGITS.limit, name
