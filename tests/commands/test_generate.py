"""`megatape generate`: options, prompts in the terminal, and samples. Generated tokens are tested beside the model."""

import io
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from megatape.errors import UserError
from megatape.hf.exporting.exporter import export
from megatape.hf.loading.load import load_exported
from tests.helpers.models.exports import Exported
from tests.helpers.models.imported import write_llama3, write_qwen
from tests.helpers.models.memory_checkpoint import memory_checkpoint
from tests.helpers.models.tiny_models import save_beside_tokenizer
from tests.helpers.processes.command import Command
from tests.helpers.processes.without_torch import errors_without_torch

# Words -> part of the error line
BAD_INPUT = {
    "--prompts nowhere.jsonl": "--prompts nowhere.jsonl: no such file: give a .jsonl or .txt file",
    "--prompts bad.jsonl": "--prompts bad.jsonl:2: not JSON",
    "--prompts role.jsonl": "--prompts role.jsonl:1: message 1: `role` is 'function', not one of system, user, assistant, tool",
    "--prompt a --max-new-tokens 0": "--max-new-tokens: must be greater than or equal to 1, got '0'",
    "--prompt a --stop ''": "--stop is '': give at least one character",
    "--chat --conversation bad.jsonl": "bad.jsonl is not a conversation",
    "--chat --conversation role.jsonl": "role.jsonl is not a conversation",
    "--chat --conversation nowhere/talk.json": "--conversation nowhere/talk.json: nowhere is not a folder: create it, or give",
    "--chat --conversation list.json": 'list.json is not a conversation {"messages": [...]} (must be an object',
    "--chat --conversation open.json": 'open.json is not a conversation {"messages": [...]} (its last message is from the user',
    "--chat --conversation tools.json": "it has tools or weights, which would be lost when the chat is saved",
    "--chat --conversation weights.json": "it has tools or weights, which would be lost when the chat is saved",
    "--chat --conversation .": "Is a directory",
    "--chat --system f\udcfcr": "--system 'f\\udcfcr' is not valid UTF-8",
}


def test_bad_texts_need_no_torch(tmp_path: Path) -> None:
    """Importing torch and transformers takes seconds. A user must not wait for them to learn of a misspelled name."""
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{\n')
    (tmp_path / "role.jsonl").write_text('{"messages": [{"role": "function", "content": "a"}]}')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "open.json").write_text('{"messages": [{"role": "user", "content": "a"}]}')
    exchange = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "tools.json").write_text(json.dumps({"messages": exchange, "tools": [{"type": "function"}]}))
    (tmp_path / "weights.json").write_text(json.dumps({"messages": [exchange[0], exchange[1] | {"weight": 0}]}))
    commands = [["generate", "model", *shlex.split(words)] for words in BAD_INPUT]
    errors = errors_without_torch(commands, tmp_path)
    for (words, message), error in zip(BAD_INPUT.items(), errors, strict=True):
        assert message in error, words


@pytest.mark.parametrize("encoding", ["tape", "rope"])
def test_a_prompt_continues_as_in_transformers(command: Command, tmp_path: Path, encoding: str) -> None:
    folder = export_llama3(tmp_path, encoding)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=encoding == "tape")
    tokens = model.generate(**tokenizer("The fox", return_tensors="pt"), max_new_tokens=20)[0]
    expected = tokenizer.decode(tokens, skip_special_tokens=True)

    status, printed, errors = command("generate", folder, "--prompt", "The fox", "--max-new-tokens", 20)

    assert (status, printed, errors) == (0, f"{expected}\n", "")
    assert printed.startswith("The fox")
    assert len(printed) > 8


@pytest.mark.parametrize("encoding", ["tape", "rope"])
def test_a_seed_determines_the_samples(command: Command, tmp_path: Path, encoding: str) -> None:
    folder = export_llama3(tmp_path, encoding)

    def sample(seed: int) -> str:
        words = ("--prompt", "The fox", "--max-new-tokens", 9, "--temperature", 2, "--samples", 2, "--seed", seed)
        _, printed, _ = command("generate", folder, *words)
        return printed

    printed = sample(seed=1)
    assert sample(seed=1) == printed
    assert sample(seed=2) != printed
    first, second = printed.removeprefix("--- 1 ---\n").split("--- 2 ---\n")
    assert first.startswith("The fox")
    assert second.startswith("The fox")
    assert first != second


def export_llama3(tmp_path: Path, encoding: str) -> Path:
    checkpoint, _ = memory_checkpoint(write_llama3(tmp_path / "llama3"), vocab_size=640, encoding=encoding)
    export(checkpoint, tmp_path / "out")
    return tmp_path / "out"


def test_an_empty_prompt_needs_a_token_to_begin_with(command: Command, tmp_path: Path) -> None:
    folder = save_beside_tokenizer(write_qwen(tmp_path / "qwen"))
    (tmp_path / "in.txt").write_text("a\n\nb\n")

    status, _, errors = command("generate", folder, "--prompt", "")
    _, _, file_errors = command("generate", folder, "--prompts", tmp_path / "in.txt")

    assert status == 2
    assert errors.endswith(f"--prompt is empty, and {folder} has no token to begin with: give at least one character\n")
    assert f"in.txt:2: prompt is empty, and {folder}" in file_errors


