"""From records to a data directory: what is counted, refused and reported."""

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


def test_bad_records_are_counted_with_their_place(prepare: Prepare, tmp_path: Path) -> None:
    records: list[Any] = [
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
    directory, counts = prepare("pairs", records, max_bad_fraction=0.6)
    assert len(examples(directory)) == 1
    file = tmp_path / "data.jsonl"
    assert counts.bad == 2 * 6
    assert counts.bad_examples[0].startswith(f"{file}:2: malformed JSON")
    assert counts.bad_examples[1:] == [
        f"{file}:3: ['a'] is not an object",
        f"{file}:4: 'answer' is missing; the record has 'prompt', 'completion'",
        f"{file}:5: 'prompt' is None, not a string",
        f"{file}:6: 'answer' is 7, not a string",
    ]
    dropped = {"empty answer": 7, "empty prompt": 8, "answer that leaves no room for a prompt": 9}
    assert counts.first_dropped == {reason: f"{file}:{line}" for reason, line in dropped.items()}
    assert load_index(directory).counts == {f"dropped: {reason}": 2 for reason in dropped} | {"bad records": 12}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sequence-length", 0], "--sequence-length: must be greater than or equal to 1, got '0'"),
        (["--max-answer-tokens", -1], "--max-answer-tokens: must be greater than or equal to 1, got '-1'"),
        (["--max-prompt-tokens", 1], "--max-prompt-tokens is 1: a prompt needs at least 2"),
        (["--format", "scrolls_summary"], "--sequence-length 64 leaves 0 tokens for prompts before answers of 1000"),
        (["--format", "chat", "--truncation", "end"], "--truncation is end, but conversations are cut after whole messages"),
        (
            ["--format", "scrolls_qa", "--max-answer-tokens", 9],
            "the first: FILE:1: 'input' is missing; the record",
        ),
        (["--validation-share", 1.5], "--validation-share: must be less than 1, got '1.5'"),
        (["--fields", "prompts=answer"], "--fields 'prompts=answer': did you mean prompt? the format reads prompt, answer"),
        (["--input", "nowhere"], "--input nowhere: no such file or directory"),
        (["--validation", "nowhere"], "--validation nowhere: no such file or directory"),
        (["--validation", "FILE"], "--validation: FILE is given twice"),
        (["--tokenizer", "nowhere"], "nowhere: no such tokenizer"),
        (["--fields", "prompt=answer", "answer=answer", "--input", "ONE"], "the validation split got no example (1 example"),
    ],
)
def test_what_the_command_refuses(
    command: Command, tmp_path: Path, tokenizer: Tokenizer, words: list[object], message: str
) -> None:
    """An error of one line, status 2, and nothing is left."""
    (tmp_path / "tok.model").write_bytes(tokenizer.files["tokenizer.model"])
    file = write_lines(tmp_path / "a.jsonl", PAIRS)
    one = write_lines(tmp_path / "one.jsonl", PAIRS[:1])
    before = sorted(tmp_path.iterdir())
    given = ["--format", "pairs", "--input", file, "--tokenizer", tmp_path / "tok.model", "--sequence-length", 64]
    files = {"FILE": file, "ONE": one}
    words = [files.get(str(word), word) for word in words]
    status, _, errors = command("prepare", "finetuning", *given, "--output", tmp_path / "out", *words)
    assert status == 2
    assert errors.count("\n") == 1
    assert message.replace("FILE", str(file)) in errors
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("count", [2, 20])
def test_the_default_share_holds_out_at_least_one_prompt(
    command: Command, tmp_path: Path, tokenizer: Tokenizer, count: int
) -> None:
    """All records of one prompt are held out. Each preparation picks the same prompt, and the rest keeps its order."""
    (tmp_path / "tok.model").write_bytes(tokenizer.files["tokenizer.model"])
    prompts = [prompt for prompt in map(str, range(1000)) if split_of(prompt.encode(), 0.02) == "train"][:count]
    records = [{"prompt": prompt, "answer": answer} for answer in "xy" for prompt in prompts]
    given = ["--format", "pairs", "--input", write_lines(tmp_path / "a.jsonl", records), "--sequence-length", 64]
    for name in ("first", "second"):
        output = ["--tokenizer", tmp_path / "tok.model", "--output", tmp_path / name]
        status, printed, errors = command("prepare", "finetuning", *given, *output)
        assert status == 0, errors
        assert "a validation share of 0.02 selects none of the prompts: one of them is held out" in printed
    first, second = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("first", "second"))
    assert first == second
    found = {split: examples(tmp_path / "first", split=split) for split in ("train", "validation")}
    assert [len(found["train"]), len(found["validation"])] == [2 * count - 2, 2]
    ids = [[*tokenizer.begin, *tokenizer.encode(prompt)] for prompt in prompts]
    ends = [[*tokenizer.encode(answer), tokenizer.eos_id] for answer in "xy"]
    everything = [learned(prompt, end) for end in ends for prompt in ids]
    assert [example for example in everything if example not in found["validation"]] == found["train"]
    assert found["validation"][0][0][:-1] == found["validation"][1][0][:-1], "one prompt"


