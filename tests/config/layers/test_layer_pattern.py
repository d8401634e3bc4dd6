"""Patterns of layers: how they are written, and which ones a model refuses."""

from typing import Any

import pytest

from megatape.config import ModelConfig, parse_config
from megatape.config.layers.layer_pattern import LayerKind, LayerPattern, parse_pattern, shortest_pattern
from megatape.registry import ENCODINGS, EncodingEntry

SHAPE: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 32,
    "num_heads": 4,
    "mlp_size": 64,
    "vocab_size": 64,
    "max_positions": 64,
}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("tape", "tape@full"),
        ("tape@full,rope@16*3", "tape@full, rope@16*3"),
        ("rope@16,rope@16, nope*1", "rope@16*2, nope@full"),
        ("rope, nope, rope, nope", "rope@full, nope@full"),
    ],
)
def test_a_pattern_has_one_way_of_writing(text: str, canonical: str) -> None:
    assert str(parse_pattern(text)) == canonical
    assert parse_pattern(canonical) == parse_pattern(text)
    assert ModelConfig(**SHAPE | {"num_layers": 12, "layers": text}).layers == canonical


def test_layers_repeat_the_pattern() -> None:
    pattern = parse_pattern("tape@full, rope@16*3")
    assert pattern.over(6) == (
        LayerKind("tape"),
        *[LayerKind("rope", 16)] * 3,
        LayerKind("tape"),
        LayerKind("rope", 16),
    )
    assert shortest_pattern(pattern.over(8)) == pattern
    assert shortest_pattern(pattern.over(6)).kinds == pattern.over(6)
    assert pattern.renamed("tape", "alibi") == LayerPattern((LayerKind("alibi"), *[LayerKind("rope", 16)] * 3))


@pytest.mark.parametrize(
    ("layers", "encoding"),
    [
        ("rope@16, tape", "tape"),
        ("nope, alibi", "alibi"),
        ("alibi, rope", "rope"),
        ("nope@4, nope", "nope"),
        ("fox, fire", "fire"),
    ],
)
def test_the_pattern_names_the_models_encoding(layers: str, encoding: str) -> None:
    """The model's encoding updates the state, else it has a state, else it is the first one with positions."""
    assert ModelConfig(**SHAPE | {"layers": layers}).encoding == encoding


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": "tape, rope*2"}, r"a pattern of 3 layers, and num_layers 4 is not a multiple: change one of them"),
        (
            {"layers": "rope, pope"},
            r"rope and pope do not mix, because they have different position states: choose one of them",
        ),
        ({"layers": "tape, tape_mlp_only"}, r"both update the position state: choose one of them"),
        ({"layers": "rope, sinusoidal"}, r"sinusoidal does not belong to single layers: remove it"),
        ({"layers": "rope@65"}, r"a window of 65, longer than max_positions 64: it hides no token, so write full"),
        ({"layers": "rop@16"}, r"an encoding 'rop': did you mean rope\?"),
        ({"layers": "rope@x"}, r"an entry 'rope@x', in which x is not a number from 1 to .*: write ENCODING@WINDOW\*COUNT"),
        ({"layers": "rope@0"}, r"'rope@0', in which 0 is not a number from 1"),
        ({"layers": "rope*99999"}, r"99999 is not a number from 1 to 4096"),
        ({"layers": "rope,"}, r"an entry '': write ENCODING@WINDOW\*COUNT, such as rope@1024\*3"),
        ({"layers": "tape:full"}, r"an entry 'tape:full': write ENCODING@WINDOW"),
        ({"layers": "rope", "nope_every": 2}, r"nope_every 2 says the same as layers rope@full: remove nope_every"),
        ({"layers": "rope", "sliding_window": 8}, r"sliding_window 8 says the same as layers"),
        ({"layers": "tape, rope", "encoding": "rope"}, r"encoding is rope: set it to tape"),
        (
            {"layers": "tape, rope*3"},
            r"layers tape@full, rope@full\*3 has a single layer with encoding tape among num_layers 4, so no layer reads .*: ",
        ),
        (
            {"encoding": "tape", "nope_every": 2, "num_layers": 2},
            r"nope_every 2 has a single layer with encoding tape among num_layers 2",
        ),
        ({"layers": "rope, cope", "attention_scale": "log_n"}, r"attention_scale log_n does not support encoding cope"),
    ],
)
def test_patterns_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**SHAPE | settings)


def test_an_entry_claims_no_state_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODINGS, "own", EncodingEntry("own:Own", "claims nothing"))
    with pytest.raises(ValueError, match=r"own does not belong .*, because its registry entry does not set by_layer=True"):
        ModelConfig(**SHAPE | {"layers": "own, nope"})
    monkeypatch.setitem(ENCODINGS, "own", EncodingEntry("own:Own", "is applied by layers", by_layer=True))
    assert ModelConfig(**SHAPE | {"layers": "own, nope"}).encoding == "own"
    with pytest.raises(ValueError, match=r"own mixes with nope only, because its registry entry does not set layer_state"):
        ModelConfig(**SHAPE | {"layers": "own, rope"})


@pytest.mark.parametrize(
    ("section", "setting", "message"),
    [
        ("parallel", {"cp": 2}, r"parallel.cp 2 does not support encoding alibi"),
        ("training", {"num_shifted_groups": 2}, r"num_shifted_groups 2 does not support attention windows"),
    ],
)
def test_every_encoding_of_a_pattern_is_checked(
    raw_config: dict[str, Any], section: str, setting: dict[str, Any], message: str
) -> None:
    raw_config["model"] |= {"layers": "rope@8, alibi", "encoding": "rope", "num_layers": 2}
    raw_config.setdefault(section, {}).update(setting)
    with pytest.raises(ValueError, match=message):
        parse_config(raw_config, "test")


def test_a_window_beyond_the_samples_is_refused_unless_it_comes_with_weights(raw_config: dict[str, Any]) -> None:
    length = raw_config["data"]["sequence_length"]
    raw_config["model"] |= {"layers": f"rope@{length + 1}", "encoding": "rope", "max_positions": 4 * length}
    with pytest.raises(ValueError, match=rf"longer than data.sequence_length {length}: it hides no token, so write full"):
        parse_config(raw_config, "test")
    raw_config["training"]["init_from"] = "imported"
    assert parse_config(raw_config, "test").model.layers == f"rope@{length + 1}"
