"""Preparing records into a data directory, with what is counted, refused and reported."""

import bz2
import json
from pathlib import Path
from typing import Any

import pytest

from megatape.data.shards.hashes import split_of
from megatape.data.shards.index import load_index
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.data.examples import PAIRS, Prepare, examples, learned, words, write_lines
from tests.helpers.processes.command import Command


@pytest.fixture
def tokenizer_file(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    path = tmp_path / "tok.model"
    path.write_bytes(tokenizer.files["tokenizer.model"])
    return path


@pytest.fixture
def prepare_pairs(tokenizer_file: Path) -> list[object]:
    """Return a command line preparing pairs, without input and output."""
    return ["prepare", "finetuning", "--format", "pairs", "--sequence-length", 64, "--tokenizer", tokenizer_file]


def file_contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def bad_file(tmp_path: Path) -> Path:
    """Return the path where `prepare` writes its records."""
    return tmp_path / "data.jsonl"


MALFORMED_RECORDS: list[Any] = [
    PAIRS[0],
    b'{"prompt": "a", ',
    ["a"],
    {"prompt": "a", "completion": "b"},
    {"prompt": None, "answer": "b"},
    {"prompt": "a", "answer": 7},
    {"prompt": "a", "answer": " \n"},
    {"prompt": "", "answer": "b"},
    {"prompt": "a", "answer": words(70)},
    b"\xff",
]


def test_bad_records_are_counted_with_their_location(prepare: Prepare, bad_file: Path) -> None:
    """Both splits have the same records."""
    directory, counts = prepare("pairs", MALFORMED_RECORDS, max_bad_fraction=0.6)
    assert len(examples(directory)) == 1
    assert counts.bad == 2 * 6
    assert counts.bad_examples[0].startswith(f"{bad_file}:2: malformed JSON")
    assert counts.bad_examples[1:] == [
        f"{bad_file}:3: ['a'] is not an object",
        f"{bad_file}:4: 'answer' is missing; the record has 'prompt', 'completion'",
        f"{bad_file}:5: 'prompt' is None, not a string",
        f"{bad_file}:6: 'answer' is 7, not a string",
    ]


def test_dropped_records_are_counted_by_reason(prepare: Prepare, bad_file: Path) -> None:
    """Counts are printed with the first record's location, and recorded in the index."""
    directory, counts = prepare("pairs", MALFORMED_RECORDS, max_bad_fraction=0.6)
    assert counts.first_dropped == {
        "empty answer": f"{bad_file}:7",
        "empty prompt": f"{bad_file}:8",
        "answer that leaves no room for a prompt": f"{bad_file}:9",
    }
    assert load_index(directory).counts == {
        "dropped: empty answer": 2,
        "dropped: empty prompt": 2,
        "dropped: answer that leaves no room for a prompt": 2,
        "bad records": 12,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sequence-length", 0], "--sequence-length: must be greater than or equal to 1, got '0'"),
        (["--max-answer-tokens", -1], "--max-answer-tokens: must be greater than or equal to 1, got '-1'"),
        (["--max-prompt-tokens", 1], "--max-prompt-tokens is 1: a prompt needs at least 2"),
        (["--format", "scrolls_summary"], "--sequence-length 64 leaves 0 tokens for prompts before answers of 1000"),
        (["--format", "chat", "--truncation", "end"], "--truncation is end, but conversations are cut after whole messages"),
        (["--format", "scrolls_qa", "--max-answer-tokens", 9], "the first: FILE:1: 'input' is missing; the record"),
        (["--validation-share", 1.5], "--validation-share: must be less than 1, got '1.5'"),
        (["--fields", "prompts=answer"], "--fields 'prompts=answer': did you mean prompt? the format reads prompt, answer"),
        (["--input", "nowhere"], "--input nowhere: no such file or directory"),
        (["--validation", "nowhere"], "--validation nowhere: no such file or directory"),
        (["--validation", "FILE"], "--validation: FILE is given twice"),
        (["--tokenizer", "nowhere"], "nowhere: no such tokenizer"),
        (["--fields", "prompt=answer", "answer=answer", "--input", "ONE"], "the validation split got no example (1 example"),
    ],
)
def test_unfit_options_are_refused_before_anything_is_written(
    command: Command, tmp_path: Path, prepare_pairs: list[object], options: list[object], message: str
) -> None:
    """The command ends with status 2 and a one-line error."""
    file = write_lines(tmp_path / "a.jsonl", PAIRS)
    one = write_lines(tmp_path / "one.jsonl", PAIRS[:1])
    before = sorted(tmp_path.iterdir())
    paths = {"FILE": file, "ONE": one}
    options = [paths.get(str(option), option) for option in options]

    status, _, errors = command(*prepare_pairs, "--input", file, "--output", tmp_path / "out", *options)
    assert status == 2
    assert errors.count("\n") == 1
    assert message.replace("FILE", str(file)) in errors
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("count", [2, 20])
def test_the_default_share_holds_out_at_least_one_prompt(
    command: Command, tmp_path: Path, prepare_pairs: list[object], tokenizer: Tokenizer, count: int
) -> None:
    """All records with one prompt are held out. Each preparation picks the same prompt, keeping the others in order."""
    training_prompts = [prompt for prompt in map(str, range(1000)) if split_of(prompt.encode(), 0.02) == "train"]
    prompts = training_prompts[:count]
    records = [{"prompt": prompt, "answer": answer} for answer in "xy" for prompt in prompts]
    file = write_lines(tmp_path / "a.jsonl", records)
    for name in ("first", "second"):
        status, printed, errors = command(*prepare_pairs, "--input", file, "--output", tmp_path / name)
        assert status == 0, errors
        assert "a validation share of 0.02 selects none of the prompts: one of them is held out" in printed
    assert file_contents(tmp_path / "first") == file_contents(tmp_path / "second")

    training = examples(tmp_path / "first", split="train")
    held_out = examples(tmp_path / "first", split="validation")
    assert len(training) == 2 * count - 2
    assert len(held_out) == 2
    prompts_held_out = [tokens[:-1] for tokens, _ in held_out]
    assert prompts_held_out[0] == prompts_held_out[1]

    in_order = []
    for record in records:
        prompt = [*tokenizer.begin, *tokenizer.encode(record["prompt"])]
        answer = [*tokenizer.encode(record["answer"]), tokenizer.eos_id]
        in_order.append(learned(prompt, answer))
    assert training == [example for example in in_order if example not in held_out]