def test_one_array_of_records(command: Command, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A JSON array, such as alpaca_data.json, gives the same folder as lines of JSON."""
    (tmp_path / "tok.model").write_bytes(tokenizer.files["tokenizer.model"])
    records = [{"instruction": f"Say {number}.", "input": "", "output": f"é {number}"} for number in range(30)]
    write_lines(tmp_path / "lines.jsonl", records)
    (tmp_path / "array.json").write_text(json.dumps(records, indent=4), encoding="utf-8")
    given = ["--format", "alpaca", "--sequence-length", 128, "--tokenizer", tmp_path / "tok.model"]
    for name in ("lines.jsonl", "array.json"):
        status, _, errors = command(
            "prepare", "finetuning", *given, "--input", tmp_path / name, "--output", tmp_path / name[:5]
        )
        assert status == 0, errors
    lines, array = (load_index(tmp_path / name) for name in ("lines", "array"))
    assert (lines.splits, lines.answers) == (array.splits, array.answers)


def test_from_the_command_to_the_report(command: Command, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Preparation prints what was cut and how full sequences are; the report has the same from the index."""
    (tmp_path / "tok.model").write_bytes(tokenizer.files["tokenizer.model"])
    records = [{"prompt": words(number), "answer": str(number)} for number in range(1, 60)]
    file = write_lines(tmp_path / "a.jsonl", [*records, {"prompt": "a", "answer": ""}, b"{"])
    given = ["--format", "pairs", "--input", file, "--tokenizer", tmp_path / "tok.model", "--sequence-length", 64]
    for name in ("first", "second"):
        given_share = [*given, "--validation-share", 0.2, "--output", tmp_path / name]
        status, printed, errors = command("prepare", "finetuning", *given_share)
        assert status == 0, errors
    first, second = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("first", "second"))
    assert first == second
    assert json.loads(first["index.json"])["version"] == 4
    status, report, _ = command("data", "report", tmp_path / "first", "--verify")
    assert status == 0
    index = load_index(tmp_path / "first")
    assert index.answers["train"].examples + index.answers["validation"].examples == 59
    shown = next(record["answer"] for record in records if split_of(record["prompt"].encode(), 0.2) == "train")
    assert f"  learned of the first: {shown!r}\n" in report
    for line in ("prompts cut: ", "tokens cut from prompts: ", "dropped: empty answer: 1", "bad records: 1", "packed, "):
        assert line in printed
        assert line in report
    assert f"the first record dropped (empty answer): {file}:60" in printed
    assert f"  {file}:61: malformed JSON" in printed


