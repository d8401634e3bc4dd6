"""Validation loss of a run: computed on samples of all inputs, and equal on any number of ranks."""

from pathlib import Path
from typing import Any

import pytest

from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.sources.source import Source
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.data.data_directory import small_tokenizer
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import read_entries

pytestmark = pytest.mark.numerics


def last_metrics(folder: Path) -> dict[str, Any]:
    return read_entries(folder / "metrics.jsonl")[-1]


def test_each_input_has_its_loss(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The first input repeats one word. A model of four steps predicts it better than the second input's random letters.

    The loss on all samples is between the losses on the inputs, and closer to the loss on the longer input.
    """
    inputs = [tmp_path / "easy", tmp_path / "hard"]
    texts = ["apple " * 200, " ".join(f"{number * 7919 % 10007}" for number in range(120))]
    for folder, text, count in zip(inputs, texts, (60, 30), strict=True):
        folder.mkdir()
        for number in range(count):
            (folder / f"{number:03}.txt").write_text(f"{number} {text}")
    source = Source("text", tuple(str(folder) for folder in inputs))
    tokenizer = small_tokenizer()
    prepare(PreparationOptions(source, 0.2, tokenizer, tokenizer.vocab_size), tmp_path / "data")
    raw_config["model"]["vocab_size"] = tokenizer.vocab_size
    raw_config["data"]["path"] = str(tmp_path / "data")
    raw_config["evaluation"] = {"samples": 30}
    raw_config["training"] |= {"micro_batch_size": 2}
    raw_config["optimizer"]["ema_decay"] = 0.5
    run = Path(raw_config["run"]["directory"])
    alone = {"name": "alone"}
    mixed = {"name": "mixed", "set": {"data.path": "", "data.mixture": {"web": {"path": str(tmp_path / "data")}}}}
    assert_no_errors(run_cases(raw_config, [alone], 1, tmp_path / "workers-1"))
    assert_no_errors(run_cases(raw_config, [mixed], 2, tmp_path / "workers-2"))

    entry = last_metrics(run / "alone")
    easy, hard = (entry["validation_losses"][str(folder)] for folder in inputs)
    assert entry["validation_selection"] == "spread"
    assert easy + 0.2 < hard
    assert easy < entry["validation_loss"] < hard
    console = (tmp_path / "workers-1" / "rank0.log").read_text()
    assert f"{inputs[0]} {easy:.4f}  {inputs[1]} {hard:.4f}" in console

    other = last_metrics(run / "mixed")
    for key in ("validation_loss", "ema_validation_loss"):
        assert_close([other[key]], [entry[key]], bounds.TRAINED, what=key)
    expected = {"web": entry["validation_loss"], f"web: {inputs[0]}": easy, f"web: {inputs[1]}": hard}
    losses = other["validation_losses"]
    assert list(losses) == list(expected)
    assert_close(list(losses.values()), list(expected.values()), bounds.TRAINED, what="losses by input")