def test_an_array_of_records_gives_the_same_data_as_lines(command: Command, tmp_path: Path, tokenizer_file: Path) -> None:
    """Files such as alpaca_data.json are a single JSON array."""
    records = [{"instruction": f"Say {number}.", "input": "", "output": f"é {number}"} for number in range(30)]
    lines_file = write_lines(tmp_path / "lines.jsonl", records)
    array_file = tmp_path / "array.json"
    array_file.write_text(json.dumps(records, indent=4), encoding="utf-8")
    words = ["prepare", "finetuning", "--format", "alpaca", "--sequence-length", 128, "--tokenizer", tokenizer_file]
    for file, name in ((lines_file, "lines"), (array_file, "array")):
        status, _, errors = command(*words, "--input", file, "--output", tmp_path / name)
        assert status == 0, errors

    from_lines = load_index(tmp_path / "lines")
    from_array = load_index(tmp_path / "array")
    assert from_array.splits == from_lines.splits
    assert from_array.answers == from_lines.answers


def test_equal_records_give_equal_files(command: Command, tmp_path: Path, prepare_pairs: list[object]) -> None:
    records = [{"prompt": words(number), "answer": str(number)} for number in range(1, 60)]
    file = write_lines(tmp_path / "a.jsonl", records)
    for name in ("first", "second"):
        status, _, errors = command(*prepare_pairs, "--input", file, "--validation-share", 0.2, "--output", tmp_path / name)
        assert status == 0, errors
    first = file_contents(tmp_path / "first")
    assert first == file_contents(tmp_path / "second")
    assert json.loads(first["index.json"])["version"] == 4


def test_the_report_has_the_counts_that_preparation_prints(
    command: Command, tmp_path: Path, prepare_pairs: list[object]
) -> None:
    """Report and preparation say what was cut and dropped, and how full sequences are. The report reads it from the index."""
    records = [{"prompt": words(number), "answer": str(number)} for number in range(1, 60)]
    file = write_lines(tmp_path / "a.jsonl", [*records, {"prompt": "a", "answer": ""}, b"{"])
    output = tmp_path / "data"
    status, printed, errors = command(*prepare_pairs, "--input", file, "--validation-share", 0.2, "--output", output)
    assert status == 0, errors
    assert f"the first record dropped (empty answer): {file}:60" in printed
    assert f"  {file}:61: malformed JSON" in printed

    status, report, _ = command("data", "report", output, "--verify")
    assert status == 0
    for text in ("prompts cut: ", "tokens cut from prompts: ", "dropped: empty answer: 1", "bad records: 1", "packed, "):
        assert text in printed
        assert text in report
    index = load_index(output)
    assert sum(answers.examples for answers in index.answers.values()) == 59
    first_answer = next(record["answer"] for record in records if split_of(record["prompt"].encode(), 0.2) == "train")
    assert f"  learned of the first: {first_answer!r}\n" in report