def test_equal_prompts_are_in_one_split(command: Command, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """As SCROLLS has a record for each reference answer of a question."""
    (tmp_path / "tok.model").write_bytes(tokenizer.files["tokenizer.model"])
    records = [{"prompt": f"prompt {number}", "answer": answer} for number in range(60) for answer in "xyz"]
    given = ["--input", write_lines(tmp_path / "a.jsonl", records), "--tokenizer", tmp_path / "tok.model"]
    shared = ["--format", "pairs", "--sequence-length", 64, "--validation-share", 0.3, "--output", tmp_path / "data"]
    assert command("prepare", "finetuning", *given, *shared)[0] == 0
    prompts = [
        {tuple(tokens[: targets.index(next(target for target in targets if target >= 0)) + 1]) for tokens, targets in found}
        for found in (examples(tmp_path / "data", split=split) for split in ("train", "validation"))
    ]
    assert len(prompts[0]) + len(prompts[1]) == 60
    assert min(map(len, prompts)) > 5


def test_too_many_bad_records_end_the_command(command: Command, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Three in four passed; ten always may be bad, so that a small file is not refused for one of them."""
    (tmp_path / "tok.model").write_bytes(tokenizer.files["tokenizer.model"])
    good = [{"prompt": f"prompt {number}", "answer": "x"} for number in range(990)]
    given = ["--format", "pairs", "--tokenizer", tmp_path / "tok.model", "--sequence-length", 64]
    bad = {"prompt": "a", "answers": "b"}
    for name, records, passes in (("ten", [*good, *[bad] * 10], True), ("more", [*good, *[bad] * 10, b"{"], False)):
        file = write_lines(tmp_path / f"{name}.jsonl", records)
        status, _, errors = command("prepare", "finetuning", *given, "--input", file, "--output", tmp_path / name)
        assert status == (0 if passes else 2)
        assert (tmp_path / name).exists() == passes
    # Before it there is a bar of progress where the machine is slow.
    assert errors.splitlines()[-1].startswith("error: of 1,001 records 11 are bad")
    assert "more.jsonl:991: 'answer' is missing; the record has 'prompt', 'answers' (did you mean answers?)" in errors
    assert "or raise --max-bad-fraction, and give the same command again" in errors
    given += ["--max-bad-fraction", 0.02, "--input", file]
    assert command("prepare", "finetuning", *given, "--output", tmp_path / "more")[0] == 0
    errors = command("prepare", "finetuning", *given, "--output", "x", "--max-bad-fraction", 2)[2]
    assert "--max-bad-fraction: must be less than or equal to 1" in errors


def test_files_of_other_names_are_counted(command: Command, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """File names of JSON lines are read in any case, compressed or not. Other files are refused, or printed and counted."""
    (tmp_path / "tok.model").write_bytes(tokenizer.files["tokenizer.model"])
    folder = tmp_path / "records"
    folder.mkdir()
    for number, name in enumerate(("a.jsonl", "b.JSONL", "c.ndjson", "d.jsonl.bz2", "e.csv")):
        file = write_lines(folder / name, [{"prompt": f"{number} {record}", "answer": "x"} for record in range(9)])
        if name.endswith("bz2"):
            file.write_bytes(bz2.compress(file.read_bytes()))
    given = ["--format", "pairs", "--tokenizer", tmp_path / "tok.model", "--sequence-length", 64, "--input", folder]
    given += ["--validation-share", 0.3, "--output", tmp_path / "out"]
    status, _, errors = command("prepare", "finetuning", *given)
    assert status == 2
    assert "1 of 5 files" in errors
    assert "e.csv. Rename them or give them one by one to read" in errors
    status, printed, errors = command("prepare", "finetuning", *given, "--max-skipped-fraction", 0.5)
    assert status == 0, errors
    assert "skipped by name: e.csv\n" in printed
    index = load_index(tmp_path / "out")
    assert sum(answers.examples for answers in index.answers.values()) == 36
    assert index.counts == {"files skipped because of their names": 1}


def test_data_sets_of_the_hub(command: Command, tmp_path: Path, tokenizer: Tokenizer, no_hub: None) -> None:
    """Nested fields by their path; a split of its own for validation; what is not for this kind is refused."""
    (tmp_path / "tok.model").write_bytes(tokenizer.files["tokenizer.model"])
    (tmp_path / "set").mkdir()
    for split, count in (("train", 5), ("test", 3)):
        records = [{"q": f"{split} {number}", "a": {"text": [f"answer {number}"]}} for number in range(count)]
        write_lines(tmp_path / "set" / f"{split}.jsonl", records)
    given = ["prepare", "finetuning", "--format", "pairs", "--tokenizer", tmp_path / "tok.model", "--sequence-length", 64]
    hub = [*given, "--source", "hub", "--input", tmp_path / "set", "--fields", "prompt=q", "answer=a.text.0"]
    status, _, errors = command(*hub, "--validation", "test", "--output", tmp_path / "out")
    assert status == 0, errors
    found = [learned for split in ("train", "validation") for learned in examples(tmp_path / "out", split=split)]
    answers = [tokenizer.decode(token for token in targets if token >= 0) for _, targets in found]
    assert answers == [f"answer {number}" for number in (0, 1, 2, 3, 4, 0, 1, 2)]
    recorded = load_index(tmp_path / "out").source
    assert (recorded["source"], recorded["split"], recorded["fields"]) == ("hub", "train", ["prompt=q", "answer=a.text.0"])
    status, printed, _ = command(*hub, "--split", "test", "--dry-run", 2)
    assert status == 0
    assert f"{tmp_path / 'set'} test record 2: " in printed
    assert "record 3" not in printed
    for refused, message in (
        ([*given, "--input", tmp_path, "--split", "test"], "--split 'test' belongs to --source hub"),
        ([*hub, "--validation", "a", "b"], "--validation a b: give the name of one split"),
        ([*hub, "--validation", "train"], "--validation train: --split has the same name"),
        ([*hub, "--split", "none"], "split none) failed after 0 documents"),
        ([*hub[:-1], "answer"], "--fields 'answer': give each field"),
        ([*hub[:-2], "prompt=x"], "the train split got no example"),
        (hub, "--output is missing: name the data directory to write, or give --dry-run"),
    ):
        status, _, errors = command(*refused, *(["--output", tmp_path / "no"] if refused is not hub else []))
        assert status == 2
        assert message in errors
        assert not (tmp_path / "no").exists()


def test_a_dry_run_shows_tokens(command: Command, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Without colors where the output is no terminal; dropped and bad records are told; nothing is written."""
    (tmp_path / "tok.model").write_bytes(tokenizer.files["tokenizer.model"])
    records = [{"prompt": "a", "answer": ""}, {"prompt": 1}, *PAIRS]
    file = write_lines(tmp_path / "a.jsonl", records)
    before = sorted(tmp_path.iterdir())
    given = ["--format", "pairs", "--input", file, "--tokenizer", tmp_path / "tok.model", "--sequence-length", 64]
    status, printed, _ = command("prepare", "finetuning", *given, "--dry-run")
    assert status == 0
    assert sorted(tmp_path.iterdir()) == before
    assert "\x1b" not in printed
    lines = printed.splitlines()
    answer = tokenizer.encode(PAIRS[0]["answer"])
    assert (
        f"{file}:3: {len(tokenizer.encode(PAIRS[0]['prompt'])) + len(answer) + 2} tokens, {len(answer) + 1} learned, train"
        in lines
    )
    assert f"the first record dropped (empty answer): {file}:1" in lines
    assert f"  {file}:2: 'prompt' is 1, not a string" in lines
