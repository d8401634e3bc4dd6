"""Fine-tuning on prompts and answers: the mean over all answers of a step, the same on any ranks, resumed exactly.

One test goes all the way from a task of real text in SCROLLS' layout to a trained model.
"""

import json
import math
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest

from megatape.data.finetuning.example_source import ExampleSource
from megatape.data.finetuning.format import Limits
from megatape.data.finetuning.prepare import prepare_examples
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.data.training.datasets.example_dataset import ExampleDataset
from megatape.run_folder import RunFolder
from tests.helpers.processes.command import Command
from tests.helpers.runs.case_runs import assert_no_errors, run_cases
from tests.helpers.runs.run_folders import KINDS, assert_identical, compare, read_entries, step_tensors

LENGTH = 64


@pytest.fixture
def config(raw_config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Return a configuration with unordered answers of 1 to 50 tokens, for which a mean of ranks' means differs."""
    pairs = [{"prompt": f"{number}", "answer": "ab " * (1 + number * 37 % 23)} for number in range(80)]
    write_json_lines(tmp_path / "pairs.jsonl", pairs)
    tokenizer = SentencePieceTokenizer(train_tokenizer(["ab 0123456789"], 256 + 3 + 13))
    source = ExampleSource("pairs", (str(tmp_path / "pairs.jsonl"),), (), Limits(LENGTH), 0.2)
    prepare_examples(source, tmp_path / "data", tokenizer, lambda counts, tokens: None)
    raw_config["data"] = {"path": str(tmp_path / "data"), "sequence_length": LENGTH, "samples": "examples"}
    raw_config["model"]["max_positions"] = LENGTH
    raw_config["training"]["steps"] = 2
    # A large eps keeps Adam's updates smooth (see test_stages.py).
    raw_config["optimizer"]["eps"] = 1e-3
    return raw_config


def test_the_loss_is_the_mean_over_all_answers(config: dict[str, Any], tmp_path: Path) -> None:
    """Micro-batches of 1, 2 and 8 samples on one and two ranks give the same update as all eight at once, packed or not."""
    root = Path(config["run"]["directory"])

    def case(name: str, micro_batch_size: int, changes: dict[str, Any] | None = None) -> dict[str, Any]:
        settings = {
            "data.mask_documents": name.startswith("packed/"),
            "zero.stage": 0,
            "training.micro_batch_size": micro_batch_size,
        }
        return {"name": name, "set": settings | (changes or {})}

    on_one_rank = [
        case("alone/plain", 8),
        case("packed/plain", 8),
        case("alone/ones", 1),
        case("packed/twos", 2),
    ]
    on_two_ranks = [
        case("alone/ranks", 1, {"zero.stage": 3}),
        case("packed/ranks", 2, {"zero.stage": 2}),
        case("packed/tensor", 2, {"parallel.tp": 2, "zero.stage": 1}),
    ]

    assert_no_errors(run_cases(config, on_one_rank, 1, tmp_path / "workers-1"))
    assert_no_errors(run_cases(config, on_two_ranks, 2, tmp_path / "workers-2"))

    for kind, names in {"alone": ("ones", "ranks"), "packed": ("twos", "ranks", "tensor")}.items():
        for name in names:
            compare(root / kind / "plain", root / kind / name, step=2)


def test_resuming(config: dict[str, Any], tmp_path: Path) -> None:
    """A run resumes bit for bit on the same ranks, and not with other samples."""
    config["data"]["mask_documents"] = True
    config["training"]["steps"] = 4
    config["checkpoint"] = {"interval": 2, "keep": 3}
    root = Path(config["run"]["directory"])
    checkpoint = str(RunFolder(root / "straight").checkpoint(2))
    cases: list[dict[str, Any]] = [
        {"name": "straight"},
        {"name": "resumed", "resume": checkpoint},
        {"name": "alone", "set": {"data.mask_documents": False}, "resume": checkpoint},
        {"name": "packed", "set": {"data.samples": "packed"}, "resume": checkpoint},
    ]

    _, resumed, alone, packed = run_cases(config, cases, 2, tmp_path / "workers")

    assert resumed == {"step": 2, "samples": 16}
    for kind in KINDS:
        straight = step_tensors(root / "straight", kind, step=4)
        assert_identical(step_tensors(root / "resumed", kind, step=4), straight, kind)
    assert "data.mask_documents True, the configuration says False" in alone["error"]
    assert "holds prompts and answers, but data.samples is packed" in packed["error"]


# The faster test_model_trained_on_a_set_knows_it also learns such a set.
@pytest.mark.slow
def test_real_text_in_the_layout_of_scrolls(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Pretrain on Python's topics, then learn to name them over two processes.

    The loss on the names falls below their unigram entropy, for topics that were trained.
    """
    corpus, data = prepare_topics(command, tmp_path)
    raw_config["model"] |= {"encoding": "rope", "num_heads": 4, "vocab_size": 400, "max_positions": LENGTH}
    raw_config["data"] = {"path": str(corpus), "sequence_length": LENGTH, "random_offset": False}
    raw_config["training"] |= {"global_batch_size": 16, "micro_batch_size": 8}
    raw_config["zero"] = {"stage": 1}
    raw_config["evaluation"] = {"interval": 40, "samples": 16}
    root = Path(raw_config["run"]["directory"])
    finetuning = {
        "data.path": str(data),
        "data.samples": "examples",
        "training.init_from": str(RunFolder(root / "base").checkpoint(4)),
        "training.steps": 40,
    }

    cases: list[dict[str, Any]] = [{"name": "base"}, {"name": "finetuned", "set": finetuning}]
    assert_no_errors(run_cases(raw_config, cases, 2, tmp_path / "workers"))

    metrics = read_entries(root / "finetuned" / "metrics.jsonl")
    entropy = ExampleDataset(StoredSplit(data, "train"), LENGTH).unigram_entropy
    assert metrics[0]["loss"] > 0.8 * math.log(400)
    # From two starting points, 0.84 and 0.91 of it. Without learning it stays above.
    assert metrics[-1]["validation_loss"] < 0.95 * entropy


def prepare_topics(command: Command, folder: Path) -> tuple[Path, Path]:
    """Prepare Python's topics as a corpus, and as questions with topic names as answers."""
    texts = folder / "texts"
    texts.mkdir()
    records = []
    for key, text in topics.items():
        text = text[:2000]
        (texts / f"{key}.txt").write_text(text)
        records.append({"id": key, "pid": key, "input": f"Which topic is this?\n\n{text}", "output": key})
    write_json_lines(folder / "train.jsonl", records)
    write_json_lines(folder / "validation.jsonl", records[::5])

    corpus = folder / "corpus"
    words = ["--source", "text", "--input", texts, "--output", corpus, "--vocab-size", 400]
    status, _, errors = command("prepare", "corpus", *words)
    assert status == 0, errors

    data = folder / "data"
    files = ["--input", folder / "train.jsonl", "--validation", folder / "validation.jsonl", "--output", data]
    sizes = ["--sequence-length", LENGTH, "--max-answer-tokens", 20, "--tokenizer", corpus / "tokenizer.model"]
    status, output, errors = command("prepare", "finetuning", "--format", "scrolls_qa", *files, *sizes)
    assert status == 0, errors
    assert f"train: {len(topics)} examples" in output
    assert "tokens cut from prompts: " in output
    return corpus, data


def write_json_lines(path: Path, records: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
