"""Pairs and SCROLLS: the tokens of prompt and answer, what is learned, what is cut, dropped and refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from megatape.data.finetuning.format import Limits, RecordDropped
from megatape.data.finetuning.scrolls import Answering, Scrolls, Summarizing, first_words
from megatape.data.prepare.documents import split_of
from megatape.data.shards.index import load_index
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.conftest import Command
from tests.helpers.examples import Prepare, examples, learned, write_lines

PAIRS = [
    {"prompt": "The dog jumps over", "answer": " the fox"},
    {"prompt": "<s> 12 </s>\n\n  and <|end|><unk>", "answer": "</s>\u2581 then "},
    {"prompt": "é 漢", "answer": "x"},
]


def words(count: int) -> str:
    """Text of more than `count` tokens of any tokenizer."""
    return " ".join(str(number) for number in range(count))


@pytest.mark.parametrize("family", [None, "llama3", "qwen", "llama2"])
def test_the_prompt_has_the_tokens_that_generation_sees(
    prepare: Prepare, tokenizer: Tokenizer, folders: dict[str, Path], family: str | None
) -> None:
    """Ours, and those of transformers with special tokens as text; the answer is learned to its end, the prompt is not."""
    chosen = tokenizer if family is None else load_tokenizer(folders[family])
    if family is None:
        prompts = [[*chosen.begin, *chosen.encode(pair["prompt"])] for pair in PAIRS]
    else:
        theirs = PreTrainedTokenizerFast.from_pretrained(folders[family], split_special_tokens=True)
        prompts = [theirs(pair["prompt"])["input_ids"] for pair in PAIRS]
    directory, _ = prepare("pairs", PAIRS, chosen, sequence_length=128)
    answers = [[*chosen.encode(pair["answer"]), chosen.eos_id] for pair in PAIRS]
    assert all(len(prompt) > 2 for prompt in prompts)
    assert examples(directory, 128) == [learned(*both) for both in zip(prompts, answers, strict=True)]


@pytest.mark.parametrize(
    ("limits", "prompt_parts", "answer_part"),
    [
        ({"sequence_length": 99, "truncation": "end"}, [slice(0, 79)], slice(20)),
        ({"sequence_length": 99}, [slice(0, 40), slice(161, 200)], slice(20)),
        ({"sequence_length": 99, "max_answer": 5}, [slice(0, 47), slice(153, 200)], slice(5)),
        ({"sequence_length": 99, "max_prompt": 10, "truncation": "end"}, [slice(0, 10)], slice(20)),
        ({"sequence_length": 219, "max_prompt": 10}, [slice(0, 5), slice(195, 200)], slice(20)),
        ({"sequence_length": 220}, [slice(0, 200)], slice(20)),
    ],
)
def test_what_is_cut(
    prepare: Prepare, tokenizer: Tokenizer, limits: dict[str, Any], prompt_parts: list[slice], answer_part: slice
) -> None:
    """A prompt of 200 tokens and an answer of 20 and its end, in N + 1 places."""
    prompt, answer = exactly(tokenizer, 199), exactly(tokenizer, 20)
    ids, wanted = [*tokenizer.begin, *tokenizer.encode(prompt)], tokenizer.encode(answer)
    directory, counts = prepare("pairs", [{"prompt": prompt, "answer": answer}], **limits)
    kept = [token for part in prompt_parts for token in ids[part]]
    assert examples(directory, limits["sequence_length"]) == [learned(kept, [*wanted[answer_part], tokenizer.eos_id])]
    expected: dict[str, int] = {}
    if len(kept) < 200:
        expected |= {"prompts cut": 2, "tokens cut from prompts": 2 * (200 - len(kept))}
    if answer_part.stop < 20:
        expected |= {"answers cut": 2, "tokens cut from answers": 2 * (20 - answer_part.stop)}
    assert dict(counts.cut) == load_index(directory).counts == expected


def exactly(tokenizer: Tokenizer, count: int) -> str:
    """A text of so many tokens."""
    text = tokenizer.decode(tokenizer.encode(words(count))[:count])
    assert len(tokenizer.encode(text)) == count
    return text


def test_questions_of_scrolls(tokenizer: Tokenizer) -> None:
    """The recipe at N = 8192: 7991 tokens, <s>, 200 tokens, </s>, of which the last 202 are learned."""
    record = {"id": "a", "pid": "b", "input": f"What is it?\n\n{words(9000)}", "output": words(300)}
    example = Answering(tokenizer, Limits(8192)).example(record)
    prompt, answer = [tokenizer.bos_id, *tokenizer.encode(record["input"])], tokenizer.encode(record["output"])
    assert example.ids == [*prompt[:7991], tokenizer.bos_id, *answer[:200], tokenizer.eos_id]
    assert example.answers == [(7991, 8193)]
    assert Answering(tokenizer, Limits(8192)).question(record["input"]) == prompt[:7991]
    assert Answering(tokenizer, Limits(8192)).answer_tokens == 201
    short = Answering(tokenizer, Limits(8192)).example(record | {"input": "What?", "output": "That."})
    assert short.ids == [1, *tokenizer.encode("What?")] + [1, *tokenizer.encode("That."), tokenizer.eos_id]


def test_summaries_of_scrolls(tokenizer: Tokenizer) -> None:
    """The middle of the prompt is cut: its first tokens and the instruction fill the places that answers of 1000 leave."""
    record = {"input": words(9000), "output": words(3000)}
    example = Summarizing(tokenizer, Limits(8192)).example(record)
    ((begin, end),) = example.answers
    assert (begin, end) == (7191, 8193)
    prompt = [1, *tokenizer.encode(f"Context:\n{record['input']}\n Please summarize this report:")]
    kept = len(tokenizer.encode("\n Please summarize this report:"))
    assert example.ids[:begin] == prompt[: 7191 - kept] + prompt[-kept:]
    assert tokenizer.decode(example.ids[:begin]).endswith(" Please summarize this report:")
    assert example.ids[begin:] == [1, *tokenizer.encode(record["output"])[:1000], tokenizer.eos_id]
    assert Summarizing(tokenizer, Limits(8192)).question(record["input"]) == example.ids[:begin]


def test_without_a_beginning_token_a_newline_separates(folders: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(folders["qwen"])
    example = Answering(tokenizer, Limits(512)).example({"input": "What?", "output": "That."})
    assert example.ids == tokenizer.encode("What?") + tokenizer.encode("\n") + tokenizer.encode("That.") + [tokenizer.eos_id]


@pytest.mark.parametrize("form", [Answering, Summarizing])
def test_empty_records_of_scrolls(tokenizer: Tokenizer, form: type[Scrolls]) -> None:
    """An instruction alone is no prompt."""
    for record, reason in (({"input": " \n", "output": "a"}, "empty prompt"), ({"input": "a", "output": ""}, "empty answer")):
        with pytest.raises(RecordDropped, match=reason):
            form(tokenizer, Limits(2048)).example(record)


def test_first_words() -> None:
    assert first_words(" a\n b  c d", 3) == " a\n b  c"
    assert first_words("a b c ", 3) == "a b c "


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
    directory, counts = prepare("pairs", records)
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
        (["--sequence-length", 0], "--sequence-length is 0: give at least 1"),
        (["--max-answer-tokens", -1], "--max-answer-tokens is -1: give at least 1"),
        (["--max-prompt-tokens", 1], "--max-prompt-tokens is 1: a prompt needs at least 2"),
        (["--format", "scrolls_summary"], "--sequence-length 64 leaves 0 tokens for prompts before answers of 1000"),
        (["--format", "chat", "--truncation", "end"], "--truncation is end, but conversations are cut after whole messages"),
        (
            ["--format", "scrolls_qa", "--max-answer-tokens", 9],
            "the first: FILE:1: 'input' is missing; the record",
        ),
        (["--validation-share", 1.5], "--validation-share is 1.5: give a share between 0 and 1"),
        (["--input", "nowhere"], "--input nowhere: no such file or directory"),
        (["--validation", "nowhere"], "--validation nowhere: no such file or directory"),
        (["--tokenizer", "nowhere"], "nowhere: no such tokenizer"),
        (["--validation-share", 1e-9], "the validation split got no example (3 examples, 0 records dropped, 0 bad): give more"),
    ],
)
def test_what_the_command_refuses(
    command: Command, tmp_path: Path, tokenizer: Tokenizer, words: list[object], message: str
) -> None:
    """An error of one line, status 2, and nothing is left."""
    (tmp_path / "tok.model").write_bytes(tokenizer.files["tokenizer.model"])
    file = write_lines(tmp_path / "a.jsonl", PAIRS)
    before = sorted(tmp_path.iterdir())
    given = ["--format", "pairs", "--input", file, "--tokenizer", tmp_path / "tok.model", "--sequence-length", 64]
    status, _, errors = command("prepare", "finetuning", *given, "--output", tmp_path / "out", *words)
    assert status == 2 and errors.count("\n") == 1
    assert message.replace("FILE", str(file)) in errors
    assert sorted(tmp_path.iterdir()) == before


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
    assert json.loads(first["index.json"])["version"] == 3
    status, report, _ = command("data", "report", tmp_path / "first", "--verify")
    assert status == 0
    index = load_index(tmp_path / "first")
    assert index.answers["train"].examples + index.answers["validation"].examples == 59
    shown = next(record["answer"] for record in records if split_of(record["prompt"], 0.2) == "train")
    assert f"  learned of the first: {shown!r}\n" in report
    for line in ("prompts cut: ", "tokens cut from prompts: ", "dropped: empty answer: 1", "bad records: 1", "packed, "):
        assert line in printed and line in report
    assert f"the first record dropped (empty answer): {file}:60" in printed and f"  {file}:61: malformed JSON" in printed


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
    assert len(prompts[0]) + len(prompts[1]) == 60 and min(map(len, prompts)) > 5