def prompts_of(directory: Path, split: str) -> set[tuple[int, ...]]:
    """Return the distinct prompts in a split, without their last token."""
    prompts = set()
    for tokens, targets in examples(directory, split=split):
        num_unlearned = targets.count(-1)
        prompts.add(tuple(tokens[: num_unlearned + 1]))
    return prompts


def test_equal_prompts_are_in_one_split(command: Command, tmp_path: Path, prepare_pairs: list[object]) -> None:
    """SCROLLS, for example, has one record for each reference answer to a question."""
    records = [{"prompt": f"prompt {number}", "answer": answer} for number in range(60) for answer in "xyz"]
    file = write_lines(tmp_path / "a.jsonl", records)
    output = tmp_path / "data"
    status, _, errors = command(*prepare_pairs, "--input", file, "--validation-share", 0.3, "--output", output)
    assert status == 0, errors

    training = prompts_of(output, "train")
    held_out = prompts_of(output, "validation")
    assert len(training) + len(held_out) == 60
    assert len(training) > 5
    assert len(held_out) > 5


GOOD_RECORDS = [{"prompt": f"prompt {number}", "answer": "x"} for number in range(990)]
TEN_BAD_RECORDS = [{"prompt": "a", "answers": "b"}] * 10


def test_ten_bad_records_are_accepted(command: Command, tmp_path: Path, prepare_pairs: list[object]) -> None:
    """A small file is not refused for one bad record."""
    file = write_lines(tmp_path / "a.jsonl", [*GOOD_RECORDS, *TEN_BAD_RECORDS])
    status, _, errors = command(*prepare_pairs, "--input", file, "--output", tmp_path / "out")
    assert status == 0, errors
    assert (tmp_path / "out").exists()


def test_too_many_bad_records_end_the_command(command: Command, tmp_path: Path, prepare_pairs: list[object]) -> None:
    """The error says how to accept more of them."""
    file = write_lines(tmp_path / "more.jsonl", [*GOOD_RECORDS, *TEN_BAD_RECORDS, b"{"])
    words = [*prepare_pairs, "--input", file, "--output", tmp_path / "out"]
    status, _, errors = command(*words)
    assert status == 2
    assert not (tmp_path / "out").exists()
    # On a slow machine, a progress bar precedes the message.
    assert errors.splitlines()[-1].startswith("error: of 1,001 records 11 are bad")
    assert "more.jsonl:991: 'answer' is missing; the record has 'prompt', 'answers' (did you mean answers?)" in errors
    assert "or raise --max-bad-fraction, and give the same command again" in errors

    status, _, errors = command(*words, "--max-bad-fraction", 0.02)
    assert status == 0, errors


def test_a_bad_fraction_above_1_is_refused(command: Command, tmp_path: Path, prepare_pairs: list[object]) -> None:
    file = write_lines(tmp_path / "a.jsonl", PAIRS)
    _, _, errors = command(*prepare_pairs, "--input", file, "--output", "x", "--max-bad-fraction", 2)
    assert "--max-bad-fraction: must be less than or equal to 1" in errors


def test_files_of_other_names_are_refused_or_counted(command: Command, tmp_path: Path, prepare_pairs: list[object]) -> None:
    """File names of JSON lines are recognized in any case, compressed or not."""
    folder = tmp_path / "records"
    folder.mkdir()
    for number, name in enumerate(("a.jsonl", "b.JSONL", "c.ndjson", "d.jsonl.bz2", "e.csv")):
        file = write_lines(folder / name, [{"prompt": f"{number} {record}", "answer": "x"} for record in range(9)])
        if name.endswith("bz2"):
            file.write_bytes(bz2.compress(file.read_bytes()))
    words = [*prepare_pairs, "--input", folder, "--validation-share", 0.3, "--output", tmp_path / "out"]

    status, _, errors = command(*words)
    assert status == 2
    assert "1 of 5 files" in errors
    assert "e.csv. Rename them or give them one by one to read" in errors

    status, printed, errors = command(*words, "--max-skipped-fraction", 0.5)
    assert status == 0, errors
    assert "skipped by name: e.csv\n" in printed
    index = load_index(tmp_path / "out")
    assert sum(answers.examples for answers in index.answers.values()) == 36
    assert index.counts == {"files skipped because of their names": 1}


