"""Effects of each encoding: which positions matter, documents, grouped queries, scaling."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from megatape.accounting.parameters import meta_model
from megatape.attention.rotation import PositionState, rotate_qk
from megatape.config import ModelConfig, ScalingConfig
from megatape.config.scaling import SCALINGS
from megatape.distributed.mesh import Axis
from megatape.encodings import encoding_of
from megatape.encodings.rope import frequencies
from megatape.encodings.sinusoidal import SinusoidalEmbedding
from megatape.hf.families.family import SCALING
from megatape.model.build import build_model
from megatape.model.layout import Layout
from megatape.model.recorded_streams import recorded_streams
from megatape.nn.parameters import spec_of
from megatape.registry import ENCODINGS
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, relative_difference
from tests.helpers.models.small_models import SHAPE, random_model, tokens_and_positions

pytestmark = pytest.mark.numerics


NAMES = tuple(ENCODINGS)
YARN: dict[str, Any] = {"kind": "yarn", "factor": 4.0, "original_length": 16}
LLAMA3: dict[str, Any] = YARN | {"kind": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# Only differences of positions matter to these; the others are functions of absolute positions by definition or ablation.
RELATIVE: list[dict[str, Any]] = [
    {"encoding": name}
    for name in ("tape", "tape_attention_only", "tape_mlp_only", "rope", "randpe", "xpos", "alibi", "t5", "nope")
]
BY_CONTENT = ("fox", "cope", "pope", "path", "selective_rope", "tape_fox", "tape_selective_rope")
RELATIVE += [{"encoding": name} for name in ENCODINGS if name.startswith(BY_CONTENT)]
RELATIVE += [{"encoding": "tape", "scaling": YARN}, {"encoding": "rope", "scaling": {"kind": "linear", "factor": 4.0}}]
ABSOLUTE = (
    "tape_no_rotation_equivariance",
    "tape_vector",
    "tape_vector_no_rotation_equivariance",
    "tape_no_equivariance",
    "fire",
    "sinusoidal",
)


class CountHostTensors(TorchDispatchMode):
    """Names the operators that take or return a tensor of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = (leaf for leaf in tree_leaves([args, kwargs, result]) if isinstance(leaf, torch.Tensor))
        if any(tensor.device.type == "cpu" for tensor in tensors):
            self.found.append(str(func))
        return result


@pytest.mark.parametrize("encoding", NAMES)
def test_a_pass_copies_nothing_from_the_host(encoding: str) -> None:
    """Such a copy waits for the device, and no CUDA graph can hold it. The meta device stands for a GPU."""
    shape = SHAPE | {"num_layers": 1, "encoding": encoding}
    ids = torch.zeros(2, 8, dtype=torch.long, device="meta")
    with CountHostTensors() as counted:
        model = meta_model(ModelConfig(**shape))
        with recorded_streams(model):
            loss = model(ids, ids, targets=ids, dropout_seeds=ids[:, 0])
        loss.backward()
        for scaling in (YARN, LLAMA3) if ENCODINGS[encoding].scalable else ():
            encoding_of(ModelConfig(**shape | {"scaling": scaling})).state(ids)
    assert counted.found == []


def test_fire_has_one_row_of_positions_where_there_is_one() -> None:
    encoding = encoding_of(ModelConfig(**SHAPE | {"encoding": "fire"}))
    row = torch.arange(8)
    for positions, num_rows in ((row.expand(2, -1), 1), (torch.stack([row, row + 1]), 2)):
        state = encoding.state(positions)
        assert state is not None
        assert torch.equal(state, positions[:num_rows].float())


def test_every_name_has_an_encoding() -> None:
    assert set(ENCODINGS) == set(NAMES)


@pytest.mark.parametrize("changes", RELATIVE, ids=str)
def test_logits_do_not_depend_on_the_offset(changes: dict[str, Any]) -> None:
    """Angles are computed in float64, so an offset of 131072 changes only the rounding of everything else."""
    model = random_model(**changes, num_kv_heads=2)
    near = model(*tokens_and_positions())
    far = model(*tokens_and_positions(offset=131_072))
    assert_close(far, near, bounds.OFFSET)


@pytest.mark.parametrize("encoding", ABSOLUTE)
def test_logits_depend_on_the_offset(encoding: str) -> None:
    """The ablations give up this property. (FIRE's bias is relative up to its threshold, 512 times a learned factor.)"""
    model = random_model(encoding=encoding)
    near = model(*tokens_and_positions())
    far = model(*tokens_and_positions(offset=3))
    assert relative_difference(far, near) > (1e-4 if encoding == "fire" else 1e-2)


