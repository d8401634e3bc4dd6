"""Continuations of a file of prompts: batches, samples, the output, and conversations."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from transformers import PreTrainedTokenizerFast

from megatape.commands.generation import continuations
from megatape.hf.generation.continuations import continue_prompts
from megatape.hf.generation.prompts import Prompt
from megatape.hf.generation.sampling import Sampling
from megatape.hf.loading.load import load_exported
from tests.helpers.data.conversations import MESSAGES, PLAIN, adopted
from tests.helpers.models.exports import Exported
from tests.helpers.models.imported import write_qwen
from tests.helpers.models.tiny_models import save_beside_tokenizer
from tests.helpers.processes.command import Command, run_command

PROMPTS = ["The fox", "over", "and then\n    the dog jumps\n    over the quick brown fox", "12345 times"]
MESSAGE_RECORDS: list[dict[str, Any]] = [
    {"prompt": "over"},
    {"messages": MESSAGES[:2], "id": 7},
    {"messages": MESSAGES[:4]},
]


@pytest.mark.parametrize("encoding", ["tape", "randpe"])
def test_a_file_gives_what_each_prompt_gives_alone(
    exported: Callable[..., Exported], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """With 60 new tokens some texts are longer than RandPE's training samples, and others are not."""
    monkeypatch.setattr(continuations, "BATCH_TOKENS", 200)
    prompts = tmp_path / "in.jsonl"
    output = tmp_path / "out.jsonl"
    prompts.write_text(json_lines([{"prompt": text, "id": len(text)} for text in PROMPTS]))
    words = ("generate", exported("grouped", encoding).folder, "--max-new-tokens", 60)

    status, printed, _ = command(*words, "--prompts", prompts, "--output", output)

    assert (status, printed) == (0, "")
    for text, line in zip(PROMPTS, read_json_lines(output.read_text()), strict=True):
        _, expected, _ = command(*words, "--prompt", text)
        continuation = expected.removeprefix(text).removesuffix("\n")
        assert line == {"prompt": text, "id": len(text), "sample": 0, "continuation": continuation, "end": "length"}


def test_an_output_is_not_overwritten(exported: Callable[..., Exported], command: Command, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("")
    (tmp_path / "in.txt").write_text("over\n")
    words = ("--prompts", tmp_path / "in.txt", "--output", output, "--max-new-tokens", 1)
    assert command("generate", exported("plain").folder, *words)[0] == 2


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([6], [(0, 1)]),
        ([6, 6, 6, 7, 6], [(0, 2), (2, 3), (3, 4), (4, 5)]),
        ([50, 50], [(0, 1), (1, 2)]),
    ],
)
def test_batches_have_a_maximum_number_of_tokens(
    lengths: list[int], expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuations, "BATCH_TOKENS", 40)
    sampling = Sampling(max_new_tokens=4, temperature=1, samples=2)
    assert list(continuations.batches(lengths, sampling)) == expected


@pytest.fixture
def sampling_words(exported: Callable[..., Exported], tmp_path: Path) -> tuple[object, ...]:
    """Return words of a command that continues two prompts of a file."""
    (tmp_path / "in.txt").write_text("The fox\nover\n")
    return ("generate", exported("plain").folder, "--prompts", tmp_path / "in.txt", "--max-new-tokens", 20)


def test_samples_of_a_file_differ(command: Command, sampling_words: tuple[object, ...]) -> None:
    _, printed, _ = command(*sampling_words, "--temperature", 5, "--samples", 3)
    lines = read_json_lines(printed)
    prompts_and_samples = [(line["prompt"], line["sample"]) for line in lines]
    assert prompts_and_samples == [(text, number) for text in ("The fox", "over") for number in range(3)]
    assert len({line["continuation"] for line in lines}) == 6


@pytest.mark.parametrize("option", [("--top-k", 1), ("--top-p", 1e-6)], ids=["top-k", "top-p"])
def test_top_k_and_top_p_can_leave_only_the_likeliest_token(
    command: Command, sampling_words: tuple[object, ...], option: tuple[str, float]
) -> None:
    _, greedy, _ = command(*sampling_words)
    first, second = (line["continuation"] for line in read_json_lines(greedy))
    _, printed, _ = command(*sampling_words, "--temperature", 5, "--samples", 3, *option)
    assert [line["continuation"] for line in read_json_lines(printed)] == [first] * 3 + [second] * 3