@pytest.fixture
def hub_words(tmp_path: Path, prepare_pairs: list[object], no_hub: None) -> list[object]:
    """Return a command line preparing a local data set as if it came from the hub."""
    folder = tmp_path / "set"
    folder.mkdir()
    for split, count in (("train", 5), ("test", 3)):
        records = [{"q": f"{split} {number}", "a": {"text": [f"answer {number}"]}} for number in range(count)]
        write_lines(folder / f"{split}.jsonl", records)
    return [*prepare_pairs, "--source", "hub", "--input", folder, "--fields", "prompt=q", "answer=a.text.0"]


def test_a_data_set_of_the_hub_is_prepared_from_its_splits(
    command: Command, tmp_path: Path, tokenizer: Tokenizer, hub_words: list[object]
) -> None:
    """Nested fields are named by their path."""
    output = tmp_path / "out"
    status, _, errors = command(*hub_words, "--validation", "test", "--output", output)
    assert status == 0, errors

    answers = []
    for split in ("train", "validation"):
        for _, targets in examples(output, split=split):
            answers.append(tokenizer.decode(token for token in targets if token >= 0))
    assert answers == [f"answer {number}" for number in (0, 1, 2, 3, 4, 0, 1, 2)]
    source = load_index(output).source
    assert source["source"] == "hub"
    assert source["split"] == "train"
    assert source["fields"] == ["prompt=q", "answer=a.text.0"]


def test_a_dry_run_shows_records_of_the_chosen_hub_split(command: Command, tmp_path: Path, hub_words: list[object]) -> None:
    status, printed, _ = command(*hub_words, "--split", "test", "--dry-run", 2)
    assert status == 0
    assert f"{tmp_path / 'set'} test record 2: " in printed
    assert "record 3" not in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--validation", "a", "b"], "--validation a b: give the name of one split"),
        (["--validation", "train"], "--validation train: --split has the same name"),
        (["--split", "none"], "split none) failed after 0 documents"),
        (["--fields", "prompt=q", "answer"], "--fields 'answer': give each field"),
        (["--fields", "prompt=x"], "the train split got no example"),
    ],
)
def test_unfit_options_of_a_hub_data_set_are_refused(
    command: Command, tmp_path: Path, hub_words: list[object], options: list[str], message: str
) -> None:
    status, _, errors = command(*hub_words, *options, "--output", tmp_path / "no")
    assert status == 2
    assert message in errors
    assert not (tmp_path / "no").exists()


def test_a_split_of_local_files_is_refused(command: Command, tmp_path: Path, prepare_pairs: list[object]) -> None:
    status, _, errors = command(*prepare_pairs, "--input", tmp_path, "--split", "test", "--output", tmp_path / "no")
    assert status == 2
    assert "--split 'test' belongs to --source hub" in errors
    assert not (tmp_path / "no").exists()


def test_a_missing_output_is_refused(command: Command, hub_words: list[object]) -> None:
    status, _, errors = command(*hub_words)
    assert status == 2
    assert "--output is missing: name the data directory to write, or give --dry-run" in errors


def test_a_dry_run_shows_tokens_and_writes_nothing(
    command: Command, tmp_path: Path, tokenizer: Tokenizer, prepare_pairs: list[object]
) -> None:
    """The output has no colors unless it is a terminal. Dropped and bad records are printed as well."""
    file = write_lines(tmp_path / "a.jsonl", [{"prompt": "a", "answer": ""}, {"prompt": 1}, *PAIRS])
    before = sorted(tmp_path.iterdir())
    status, printed, _ = command(*prepare_pairs, "--input", file, "--dry-run")
    assert status == 0
    assert sorted(tmp_path.iterdir()) == before
    assert "\x1b" not in printed

    lines = printed.splitlines()
    num_learned = len(tokenizer.encode(PAIRS[0]["answer"])) + 1
    num_tokens = 1 + len(tokenizer.encode(PAIRS[0]["prompt"])) + num_learned
    assert f"{file}:3: {num_tokens} tokens, {num_learned} learned, train" in lines
    assert f"the first record dropped (empty answer): {file}:1" in lines
    assert f"  {file}:2: 'prompt' is 1, not a string" in lines
