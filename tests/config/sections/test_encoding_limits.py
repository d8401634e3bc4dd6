"""Unsupported settings of each encoding are refused by name, with a reason and a remedy. Add new encodings here."""

from dataclasses import replace
from typing import Any

import pytest

from megatape.attention.attend import check_forced_backend
from megatape.config import Config, parse_config
from megatape.errors import UserError
from megatape.model.requirements import attention_requirements
from megatape.registry import ENCODINGS, EncodingEntry

ABLATIONS = {name for name in ENCODINGS if name.startswith("tape_")} - {"tape_fox", "tape_selective_rope"}
ROTARY = {"tape", *ABLATIONS, "rope", "randpe", "xpos"}
BY_PAIR = {"fire", "fox", "grape_ap", "cope", "cope_scaled", "path", "path_fox", "path_fox_scaled", "tape_fox"}
# Biases by pairs of tokens that our kernels compute.
DECAYS = {"fox", "tape_fox"}
SELECTIVE = {name for name in ENCODINGS if name.startswith("selective_rope")}
# Settings, and the encodings that have them.
SETTINGS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "scaling": ({"model": {"scaling": {"kind": "linear", "factor": 2.0}}}, {"tape", "rope"}),
    "nope_every": ({"model": {"nope_every": 2, "num_layers": 4}}, {*ENCODINGS} - {"nope", "sinusoidal"}),
    "rotary_fraction": (
        {"model": {"rotary_fraction": 0.5, "head_dim": 16}},
        ROTARY | SELECTIVE | {"tape_fox", "tape_selective_rope", "rope_conv", "repo"},
    ),
    "attention_scale": ({"model": {"attention_scale": "log_n"}}, {*ENCODINGS} - {"cope", "cope_scaled"}),
    "sp": ({"parallel": {"sp": 2}}, {*ENCODINGS}),
    "cp": ({"parallel": {"cp": 2}}, ROTARY | {"repo", "pope", "pope_uniform", "sinusoidal", "nope"}),
    "num_shifted_groups": ({"training": {"num_shifted_groups": 2}}, {"rope"}),
}
# Forced backends on a GPU, likewise.
BACKENDS = {
    "sdpa": {*ENCODINGS} - BY_PAIR - {"alibi", "t5", "kerple_log"},
    "flex": {*ENCODINGS} - BY_PAIR,
    "triton": {*ENCODINGS} - (BY_PAIR - DECAYS),
    "blocked": {*ENCODINGS},
}


def parsed(raw: dict[str, Any], encoding: str, changes: dict[str, dict[str, Any]]) -> Config:
    raw["model"] |= {"encoding": encoding, "head_dim": 16, "num_layers": 2}
    return parse_config({name: section | changes.get(name, {}) for name, section in ({"parallel": {}} | raw).items()}, "test")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings(raw_config: dict[str, Any], setting: str, encoding: str) -> None:
    changes, able = SETTINGS[setting]
    if encoding in able:
        parsed(raw_config, encoding, changes)
        return
    with pytest.raises(ValueError, match=rf"encoding {encoding}\b") as error:
        parsed(raw_config, encoding, changes)
    message = str(error.value)
    assert setting in message
    assert any(word in message for word in ("remove", "choose", "set it to"))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_forced_backends(raw_config: dict[str, Any], backend: str, encoding: str) -> None:
    need, *_ = attention_requirements(parsed(raw_config, encoding, {}), "cuda")
    if encoding in BACKENDS[backend]:
        check_forced_backend(need, backend, encoding)
        return
    with pytest.raises(UserError, match=rf"{backend}, which .+ \(encoding {encoding}\): choose auto, or one of .*blocked"):
        check_forced_backend(need, backend, encoding)


def test_triton_moves_no_state_under_a_bias(raw_config: dict[str, Any]) -> None:
    """An encoding from outside the package may have a bias by distance."""
    need, *_ = attention_requirements(parsed(raw_config, "tape", {}), "cuda")
    with pytest.raises(UserError, match="triton, which has no kernel that moves the position state under a bias by distance"):
        check_forced_backend(replace(need, bias="distance"), "triton", "own")


UNCLAIMED: dict[str, tuple[dict[str, Any], str]] = {
    "nope_every": ({"model": {"nope_every": 2}}, "by_layer=True"),
    "rotary_fraction": ({"model": {"rotary_fraction": 0.5}}, "rotates no pairs"),
    "attention_scale": ({"model": {"attention_scale": "log_n"}}, "reads_scores=False"),
    "scaling": ({"model": {"scaling": {"kind": "linear", "factor": 2.0}}}, "choose one of tape, rope"),
    "sp": ({"parallel": {"sp": 2}}, "divides_heads"),
    "cp": ({"parallel": {"cp": 2}}, "whole_samples"),
    "num_shifted_groups": ({"training": {"num_shifted_groups": 2}}, "choose rope"),
}


@pytest.mark.parametrize("setting", UNCLAIMED)
def test_an_entry_claims_nothing_by_default(raw_config: dict[str, Any], setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoding from outside the package is refused with every setting that its entry does not claim."""
    monkeypatch.setitem(ENCODINGS, "own", EncodingEntry("own:Own", "claims nothing"))
    parsed(raw_config, "own", {})
    changes, claim = UNCLAIMED[setting]
    with pytest.raises(ValueError, match=r"encoding own\b") as error:
        parsed(raw_config, "own", changes)
    assert setting in str(error.value)
    assert claim in str(error.value)
