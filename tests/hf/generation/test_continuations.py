"""megatape generate: batches, streaming, stop strings, sampling, and refused input."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from megatape.commands.generation import continuations
from megatape.data.finetuning.chat import Chat
from megatape.data.finetuning.conversation import Conversation
from megatape.data.finetuning.format import Limits
from megatape.data.tokenizers.files import load_tokenizer
from megatape.errors import RecordError, UserError
from megatape.hf.exporting.exporter import export
from megatape.hf.generation.continuations import continue_prompts
from megatape.hf.generation.prompts import ConversationPrompts, Prompt, read_prompt
from megatape.hf.generation.sampling import Sampling
from megatape.hf.generation.streamed_text import Continuation
from megatape.hf.loading.exact_tokenizer import read_tokenizer
from megatape.hf.loading.load import load_exported, load_trained
from megatape.hf.loading.loaded_model import LoadedModel
from tests.helpers.data.conversations import MESSAGES, PLAIN, adopted, conversation
from tests.helpers.models.exports import Exported
from tests.helpers.models.imported import FAMILIES, write_llama3, write_qwen
from tests.helpers.models.memory_checkpoint import memory_checkpoint
from tests.helpers.models.tiny_models import save_tiny
from tests.helpers.processes.command import Command

PROMPTS = ["The fox", "over", "and then\n    the dog jumps\n    over the quick brown fox", "12345 times"]


@pytest.mark.parametrize("encoding", ["tape", "rope"])
def test_a_prompt(command: Command, tmp_path: Path, encoding: str) -> None:
    """Prompt and continuation are those of transformers; a seed is a text."""
    checkpoint, _ = memory_checkpoint(write_llama3(tmp_path / "llama3"), vocab_size=640, encoding=encoding)
    export(checkpoint, tmp_path / "out")
    status, printed, errors = command("generate", tmp_path / "out", "--prompt", "The fox", "--max-new-tokens", 20)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=encoding == "tape")
    expected = model.generate(**tokenizer("The fox", return_tensors="pt"), max_new_tokens=20)[0]
    assert (status, printed, errors) == (0, tokenizer.decode(expected, skip_special_tokens=True) + "\n", "")
    assert printed.startswith("The fox")
    assert len(printed) > 8
    sample: tuple[Any, ...] = ("generate", tmp_path / "out", "--prompt", "The fox", "--max-new-tokens", 9)
    sample += ("--temperature", 2, "--samples", 2, "--seed")
    first, again, other = (command(*sample, seed)[1] for seed in (1, 1, 2))
    assert first == again != other
    texts = first.removeprefix("--- 1 ---\n").split("--- 2 ---\n")
    assert len(texts) == 2
    assert texts[0] != texts[1]
    assert all(text.startswith("The fox") for text in texts)


@pytest.mark.parametrize("encoding", ["tape", "randpe"])
def test_a_file_gives_what_each_prompt_gives_alone(
    exported: Callable[..., Exported], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """With 60 new tokens some texts are longer than RandPE's training samples, and others are not."""
    folder = exported("grouped", encoding).folder
    monkeypatch.setattr(continuations, "BATCH_TOKENS", 200)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"prompt": text, "id": len(text)}) + "\n" for text in PROMPTS))
    words = ("generate", folder, "--max-new-tokens", 60)
    assert command(*words, "--prompts", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl")[:2] == (0, "")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["prompt"], line["id"], line["sample"], line["end"]) for line in lines] == [
        (text, len(text), 0, "length") for text in PROMPTS
    ]
    for line in lines:
        assert command(*words, "--prompt", line["prompt"])[1] == line["prompt"] + line["continuation"] + "\n"
    assert command(*words, "--prompts", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl")[0] == 2


def test_batches_hold_so_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuations, "BATCH_TOKENS", 40)
    sampling = Sampling(max_new_tokens=4, temperature=1, samples=2)
    for lengths, expected in (
        ([6], [(0, 1)]),
        ([6, 6, 6, 7, 6], [(0, 2), (2, 3), (3, 4), (4, 5)]),
        ([50, 50], [(0, 1), (1, 2)]),
    ):
        assert list(continuations.batches(lengths, sampling)) == expected


