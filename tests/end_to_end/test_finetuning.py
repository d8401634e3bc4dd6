"""Fine-tuning on prompts and answers: the mean over all answers of a step, the same on any ranks, resumed exactly; and the
whole way from a task of real text in SCROLLS' layout."""

import json
import math
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from megatape.data.finetuning.example_source import ExampleSource
from megatape.data.finetuning.format import Limits
from megatape.data.finetuning.prepare import prepare_examples
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.training.example_dataset import ExampleDataset
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import compare
from tests.helpers.runs.training_cases import TRAIN_CASES

N = 64


@pytest.fixture
def config(raw_config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Answers of 1 to 50 tokens, in no order: a mean of the means of micro-batches or ranks would be another loss."""
    lines = [{"prompt": f"{number}", "answer": "ab " * (1 + number * 37 % 23)} for number in range(80)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tokenizer = SentencePieceTokenizer(train_tokenizer(["ab 0123456789"], 256 + 3 + 13))
    source = ExampleSource("pairs", (str(tmp_path / "pairs.jsonl"),), (), Limits(N), 0.2)
    prepare_examples(source, tmp_path / "data", tokenizer, lambda counts, tokens: None)
    raw_config["data"] = {"path": str(tmp_path / "data"), "sequence_length": N, "samples": "examples"}
    raw_config["model"]["max_positions"] = N
    raw_config["training"]["steps"] = 2
    raw_config["optimizer"]["eps"] = 1e-3  # as in test_stages.py
    return raw_config


def test_the_loss_is_the_mean_over_all_answers(config: dict[str, Any], tmp_path: Path) -> None:
    """Micro-batches of 1, 2 and 8 samples on one and two ranks give the update of all eight at once, packed or not."""
    root = Path(config["run"]["directory"])
    runs: dict[int, list[tuple[str, int, dict[str, Any]]]] = {
        1: [("alone/plain", 8, {}), ("packed/plain", 8, {}), ("alone/ones", 1, {}), ("packed/twos", 2, {})],
        2: [
            ("alone/ranks", 1, {"zero.stage": 3}),
            ("packed/ranks", 2, {"zero.stage": 2}),
            ("packed/tensor", 2, {"parallel.tp": 2, "zero.stage": 1}),
        ],
    }
    for world_size, cases in runs.items():
        given = [
            {
                "name": name,
                "set": {"data.mask_documents": "packed" in name, "zero.stage": 0, "training.micro_batch_size": size} | changes,
            }
            for name, size, changes in cases
        ]
        results = run_workers(TRAIN_CASES, world_size, {"config": config, "cases": given}, tmp_path / f"workers-{world_size}")
        assert [result.get("error") for result in results[0]] == [None] * len(cases)
    for name, _, _ in runs[1][2:] + runs[2]:
        compare(root / name.split("/")[0] / "plain", root / name, step=2)


def test_resuming(config: dict[str, Any], tmp_path: Path) -> None:
    """On the same ranks bit for bit; with other samples it is refused."""
    config["data"]["mask_documents"] = True
    config["training"]["steps"] = 4
    config["checkpoint"] = {"interval": 2, "keep": 3}
    root = Path(config["run"]["directory"])
    half = str(root / "straight" / "checkpoints" / "step-00000002")
    cases: list[dict[str, Any]] = [
        {"name": "straight"},
        {"name": "resumed", "resume": half},
        {"name": "alone", "set": {"data.mask_documents": False}, "resume": half},
        {"name": "packed", "set": {"data.samples": "packed"}, "resume": half},
    ]
    results = run_workers(TRAIN_CASES, 2, {"config": config, "cases": cases}, tmp_path / "workers")[0]
    assert results[1] == {"step": 2, "samples": 16}
    for kind in ("weight", "exp_avg", "exp_avg_sq"):
        straight, resumed = (
            load_file(root / run / "checkpoints" / "step-00000004" / f"{kind}-00000.safetensors")
            for run in ("straight", "resumed")
        )
        assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())
    assert "data.mask_documents True, the configuration says False" in results[2]["error"]
    assert "holds prompts and answers, but data.samples is packed" in results[3]["error"]


@pytest.mark.slow  # by default, test_a_model_that_was_trained_on_it_knows_it learns such a set
def test_real_text_in_the_layout_of_scrolls(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Pretrain on Python's topics, then learn to name them over two processes: the loss on the names falls below their
    unigram entropy, for topics that were trained."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for key, text in topics.items():
        (texts / f"{key}.txt").write_text(text[:2000])
    records = [
        {"id": key, "pid": key, "input": f"Which topic is this?\n\n{text[:2000]}", "output": key}
        for key, text in topics.items()
    ]
    for name, part in (("train", records), ("validation", records[::5])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))
    corpus = tmp_path / "corpus"
    data = tmp_path / "data"
    assert command("prepare", "corpus", "--source", "text", "--input", texts, "--output", corpus, "--vocab-size", 400)[0] == 0
    files = ["--input", tmp_path / "train.jsonl", "--validation", tmp_path / "validation.jsonl"]
    sizes = ["--sequence-length", N, "--max-answer-tokens", 20, "--tokenizer", corpus / "tokenizer.model"]
    status, printed, errors = command("prepare", "finetuning", "--format", "scrolls_qa", *files, *sizes, "--output", data)
    assert status == 0, errors
    assert f"train: {len(topics)} examples" in printed and "tokens cut from prompts: " in printed

    raw_config["model"] |= {"encoding": "rope", "num_heads": 4, "vocab_size": 400, "max_positions": N}
    raw_config["data"] = {"path": str(corpus), "sequence_length": N, "random_offset": False}
    raw_config["training"] |= {"global_batch_size": 16, "micro_batch_size": 8}
    raw_config["zero"] = {"stage": 1}
    raw_config["evaluation"] = {"interval": 40, "samples": 16}
    root = Path(raw_config["run"]["directory"])
    answers = {"data.path": str(data), "data.samples": "examples"}
    start = {"training.init_from": str(root / "base" / "checkpoints" / "step-00000004"), "training.steps": 40}
    cases = [{"name": "base"}, {"name": "finetuned", "set": answers | start}]
    results = run_workers(TRAIN_CASES, 2, {"config": raw_config, "cases": cases}, tmp_path / "workers")[0]
    assert [result.get("error") for result in results] == [None, None]
    entries = [json.loads(line) for line in (root / "finetuned" / "metrics.jsonl").read_text().splitlines()]
    entropy = ExampleDataset(StoredSplit(data, "train"), N).unigram_entropy
    assert entries[0]["loss"] > 0.8 * math.log(400)
    # 0.84 and 0.91 of it from two starting points; without learning it stays above.
    assert entries[-1]["validation_loss"] < 0.95 * entropy
