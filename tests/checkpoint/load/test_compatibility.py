"""Changes that a run may make when it resumes."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatape.checkpoint.load.compatibility import check_end_token, check_same_data, check_same_settings, recipe_changes
from megatape.config import differences, parse_config
from megatape.data.tokenizers.files import load_tokenizer
from tests.helpers.models.imported import write_llama3
from tests.helpers.runs.raw_config import RAW, parse

PRINTS = {"data": "d" * 64, "tokenizer": "t" * 64}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__num_layers": 3}, "model.num_layers 2, the configuration says 3: set it back to 2"),
        ({"model__scaling": {"kind": "linear", "factor": 2.0}}, "model.scaling None, the configuration says kind='linear'"),
        ({"data__mask_documents": True}, "data.mask_documents False, the configuration says True: it would see other samples"),
        ({"training__seed": 5}, "training.seed 1234, the configuration says 5: it would see other samples"),
    ],
)
def test_changed_model_and_samples_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        check_same_settings(Path("origin"), differences(parse(), parse(**changes)))
    assert f"origin was trained with {message}" in str(error.value)


def test_recipe_ranks_paths_and_logging_may_change() -> None:
    changes = {
        "training__steps": 99,
        "optimizer__learning_rate": 1.0,
        "zero__stage": 0,
        "run__directory": "y",
        "logging__interval": 3,
    }
    check_same_settings(Path("origin"), differences(parse(), parse(**changes)))


def test_a_field_missing_in_an_earlier_version_may_appear() -> None:
    earlier = parse_config(RAW, "earlier").model_dump()
    del earlier["optimizer"]["kind"]
    changed = differences(parse_config(earlier, "earlier"), parse(optimizer__kind="adamw"))
    check_same_settings(Path("origin"), changed)


def test_changed_recipe_is_reported_by_field() -> None:
    """Ranks and ZeRO's stage are no part of the recipe."""
    changed = differences(parse(), parse(training__gradient_clip=0.5, zero__stage=0))
    assert recipe_changes(Path("origin"), changed, False) == ["training.gradient_clip: 1.0 -> 0.5"]


def test_changed_betas_need_a_request() -> None:
    changed = list(differences(parse(), parse(optimizer__beta2=0.95)))
    with pytest.raises(ValueError, match=r"optimizer\.beta2 0\.999 .*`allow_changes`"):
        recipe_changes(Path("origin"), changed, False)
    assert recipe_changes(Path("origin"), changed, True) == ["optimizer.beta2: 0.999 -> 0.95"]


def test_changed_fp8_needs_a_request() -> None:
    shared = {"training__precision": "bfloat16", "zero__stage": 2}
    tensorwise = parse(**shared, training__fp8="tensorwise")
    rowwise = parse(**shared, training__fp8="rowwise")
    with pytest.raises(ValueError, match=r"training\.fp8 tensorwise .*`allow_changes`"):
        recipe_changes(Path("origin"), differences(tensorwise, rowwise), False)


@pytest.mark.parametrize(("name", "message"), [("data", "another set of shards"), ("tokenizer", "another tokenizer")])
def test_other_data_and_tokenizers_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_same_data(Path("origin"), PRINTS, PRINTS | {name: "x" * 64}, parse().data)


def test_another_end_token_of_the_same_tokenizer_file_is_refused(tmp_path: Path) -> None:
    """Base and instruct models share tokenizer.json, and so its hash, but end documents with different tokens."""
    folder = write_llama3(tmp_path / "llama3")
    before = load_tokenizer(folder)
    check_end_token(Path("origin"), before, load_tokenizer(folder))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "<|eot|>"}))
    (folder / "special_tokens_map.json").unlink()
    after = load_tokenizer(folder)
    assert before.sha256 == after.sha256
    with pytest.raises(ValueError, match="origin was trained on documents that end with token 601, those of .* end with 602"):
        check_end_token(Path("origin"), before, after)