def test_samples_of_a_file(exported: Callable[..., Exported], command: Command, tmp_path: Path) -> None:
    """Top-k 1 and a tiny top-p leave the likeliest token only; without them samples differ."""
    folder = exported("plain").folder
    (tmp_path / "in.txt").write_text("The fox\nover\n")
    words = ("generate", folder, "--prompts", tmp_path / "in.txt", "--max-new-tokens", 20)
    greedy = command(*words)[1]
    likeliest = [json.loads(line)["continuation"] for line in greedy.splitlines()]
    sample = (*words, "--temperature", 5, "--samples", 3)
    for options in (("--top-k", 1), ("--top-p", 1e-6), ()):
        lines = [json.loads(line) for line in command(*sample, *options)[1].splitlines()]
        assert [(line["prompt"], line["sample"]) for line in lines] == [
            (text, number) for text in ("The fox", "over") for number in range(3)
        ]
        found = [line["continuation"] for line in lines]
        if options:
            assert found == [likeliest[0]] * 3 + [likeliest[1]] * 3
        else:
            assert len(set(found)) == 6


class Script:
    """Model that continues each prompt of a batch with scripted ids, then with 5s."""

    device = torch.device("cpu")

    def __init__(self, rows: list[list[int]], ends: int | list[int] | None) -> None:
        self.rows = rows
        self.generation_config = GenerationConfig(eos_token_id=ends)

    def generate(self, tokens: Tensor, stopping_criteria: list[Any], max_new_tokens: int, **options: Any) -> Tensor:
        done = torch.zeros(len(self.rows), dtype=torch.bool)
        for step in range(max_new_tokens):
            column = torch.tensor([row[step] if step < len(row) else 5 for row in self.rows])
            tokens = torch.cat([tokens, column.where(~done, options["pad_token_id"])[:, None]], dim=1)
            done |= stopping_criteria[0](tokens, None)
            if done.all():
                break
        return tokens


@pytest.mark.parametrize("own", [True, False], ids=["exported", "llama2"])
def test_characters_after_a_stray_byte_are_shown_as_they_come(
    exported: Callable[..., Exported], tmp_path: Path, own: bool
) -> None:
    """The tokenizers library alone would hold these characters back and then replace all of them."""
    folder = exported("plain").folder if own else FAMILIES["llama2"](tmp_path / "llama2")
    tokenizer = read_tokenizer(folder)
    row = tokenizer.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in b"\xe4" + "你好".encode()])
    pieces: list[str] = []
    sampling = Sampling(max_new_tokens=len(row))
    model = LoadedModel("a script", Script([row], None), tokenizer)
    ((found,),) = continue_prompts(model, [Prompt([7, 8])], sampling, pieces.append)
    assert found.text == "\ufffd你好"
    assert [piece for piece in pieces if piece] == ["\ufffd你", "好"]


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_shown_as_it_comes(family: str, tmp_path: Path) -> None:
    """Never a part of a character, nor of a stop string; the pieces are the text."""
    tokenizer = read_tokenizer(FAMILIES[family](tmp_path / family))
    letter = tokenizer("a", add_special_tokens=False).input_ids

    def ids(text: str) -> list[int]:
        """Those after another text, so that a space at the beginning stays."""
        found: list[int] = tokenizer("a" + text, add_special_tokens=False).input_ids
        assert found[: len(letter)] == letter
        return found[len(letter) :]

    def run(row: list[int], stop: tuple[str, ...] = (), end: int | None = None) -> tuple[list[str], Continuation]:
        model = Script([row if end is None else [*row, end]], end)
        sampling = Sampling(max_new_tokens=len(model.rows[0]), stop=stop)
        pieces: list[str] = []
        ((found,),) = continue_prompts(LoadedModel("a script", model, tokenizer), [Prompt([7, 8])], sampling, pieces.append)
        assert "".join(pieces) == found.text
        return [piece for piece in pieces if piece], found

    text = " statement\n漢字 \U0001f600 é, the end"
    pieces, found = run(ids(text))
    assert found == (text, "length")
    assert len(pieces) > 5
    assert not any("\ufffd" in piece for piece in pieces)
    assert run(ids(text), end=3)[1] == (text, "end token")
    special = tokenizer.eos_token_id  # the model goes on after it, and it is no text
    assert run([*ids(" over"), special, *ids(" the")])[1] == (" over the", "length")
    cuts = {("the e",): text[: text.index("the e")], ("é", "字"): " statement\n漢", ("t", "s"): " ", ("not there",): text}
    for stop, cut in cuts.items():
        assert run(ids(text), stop, end=3)[1] == (cut, "end token" if cut == text else "stop string")
    pieces, found = run(ids(" an ENd, an ENDX"), ("END",))  # what only begins a stop string is shown later
    assert found == (" an ENd, an ", "stop string")