@pytest.mark.parametrize(
    ("typed", "error_start"),
    [(b"The fox\n\nover", ""), (b"The fox\n\xff\nover", "error: a line '\\udcff' is not valid UTF-8")],
    ids=["UTF-8", "a line that is not UTF-8"],
)
def test_interactive(
    exported: Callable[..., Exported],
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    typed: bytes,
    error_start: str,
) -> None:
    """Lines are continued until the end of the input. A line that is not UTF-8 is skipped."""
    words = ("generate", exported("plain").folder, "--max-new-tokens", 30)
    expected = ""
    for text in ("The fox", "over"):
        _, printed, _ = command(*words, "--prompt", text)
        expected += printed.removeprefix(text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8"))

    status, printed, errors = command(*words, "--interactive")

    assert (status, printed) == (0, expected)
    if error_start:
        assert errors.startswith(error_start)
        assert errors.count("\n") == 1
    else:
        assert errors == ""


def test_beyond_the_positions_that_are_drawn(exported: Callable[..., Exported], command: Command) -> None:
    """RandPE draws from twice as many positions as the longest training sample has, and uses each once in a text."""
    folder = exported("grouped", "randpe").folder
    status, _, errors = command("generate", folder, "--prompt", "The fox", "--max-new-tokens", 125)
    assert status == 2
    assert errors.startswith(f"error: {folder} draws from 128 positions, too few")
    assert errors.count("\n") == 1
    loaded = load_exported(folder)
    assert loaded.logits(torch.zeros(1, 128, dtype=torch.long)).shape[1] == 128
    with pytest.raises(UserError, match="too few for a text of 129 tokens: shorten it"):
        loaded.logits(torch.zeros(1, 129, dtype=torch.long))


def test_a_warning_beyond_the_positions(exported: Callable[..., Exported], command: Command) -> None:
    folder = exported("plain").folder
    num_prompt_tokens = len(load_exported(folder).tokenizer("The fox").input_ids)
    num_free = 64 - num_prompt_tokens
    words = ("generate", folder, "--prompt", "The fox", "--max-new-tokens")

    _, _, errors_of_fitting = command(*words, num_free)
    status, _, errors = command(*words, num_free + 1)

    assert errors_of_fitting == ""
    assert status == 0
    assert errors == (
        f"warning: a prompt of {num_prompt_tokens} tokens and {num_free + 1} new ones make 65, but {folder} is made "
        "for 64 (max_positions): output beyond that may be poor\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", "a", "--system", "a"], "--system only works with --chat: give --chat, or leave it out"),
        (["--prompt", "a", "--conversation", "a"], "--conversation only works with --chat"),
        (["--chat", "--temperature", "1", "--samples", "2"], "--samples is 2, but a conversation continues with one answer"),
        (["--prompt", "\udcff"], "--prompt '\\udcff' is not valid UTF-8"),
        (["--prompt", "a", "--max-new-tokens", "0"], "--max-new-tokens: must be greater than or equal to 1, got '0'"),
        (["--prompt", "a", "--max-new-tokens", "9999999"], "--max-new-tokens: must be less than or equal to 1048576, got"),
        (["--prompt", "a", "--temperature", "-1"], "--temperature is '-1': give 0"),
        (["--prompt", "a", "--temperature", "nan"], "--temperature: must be a finite number, got 'nan'"),
        (["--prompt", "a", "--temperature", "1e-300"], "--temperature is '1e-300': give 0 for the likeliest text, or 1e-06 to"),
        (["--prompt", "a", "--temperature", "1e300"], "--temperature is '1e300'"),
        (
            ["--prompt", "a", "--temperature", "1", "--samples", "9999999"],
            "--samples: must be less than or equal to 16384, got",
        ),
        (["--prompt", "a", "--temperature", "1", "--top-k", "0"], "--top-k: must be greater than or equal to 1, got"),
        (["--prompt", "a", "--temperature", "1", "--top-p", "1.5"], "--top-p: must be less than or equal to 1, got"),
        (["--prompt", "a", "--temperature", "1", "--top-p", "0"], "--top-p: must be greater than 0, got"),
        (["--prompt", "a", "--top-p", "0.9"], "--top-p 0.9 has no effect on the likeliest text: give --temperature above 0"),
        (["--prompt", "a", "--samples", "2"], "--samples 2 has no effect"),
        (["--prompt", "a", "--samples", "0"], "--samples: must be greater than or equal to 1, got"),
        (["--prompt", "a", "--seed", "-1"], "--seed: must be greater than or equal to 0, got"),
        (["--prompt", "a", "--stop", ""], "--stop is '': give at least one character"),
        (["--prompt", "a", "--stop", "\udcff"], "--stop is '\\udcff': the text '\\udcff' is not valid UTF-8"),
        (["--prompt", "a", "--temperature", "1", "--seed", str(2**63)], "--seed: must be less than 9223372036854775808, got"),
        (["--prompt", "a", "--top-k", "3"], "--top-k 3 has no effect"),
        (["--prompt", "a", "--output", "out"], "--output only works with --prompts"),
        (["--prompt", "a", "--base", "."], "is not a checkpoint that holds only what was trained: leave out --base"),
        (["--prompts", "nowhere.txt"], "nowhere.txt"),
        (["--prompts", "in.csv"], "--prompts in.csv: give a .jsonl file"),
    ],
)
def test_invalid_options_are_refused(
    exported: Callable[..., Exported],
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, printed, errors = command("generate", exported("plain").folder, *words)
    assert (status, printed, errors.count("\n")) == (2, "", 1), errors
    assert message in errors, errors