@pytest.mark.parametrize(
    ("encoding", "written"), [("utf-8", "Füchse"), ("UTF-8", "Füchse"), ("utf8", "Füchse"), ("latin-1", r"F\u00fcchse")]
)
def test_escapes_depend_on_the_encoding(
    exported: Callable[..., Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, written: str
) -> None:
    """PYTHONIOENCODING gives the name of standard output's encoding in any spelling."""
    (tmp_path / "in.txt").write_text("Füchse\n", encoding="utf-8")
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding=encoding, write_through=True))
    words = ("generate", exported("plain").folder, "--prompts", tmp_path / "in.txt", "--max-new-tokens", 1)
    assert run_command(*words) == 0
    assert output.getvalue().decode(encoding).startswith(f'{{"prompt": "{written}", ')


def json_lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def read_json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_an_empty_prompt(exported: Callable[..., Exported], command: Command, tmp_path: Path) -> None:
    """An empty prompt is the token that texts begin with, also in a file of prompts."""
    folder = exported("plain").folder
    ((expected,),) = continue_prompts(load_exported(folder), [Prompt([1])], Sampling(max_new_tokens=9))
    words = ("generate", folder, "--max-new-tokens", 9)
    files = {"in.txt": "over\n\nover", "in.jsonl": '{"prompt": "over"}\n{"prompt": ""}\n'}
    assert command(*words, "--prompt", "") == (0, f"{expected.text}\n", "")
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        _, printed, _ = command(*words, "--prompts", tmp_path / name)
        assert read_json_lines(printed)[1]["continuation"] == expected.text


class MessagesCase(NamedTuple):
    """A model with a chat template, and words of a command that continues a file of messages."""

    folder: Path
    prompts: Path
    words: tuple[object, ...]


@pytest.fixture
def messages_case(tmp_path: Path) -> MessagesCase:
    folder = save_beside_tokenizer(adopted({"qwen": write_qwen(tmp_path / "source")}, tmp_path, PLAIN))
    prompts = tmp_path / "in.jsonl"
    prompts.write_text(json_lines(MESSAGE_RECORDS))
    return MessagesCase(folder, prompts, ("generate", folder, "--max-new-tokens", 12, "--prompts", prompts))


def test_messages_in_a_file(command: Command, messages_case: MessagesCase) -> None:
    """Conversations continue from the template's tokens. They may be mixed with prompts in any order."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(messages_case.folder)
    loaded = load_exported(messages_case.folder)
    turn_end = frozenset({602})

    status, printed, errors = command(*messages_case.words)

    assert (status, errors) == (0, "")
    for record, line in zip(MESSAGE_RECORDS, read_json_lines(printed), strict=True):
        assert line.items() >= record.items()
        assert line["sample"] == 0
        if "messages" in record:
            ids = tokenizer.apply_chat_template(record["messages"], add_generation_prompt=True, return_dict=False)
        else:
            ids = tokenizer("over").input_ids
        ((expected,),) = continue_prompts(loaded, [Prompt(ids, turn_end)], Sampling(max_new_tokens=12))
        assert (line["continuation"], line["end"]) == expected


def test_messages_that_the_template_refuses(command: Command, messages_case: MessagesCase) -> None:
    template = "{{ raise_exception('no system') if messages[0].role == 'system' }}" + PLAIN
    (messages_case.folder / "chat_template.jinja").write_text(template)
    message = f"error: --prompts {messages_case.prompts}:2: the chat template fails: TemplateError: no system\n"
    assert command(*messages_case.words) == (2, "", message)


def test_messages_without_a_template_are_a_warning(command: Command, messages_case: MessagesCase) -> None:
    (messages_case.folder / "chat_template.jinja").unlink()
    status, _, errors = command(*messages_case.words)
    assert status == 0
    assert errors.count("\n") == 1
    assert errors.count(f"{messages_case.folder} has no chat template: conversations are written") == 1


def test_a_file_has_one_warning_beyond_the_positions(
    exported: Callable[..., Exported], command: Command, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("over\n" + "The fox " * 40)
    _, _, errors = command("generate", exported("plain").folder, "--prompts", tmp_path / "in.txt")
    assert errors.count("warning") == 1