def test_stop_strings_end_each_text_of_a_batch(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(FAMILIES["qwen"](tmp_path / "qwen"))
    model = Script([tokenizer(text).input_ids for text in ("one. two", "and more than that", "1.")], None)
    (first,), (second,), (third,) = continue_prompts(
        LoadedModel("a script", model, tokenizer), [Prompt([7]), Prompt([7, 8]), Prompt([9])], Sampling(stop=(".", "than"))
    )
    assert (first, second, third) == (("one", "stop string"), ("and more ", "stop string"), ("1", "stop string"))


def test_each_text_of_a_batch_ends_at_its_own_tokens(tmp_path: Path) -> None:
    """The token after an answer ends a conversation's answer, not the text of a prompt beside it."""
    tokenizer = read_tokenizer(FAMILIES["qwen"](tmp_path / "qwen"))
    (over,) = tokenizer("x").input_ids
    model = Script([[over, 602, over], [over, 602, over]], 600)
    (first,), (second,) = continue_prompts(
        LoadedModel("a script", model, tokenizer), [Prompt([7]), Prompt([7], frozenset({602}))], Sampling(max_new_tokens=3)
    )
    assert (first, second) == (("xx", "length"), ("x", "end token"))


def test_an_empty_prompt(exported: Callable[..., Exported], command: Command, tmp_path: Path) -> None:
    """An empty prompt is the token that texts begin with, also in a file of prompts."""
    folder = exported("plain").folder
    loaded = load_exported(folder)
    ((expected,),) = continue_prompts(loaded, [Prompt([1])], Sampling(max_new_tokens=9))
    words = ("generate", folder, "--max-new-tokens", 9)
    assert command(*words, "--prompt", "") == (0, f"{expected.text}\n", "")
    for name, content in (("in.txt", "over\n\nover"), ("in.jsonl", '{"prompt": "over"}\n{"prompt": ""}\n')):
        (tmp_path / name).write_text(content)
        lines = command(*words, "--prompts", tmp_path / name)[1].splitlines()
        assert json.loads(lines[1])["continuation"] == expected.text


def test_an_empty_prompt_without_a_token_before_texts(command: Command, tmp_path: Path) -> None:
    """The declared beginning token is used. Without one the model has nothing to start from."""
    folder = save_model(write_qwen(tmp_path / "qwen"))
    status, _, errors = command("generate", folder, "--prompt", "")
    assert status == 2
    assert errors.endswith(f"--prompt is empty, and {folder} has no token to begin with: give at least one character\n")
    (tmp_path / "in.txt").write_text("a\n\nb\n")
    assert f"in.txt:2: prompt is empty, and {folder}" in command("generate", folder, "--prompts", tmp_path / "in.txt")[2]
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"bos_token": "<|im_start|>"}))
    assert read_prompt(load_exported(folder), "").ids == [601]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("remote", [False, True])
def test_special_tokens_in_a_prompt_are_text(family: str, remote: bool, tmp_path: Path) -> None:
    """Prompts are tokenized as in training, even with a tokenizer loaded by transformers."""
    folder = save_model(FAMILIES[family](tmp_path / family))
    tokenizer = load_tokenizer(folder)
    loaded = load_exported(folder, trust_remote_code=remote)
    text = "".join(["a", *tokenizer.special_texts, " b"])  # type: ignore[attr-defined]
    ids = read_prompt(loaded, text).ids[len(tokenizer.begin) :]
    assert not {*ids} & {*load_exported(folder).tokenizer.all_special_ids}
    assert ids == tokenizer.encode(text) or remote  # transformers normalizes by the class of the model


