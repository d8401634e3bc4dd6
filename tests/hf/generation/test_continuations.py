"""megatape generate: batches, streaming, stop strings, sampling, and refused input."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

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


def json_lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def read_json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


class Script:
    """Model that continues each prompt of a batch with scripted ids, then with 5s."""

    device = torch.device("cpu")

    def __init__(self, rows: list[list[int]], ends: int | list[int] | None) -> None:
        self.rows = rows
        self.generation_config = GenerationConfig(eos_token_id=ends)

    def generate(self, tokens: Tensor, stopping_criteria: list[Any], max_new_tokens: int, **options: Any) -> Tensor:
        done = torch.zeros(len(self.rows), dtype=torch.bool)
        for step in range(max_new_tokens):
            column = torch.tensor([self._token(row, step) for row in self.rows])
            column = column.where(~done, options["pad_token_id"])
            tokens = torch.cat([tokens, column[:, None]], dim=1)
            done |= stopping_criteria[0](tokens, None)
            if done.all():
                break
        return tokens

    def _token(self, row: list[int], step: int) -> int:
        if step < len(row):
            return row[step]
        return 5


class Streamed(NamedTuple):
    """A continuation, and the pieces of its text as they were shown, without empty ones."""

    continuation: Continuation
    pieces: list[str]


def stream(tokenizer: PreTrainedTokenizerBase, row: list[int], stop: tuple[str, ...] = (), end: int | None = None) -> Streamed:
    """Continue a prompt with scripted ids, and then with the token `end`."""
    if end is not None:
        row = [*row, end]
    model = LoadedModel("a script", Script([row], end), tokenizer)
    pieces: list[str] = []
    sampling = Sampling(max_new_tokens=len(row), stop=stop)
    ((continuation,),) = continue_prompts(model, [Prompt([7, 8])], sampling, pieces.append)
    assert "".join(pieces) == continuation.text
    return Streamed(continuation, [piece for piece in pieces if piece])


def ids_after_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of a text that follows another text, so that a leading space stays."""
    letter: list[int] = tokenizer("a", add_special_tokens=False).input_ids
    ids: list[int] = tokenizer(f"a{text}", add_special_tokens=False).input_ids
    assert ids[: len(letter)] == letter
    return ids[len(letter) :]


@pytest.fixture(params=["exported", "llama2"])
def byte_tokenizer(
    request: pytest.FixtureRequest, exported: Callable[..., Exported], tmp_path: Path
) -> PreTrainedTokenizerBase:
    """Return a tokenizer with a token for each byte."""
    if request.param == "exported":
        return read_tokenizer(exported("plain").folder)
    return read_tokenizer(FAMILIES["llama2"](tmp_path / "llama2"))


def test_characters_after_a_stray_byte_are_shown_as_they_come(byte_tokenizer: PreTrainedTokenizerBase) -> None:
    """The tokenizers library alone would hold these characters back and then replace all of them."""
    content = b"\xe4" + "你好".encode()
    row = byte_tokenizer.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in content])
    assert isinstance(row, list)
    streamed = stream(byte_tokenizer, row)
    assert streamed.continuation.text == "\ufffd你好"
    assert streamed.pieces == ["\ufffd你", "好"]


TEXT = " statement\n漢字 \U0001f600 é, the end"
# Stop strings -> the text before the first one
STOPPED = {("the e",): TEXT[: TEXT.index("the e")], ("é", "字"): " statement\n漢", ("t", "s"): " "}


@pytest.fixture(params=FAMILIES)
def family_tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> PreTrainedTokenizerBase:
    return read_tokenizer(FAMILIES[request.param](tmp_path / request.param))


def test_text_is_shown_by_whole_characters(family_tokenizer: PreTrainedTokenizerBase) -> None:
    streamed = stream(family_tokenizer, ids_after_text(family_tokenizer, TEXT))
    assert streamed.continuation == (TEXT, "length")
    assert len(streamed.pieces) > 5
    assert [piece for piece in streamed.pieces if "\ufffd" in piece] == []


def test_an_end_token_ends_the_text(family_tokenizer: PreTrainedTokenizerBase) -> None:
    streamed = stream(family_tokenizer, ids_after_text(family_tokenizer, TEXT), end=3)
    assert streamed.continuation == (TEXT, "end token")


def test_special_tokens_that_end_nothing_are_not_shown(family_tokenizer: PreTrainedTokenizerBase) -> None:
    over = ids_after_text(family_tokenizer, " over")
    the = ids_after_text(family_tokenizer, " the")
    special = family_tokenizer.eos_token_id
    assert isinstance(special, int)
    assert stream(family_tokenizer, [*over, special, *the]).continuation == (" over the", "length")