def test_every_encoding_is_a_different_function() -> None:
    """With the same random weights no two give the same logits; `randpe` and `pope_uniform` differ where training starts."""
    found = {name: random_model(encoding=name)(*tokens_and_positions()).detach() for name in NAMES}
    for first, second in itertools.combinations(NAMES, 2):
        difference = relative_difference(found[first], found[second])
        same = {first, second} in ({"rope", "randpe"}, {"pope", "pope_uniform"})
        assert (difference == 0) if same else (difference > 1e-3), (first, second)


def test_nope_sees_order_only_through_the_mask() -> None:
    """The last token's logits do not change when earlier tokens swap places; with every other encoding they do."""
    tokens, positions = tokens_and_positions(length=9)
    exchanged = tokens[:, [3, 1, 2, 0, 4, 5, 6, 7, 8]]
    for encoding in NAMES:
        model = random_model(encoding=encoding, num_layers=1)
        found = model(exchanged, positions)[:, -1]
        expected = model(tokens, positions)[:, -1]
        if encoding == "nope":
            assert_close(found, expected, bounds.LOGITS)
        else:
            assert relative_difference(found, expected) > 10 * bounds.LOGITS.limit, encoding


@pytest.mark.parametrize("encoding", NAMES)
def test_documents_packed_together_are_as_if_alone(encoding: str) -> None:
    """With restarting positions and a mask at boundaries, each document has the logits and a gradient as if alone."""
    model = random_model(encoding=encoding)
    tokens, _ = tokens_and_positions(batch=1, length=150)
    borders = [0, 7, 90, 140, 150]
    pieces = [tokens[:, start:stop] for start, stop in itertools.pairwise(borders)]
    positions = torch.cat([torch.arange(piece.shape[1]) for piece in pieces])[None]
    document_starts = torch.cat([torch.full((piece.shape[1],), start) for start, piece in zip(borders, pieces, strict=False)])[
        None
    ]
    alone = torch.cat([model(piece, torch.arange(piece.shape[1])[None]) for piece in pieces], dim=1)
    packed = model(tokens, positions, document_starts)
    assert_close(packed, alone, bounds.LOGITS)
    for name, weight in model.named_parameters():
        if name.startswith("blocks.0") and not name.endswith("outer_bias"):  # FIRE's output bias has no effect
            gradients = [torch.autograd.grad(logits.square().sum(), weight, retain_graph=True)[0] for logits in (packed, alone)]
            assert_close(gradients[0], gradients[1], bounds.PACKED_GRADIENTS, what=name)


@pytest.mark.parametrize("encoding", [name for name in NAMES if not ENCODINGS[name].sliced])
def test_grouped_queries_share_keys_values_and_channels(encoding: str) -> None:
    """A model with grouped queries equals the one with each key/value head repeated for its group.

    Not where the number of key/value heads decides how the hidden state is sliced. Without TAPE's updates, which sum over a
    group's heads and mix channels; the next test has them."""
    grouped = random_model(encoding=encoding, num_kv_heads=2)
    whole = random_model(encoding=encoding)
    weights = whole.state_dict()
    for name, weight in grouped.state_dict().items():
        if name.endswith(("position.gain", "position.up")):
            weight.zero_()
            weights[name].zero_()
        elif ".position." not in name:
            whole_heads = weights[name].shape == weight.shape
            weights[name].copy_(weight if whole_heads else weight.unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1))
    assert_close(grouped(*tokens_and_positions()), whole(*tokens_and_positions()), bounds.LOGITS)