def test_messages_in_a_file(command: Command, tmp_path: Path) -> None:
    """Conversations continue from the template's tokens. They may be mixed with prompts in any order."""
    folder = save_model(adopted({"qwen": write_qwen(tmp_path / "source")}, tmp_path, PLAIN))
    records: list[dict[str, Any]] = [{"prompt": "over"}, {"messages": MESSAGES[:2], "id": 7}, {"messages": MESSAGES[:4]}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    words = ("generate", folder, "--max-new-tokens", 12, "--prompts")
    status, printed, errors = command(*words, tmp_path / "in.jsonl")
    assert (status, errors) == (0, "")
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    loaded = load_exported(folder)
    turn_end = frozenset({602})
    for record, line in zip(records, map(json.loads, printed.splitlines()), strict=True):
        assert line.items() >= record.items()
        assert line["sample"] == 0
        if "messages" in record:
            ids = theirs.apply_chat_template(record["messages"], add_generation_prompt=True, return_dict=False)
        else:
            ids = theirs("over").input_ids
        ((expected,),) = continue_prompts(loaded, [Prompt(ids, turn_end)], Sampling(max_new_tokens=12))
        assert (line["continuation"], line["end"]) == expected
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no system') if messages[0].role == 'system' }}" + PLAIN)
    message = f"error: --prompts {tmp_path}/in.jsonl:2: the chat template fails: TemplateError: no system\n"
    assert command(*words, tmp_path / "in.jsonl") == (2, "", message)
    (folder / "chat_template.jinja").unlink()
    status, _, errors = command(*words, tmp_path / "in.jsonl")
    assert status == 0
    assert errors.count("\n") == errors.count(f"{folder} has no chat template: conversations are written") == 1


def save_model(folder: Path) -> Path:
    """Add a model with random weights to the folder of a tokenizer. Its config declares no end token."""
    generation = folder / "generation_config.json"
    kept = generation.read_bytes() if generation.exists() else b"{}"
    save_tiny("qwen2", folder, vocab_size=640)
    generation.write_bytes(kept)
    return folder


def test_interactive(exported: Callable[..., Exported], command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are continued until the end of the input. A line that is not UTF-8 is skipped."""
    words = ("generate", exported("plain").folder, "--max-new-tokens", 30)
    expected = [command(*words, "--prompt", text)[1].removeprefix(text) for text in ("The fox", "over")]
    for typed, num_errors in ((b"The fox\n\nover", 0), (b"The fox\n\xff\nover", 1)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8"))
        status, printed, errors = command(*words, "--interactive")
        assert (status, printed, errors.count("\n")) == (0, "".join(expected), num_errors)
        assert errors.startswith("error: a line '\\udcff' is not valid UTF-8"[: 999 * num_errors])


def test_a_terminal_without_the_texts_letters(
    exported: Callable[..., Exported], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text is escaped, JSON stays JSON, and fields of a prompt file are returned."""
    folder = exported("plain").folder
    words = ("--max-new-tokens", 1)
    record = {"prompt": "für", "key": "\ud800"}
    (tmp_path / "in.jsonl").write_text(json.dumps(record))
    for source in (["--prompt", "für"], ["--prompts", tmp_path / "in.jsonl"]):
        shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", shown)
        assert command("generate", folder, *source, *words)[0] == 0
        text = cast(io.BytesIO, shown.buffer).getvalue().decode()
        if source[0] == "--prompt":
            assert text.startswith("f\\xfcr")
        else:
            assert json.loads(text).items() >= record.items()
    assert command("generate", folder, *source, *words, "--output", tmp_path / "out.jsonl")[0] == 0
    written = (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    assert "für" in written
    assert json.loads(written).items() >= record.items()


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


def test_a_warning_beyond_the_positions(exported: Callable[..., Exported], command: Command, tmp_path: Path) -> None:
    folder = exported("plain").folder
    num_tokens = len(load_exported(folder).tokenizer("The fox").input_ids)
    fits, more = (command("generate", folder, "--prompt", "The fox", "--max-new-tokens", 64 - num_tokens + by) for by in (0, 1))
    assert fits[2] == ""
    assert more[0] == 0
    assert more[2] == (
        f"warning: a prompt of {num_tokens} tokens and --max-new-tokens {65 - num_tokens} make 65, but {folder} is made for 64 "
        "(max_positions): what comes after them may be worthless\n"
    )
    (tmp_path / "in.txt").write_text("over\n" + "The fox " * 40)
    assert command("generate", folder, "--prompts", tmp_path / "in.txt")[2].count("warning") == 1


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
        (["--prompt", "a", "--base", "."], "is no checkpoint that holds only what was trained: leave out --base"),
        (["--prompts", "nowhere.txt"], "nowhere.txt"),
        (["--prompts", "in.csv"], "--prompts in.csv: give a .jsonl file"),
    ],
)
def test_bad_input(
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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.jsonl", b"", "is empty: give at least one prompt"),
        ("in.txt", b"\n\n", "is empty: give at least one prompt"),
        ("in.txt", b"a\xff\n", "is not UTF-8 text"),
        (
            "in.jsonl",
            b'{"prompt": "a"}\n{"text": "a"}\n',
            'in.jsonl:2: no object with either a text "prompt" or "messages": {',
        ),
        ("in.jsonl", b'{"prompt": "a", "messages": []}\n', "in.jsonl:1: no object with either"),
        ("in.jsonl", b'\n{"messages": []}\n', "in.jsonl:1: not JSON"),
        ("in.jsonl", b'{"messages": []}\n', "in.jsonl:1: `messages` is [], not a list of messages"),
        (
            "in.jsonl",
            b'{"prompt": "a"}\n{"messages": [{"role": "function", "content": "a"}]}',
            "in.jsonl:2: message 1: `role` is 'function', not one of system, user, assistant, tool",
        ),
        ("in.jsonl", b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "in.jsonl:1: message 1 '\\ud800' is not valid"),
        (
            "in.jsonl",
            b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
            "in.jsonl:1: the last message is from the assistant: end with a message from the user",
        ),
        ("in.jsonl", b'{"prompt": 7}\n', "in.jsonl:1: no object"),
        ("in.jsonl", b'{"prompt": "\\ud800"}\n', "in.jsonl:1: the prompt '\\ud800' is not valid UTF-8"),
        ("in.jsonl", b'["prompt"]\n', "in.jsonl:1: no object"),
        ("in.jsonl", b"{prompt\n", "in.jsonl:1: not JSON"),
    ],
)
def test_files_that_are_refused(command: Command, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """Files are checked before the model is loaded."""
    (tmp_path / name).write_bytes(content)
    status, printed, errors = command("generate", "nowhere", "--prompts", tmp_path / name)
    assert (status, printed, errors.count("\n")) == (2, "", 1), errors
    assert message in errors, errors


def texts_of(folder: Path) -> LoadedModel:
    """Return the tokenizer of a folder, without a model."""
    return LoadedModel(str(folder), None, None, folder)


def learned_prompts(tokenizer: Path, messages: list[dict[str, Any]]) -> list[list[int]]:
    """Return the tokens before each answer, as prepared for fine-tuning."""
    example = Chat(load_tokenizer(tokenizer), Limits(512)).example(conversation(messages))
    return [example.ids[:begin] for begin, _ in example.answers]


def test_a_checkpoint_and_its_export(tmp_path: Path) -> None:
    """An export keeps the chat template, and prompts have the tokens of the fine-tuning data."""
    source = adopted({"qwen": write_qwen(tmp_path / "source")}, tmp_path, PLAIN)
    checkpoint, _ = memory_checkpoint(source, vocab_size=640)
    export(checkpoint, tmp_path / "out")
    with load_trained(tmp_path / "out") as loaded:
        prompts = ConversationPrompts(loaded)
        for index, expected in zip((2, 4), learned_prompts(source, MESSAGES), strict=True):
            assert prompts.prompt(Conversation(MESSAGES[:index])).ids == expected


@pytest.mark.parametrize("family", ["sentencepiece", "qwen"])
def test_models_without_a_template(
    exported: Callable[..., Exported], sentencepiece_model: Path, tmp_path: Path, family: str
) -> None:
    """These models get fine-tuning's own format, whose answers are separately tokenized."""
    source = folder = write_qwen(tmp_path / "qwen")
    if family == "sentencepiece":
        source = sentencepiece_model
        folder = exported("plain").folder
    prompts = ConversationPrompts(texts_of(folder))
    for index, expected in zip((2, 4), learned_prompts(source, MESSAGES), strict=True):
        assert prompts.prompt(Conversation(MESSAGES[:index])).ids == expected
    typed = [{"role": "user", "content": "</s><s><|im_end|>"}]
    tokenizer = load_tokenizer(source)
    assert prompts.prompt(Conversation(typed)).ids == [
        *tokenizer.begin,
        *tokenizer.encode("User: </s><s><|im_end|>\nAssistant:"),
    ]


def test_a_template_beside_an_export(exported: Callable[..., Exported], sentencepiece_model: Path, tmp_path: Path) -> None:
    """The template's beginning and end tokens are tokens, although our tokenizer.json does not mark them."""
    checkpoint, _ = memory_checkpoint(sentencepiece_model)
    export(checkpoint, tmp_path / "out")
    (tmp_path / "out" / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for message in messages %}[{{ message.content }}]{{ eos_token }}{% endfor %}"
    )
    prompts = ConversationPrompts(texts_of(tmp_path / "out"))
    tokenizer = load_tokenizer(sentencepiece_model)
    found = prompts.prompt(Conversation([{"role": "user", "content": "<s>over</s>"}]))
    assert found.ids == [tokenizer.bos_id, *tokenizer.encode("[<s>over</s>]"), tokenizer.eos_id]
    assert found.ends == {tokenizer.eos_id}


def test_what_is_refused(tmp_path: Path) -> None:
    folder = adopted({"qwen": write_qwen(tmp_path / "source")}, tmp_path, PLAIN)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    with pytest.raises(RecordError, match="the chat template fails: TemplateError: no"):
        ConversationPrompts(texts_of(folder)).prompt(Conversation(MESSAGES[:2]))
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(UserError, match="a model/chat_template.jinja: the chat template is not Jinja"):
        ConversationPrompts(LoadedModel("a model", None, None, folder))