def test_the_first_stop_string_ends_the_text(family_tokenizer: PreTrainedTokenizerBase) -> None:
    row = ids_after_text(family_tokenizer, TEXT)
    for stop, text in STOPPED.items():
        assert stream(family_tokenizer, row, stop, end=3).continuation == (text, "stop string")
    assert stream(family_tokenizer, row, ("not there",), end=3).continuation == (TEXT, "end token")


def test_the_start_of_a_stop_string_is_shown_later(family_tokenizer: PreTrainedTokenizerBase) -> None:
    row = ids_after_text(family_tokenizer, " an ENd, an ENDX")
    assert stream(family_tokenizer, row, ("END",)).continuation == (" an ENd, an ", "stop string")


@pytest.fixture
def qwen_tokenizer(tmp_path: Path) -> PreTrainedTokenizerBase:
    return read_tokenizer(FAMILIES["qwen"](tmp_path / "qwen"))


def test_stop_strings_end_each_text_of_a_batch(qwen_tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [qwen_tokenizer(text).input_ids for text in ("one. two", "and more than that", "1.")]
    model = LoadedModel("a script", Script(rows, None), qwen_tokenizer)
    prompts = [Prompt([7]), Prompt([7, 8]), Prompt([9])]
    (first,), (second,), (third,) = continue_prompts(model, prompts, Sampling(stop=(".", "than")))
    assert first == ("one", "stop string")
    assert second == ("and more ", "stop string")
    assert third == ("1", "stop string")


def test_each_text_of_a_batch_ends_at_its_own_tokens(qwen_tokenizer: PreTrainedTokenizerBase) -> None:
    """The token after an answer ends a conversation's answer, not the text of a prompt beside it."""
    turn_end = 602
    (x,) = qwen_tokenizer("x").input_ids
    row = [x, turn_end, x]
    model = LoadedModel("a script", Script([row, row], 600), qwen_tokenizer)
    prompts = [Prompt([7]), Prompt([7], frozenset({turn_end}))]
    (text,), (answer,) = continue_prompts(model, prompts, Sampling(max_new_tokens=3))
    assert text == ("xx", "length")
    assert answer == ("x", "end token")


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


def test_an_empty_prompt_needs_a_token_to_begin_with(command: Command, tmp_path: Path) -> None:
    folder = save_model(write_qwen(tmp_path / "qwen"))
    (tmp_path / "in.txt").write_text("a\n\nb\n")

    status, _, errors = command("generate", folder, "--prompt", "")
    _, _, file_errors = command("generate", folder, "--prompts", tmp_path / "in.txt")

    assert status == 2
    assert errors.endswith(f"--prompt is empty, and {folder} has no token to begin with: give at least one character\n")
    assert f"in.txt:2: prompt is empty, and {folder}" in file_errors


def test_an_empty_prompt_is_the_declared_beginning_token(tmp_path: Path) -> None:
    folder = save_model(write_qwen(tmp_path / "qwen"))
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
    if not remote:  # otherwise transformers normalizes by the class of the model
        assert ids == tokenizer.encode(text)


MESSAGE_RECORDS: list[dict[str, Any]] = [
    {"prompt": "over"},
    {"messages": MESSAGES[:2], "id": 7},
    {"messages": MESSAGES[:4]},
]


class MessagesCase(NamedTuple):
    """A model with a chat template, and words of a command that continues a file of messages."""

    folder: Path
    prompts: Path
    words: tuple[object, ...]


@pytest.fixture
def messages_case(tmp_path: Path) -> MessagesCase:
    folder = save_model(adopted({"qwen": write_qwen(tmp_path / "source")}, tmp_path, PLAIN))
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


def save_model(folder: Path) -> Path:
    """Add a model with random weights to the folder of a tokenizer. Its config declares no end token."""
    generation = folder / "generation_config.json"
    content = b"{}"
    if generation.exists():
        content = generation.read_bytes()
    save_tiny("qwen2", folder, vocab_size=640)
    generation.write_bytes(content)
    return folder


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


class AsciiCase(NamedTuple):
    """Words of a command that continues a prompt with an umlaut, and the record of a file with the same prompt."""

    words: tuple[object, ...]
    prompts: Path
    record: dict[str, Any]


@pytest.fixture
def ascii_case(exported: Callable[..., Exported], tmp_path: Path) -> AsciiCase:
    record = {"prompt": "für", "key": "\ud800"}
    prompts = tmp_path / "in.jsonl"
    prompts.write_text(json.dumps(record))
    return AsciiCase(("generate", exported("plain").folder, "--max-new-tokens", 1), prompts, record)


class AsciiTerminal:
    """Standard output that only shows ASCII. Not a fixture, because pytest sets the standard output after the fixtures."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.content = io.BytesIO()
        self.stream = io.TextIOWrapper(self.content, encoding="ascii")  # closes the content when it is deleted
        monkeypatch.setattr(sys, "stdout", self.stream)


def test_text_on_an_ascii_terminal_is_escaped(command: Command, ascii_case: AsciiCase, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = AsciiTerminal(monkeypatch)
    assert command(*ascii_case.words, "--prompt", "für")[0] == 0
    assert terminal.content.getvalue().startswith(b"f\\xfcr")


def test_json_on_an_ascii_terminal_stays_json(command: Command, ascii_case: AsciiCase, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = AsciiTerminal(monkeypatch)
    assert command(*ascii_case.words, "--prompts", ascii_case.prompts)[0] == 0
    assert json.loads(terminal.content.getvalue()).items() >= ascii_case.record.items()


def test_an_output_file_is_utf_8_on_any_terminal(
    command: Command, ascii_case: AsciiCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _terminal = AsciiTerminal(monkeypatch)
    output = tmp_path / "out.jsonl"
    assert command(*ascii_case.words, "--prompts", ascii_case.prompts, "--output", output)[0] == 0
    content = output.read_text(encoding="utf-8")
    assert "für" in content
    assert json.loads(content).items() >= ascii_case.record.items()


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
        "for 64 (max_positions): what comes after them may be worthless\n"
    )


def test_a_file_has_one_warning_beyond_the_positions(
    exported: Callable[..., Exported], command: Command, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("over\n" + "The fox " * 40)
    _, _, errors = command("generate", exported("plain").folder, "--prompts", tmp_path / "in.txt")
    assert errors.count("warning") == 1


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
def test_invalid_files_are_refused(command: Command, tmp_path: Path, name: str, content: bytes, message: str) -> None:
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
    folder = write_qwen(tmp_path / "qwen")
    source = folder
    if family == "sentencepiece":
        source = sentencepiece_model
        folder = exported("plain").folder
    tokenizer = load_tokenizer(source)
    prompts = ConversationPrompts(texts_of(folder))
    for index, expected in zip((2, 4), learned_prompts(source, MESSAGES), strict=True):
        assert prompts.prompt(Conversation(MESSAGES[:index])).ids == expected
    special_texts = Conversation([{"role": "user", "content": "</s><s><|im_end|>"}])
    encoded = tokenizer.encode("User: </s><s><|im_end|>\nAssistant:")
    assert prompts.prompt(special_texts).ids == [*tokenizer.begin, *encoded]


def test_a_template_beside_an_export(exported: Callable[..., Exported], sentencepiece_model: Path, tmp_path: Path) -> None:
    """The template's beginning and end tokens are tokens, although our tokenizer.json does not mark them."""
    checkpoint, _ = memory_checkpoint(sentencepiece_model)
    export(checkpoint, tmp_path / "out")
    (tmp_path / "out" / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for message in messages %}[{{ message.content }}]{{ eos_token }}{% endfor %}"
    )
    prompts = ConversationPrompts(texts_of(tmp_path / "out"))
    tokenizer = load_tokenizer(sentencepiece_model)
    prompt = prompts.prompt(Conversation([{"role": "user", "content": "<s>over</s>"}]))
    assert prompt.ids == [tokenizer.bos_id, *tokenizer.encode("[<s>over</s>]"), tokenizer.eos_id]
    assert prompt.ends == {tokenizer.eos_id}


def test_a_template_that_raises_an_error_refuses_the_conversation(tmp_path: Path) -> None:
    folder = adopted({"qwen": write_qwen(tmp_path / "source")}, tmp_path, PLAIN)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    with pytest.raises(RecordError, match="the chat template fails: TemplateError: no"):
        ConversationPrompts(texts_of(folder)).prompt(Conversation(MESSAGES[:2]))


def test_a_template_that_is_not_jinja_is_refused(tmp_path: Path) -> None:
    folder = adopted({"qwen": write_qwen(tmp_path / "source")}, tmp_path, PLAIN)
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(UserError, match="a model/chat_template.jinja: the chat template is not Jinja"):
        ConversationPrompts(LoadedModel("a model", None, None, folder))