@pytest.mark.parametrize("encoding", [name for name in NAMES if name.startswith("tape")])
def test_a_channel_moves_by_the_sum_over_its_groups_heads(encoding: str) -> None:
    """e_l += sum over its group's heads h of g_h (A_h e_l), with a gain per head, per head and part, or per plane's row."""
    model = random_model(encoding=encoding, num_kv_heads=2)
    update: Any
    update = model.blocks[0].position
    width = model.encoding.state_width
    generator = torch.Generator().manual_seed(2)
    e, attended_state, m = (
        torch.randn(shape, generator=generator) for shape in ((2, 5, 2, width), (2, 5, 4, width), (2, 5, 32))
    )
    if encoding == "tape_mlp_only":
        assert not hasattr(update, "gain")
        return
    if update.feed_forward:
        update.up.data.zero_()
    gain = {
        "tape_no_rotation_equivariance": lambda head: update.gain[head].repeat_interleave(width // 2),
        "tape_vector": lambda head: update.gain.repeat(2),
        "tape_vector_no_rotation_equivariance": lambda head: update.gain.flatten(),
    }.get(encoding, lambda head: update.gain[head])
    sums: list[Any] = [sum(gain(head) * attended_state[:, :, head] for head in group) for group in ((0, 1), (2, 3))]
    initial = e[:, :, :1]
    found = update(PositionState(initial, e - initial), attended_state, m)
    assert_close(found.tensor(2), e + torch.stack(sums, dim=2), bounds.UPDATE)


@pytest.mark.parametrize("encoding", NAMES)
def test_sharded_parameters_are_tagged(encoding: str) -> None:
    """Otherwise the gradient norm would be wrong, which for a small parameter would go unnoticed."""
    config = ModelConfig(**SHAPE | {"encoding": encoding})
    whole = dict(build_model(config).named_parameters())
    share: Any
    for name, share in build_model(config, Layout(tensor_axis=Axis("tensor", 2, 1))).named_parameters():
        full = whole[name].shape
        if share.shape == full:
            assert not hasattr(share, "partition_dim"), name
        else:
            assert share.tensor_model_parallel, name
            assert spec_of(share).shape == full, name
            assert 2 * share.shape[share.partition_dim] == full[share.partition_dim], name
    divided = {
        name.rpartition(".")[2] for name, share in whole.items() if ".bias." in name and len(share) == SHAPE["num_heads"]
    }
    assert divided == {"t5": {"table"}, "fire": {"outer_weight", "outer_bias"}}.get(encoding, set())


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
    positions = encoding_of(ModelConfig(encoding=encoding, **SHAPE)).positions(random_offset=True)
    assert positions.max_offset == (2 * 64 if encoding == "rope" or encoding.startswith("tape") else 0)
    assert encoding_of(ModelConfig(encoding=encoding, **SHAPE)).positions(random_offset=False).max_offset == 0


def test_xpos_products_decay_with_the_distance() -> None:
    """Per plane k: the rotary product of query i and key j, times zeta_k^((i - j) / 2048), zeta_k = (2k/R + 0.4) / 1.4."""
    config = ModelConfig(**SHAPE | {"encoding": "xpos", "max_positions": 4096})
    encoding = encoding_of(config)
    rope = encoding_of(ModelConfig(**SHAPE | {"encoding": "rope"}))
    positions = torch.tensor([[3000, 5, 1700]])
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 3, 4, 8, generator=generator) for _ in "qk")
    ours = encoding.rotate_qk(q, k, encoding.state(positions), ())
    plain = rotate_qk(q, k, PositionState(rope.state(positions)))
    found = []
    expected = []
    for plane in range(4):
        pair = [plane, plane + 4]
        zeta = (2 * plane / 8 + 0.4) / 1.4
        for row, column in ((0, 1), (0, 2), (2, 1), (0, 0)):
            distance = int(positions[0, row] - positions[0, column])
            found.append((ours[0][0, row, 0, pair] * ours[1][0, column, 0, pair]).sum())
            expected.append((plain[0][0, row, 0, pair] * plain[1][0, column, 0, pair]).sum() * zeta ** (distance / 2048))
    assert_close(torch.stack(found), torch.stack(expected), bounds.DEFINITION)


def test_sinusoidal() -> None:
    x = SinusoidalEmbedding()(torch.zeros(1, 1, 32), torch.tensor([[7]]))
    angles = [7 * 10000 ** (-(column // 2 * 2) / 32) for column in range(32)]
    expected = [math.cos(angle) if column % 2 else math.sin(angle) for column, angle in enumerate(angles)]
    assert_close(x[0, 0].double(), torch.tensor(expected, dtype=torch.float64), bounds.ANGLES)


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
    """Except for the last layer's update, which nothing reads, and FIRE's output bias, which softmax ignores."""
    model = random_model(encoding=encoding)
    inputs = tokens_and_positions()
    before = model(*inputs).detach()
    for name, weight in model.named_parameters():
        if ".position." not in name and ".bias." not in name:
            continue
        kept = weight.data.clone()
        weight.data.add_(torch.randn(kept.shape, generator=torch.Generator().manual_seed(3)))
        after = model(*inputs)
        weight.data = kept
        if name.startswith("blocks.2.position") or name.endswith("outer_bias"):
            assert_close(after, before, bounds.LOGITS, what=name)
        else:
            assert relative_difference(after, before) > 10 * bounds.LOGITS.limit, name
