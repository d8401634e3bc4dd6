"""Conversations: the template's tokens, which of them are learned, and conversations and templates that are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from megatape.data.finetuning import chat_renderer
from megatape.data.finetuning.chat import Chat
from megatape.data.finetuning.format import Limits, RecordDropped
from megatape.data.finetuning.prepare import ExampleSource, prepare_examples
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from tests.helpers.examples import write_lines

PLAIN = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for message in messages %}{% if message.role == 'assistant' %}<|im_start|>assistant\n{% generation %}"
    "{{ message.content }}<|im_end|>{% endgeneration %}{{ '\n' }}{% else %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETFUL = PLAIN.replace("{{ message.content }}", "{{ message.content if loop.last else message.content[:2] }}")
UNENDED = PLAIN.replace("<|im_end|>", "")
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the assert statement?"},
    {"role": "assistant", "content": "A way to insert assertions."},
    {"role": "user", "content": "And <tool> del?\n"},
    {"role": "assistant", "content": "It deletes.\n\nSee also: 12 "},
]


def adopted(folders: dict[str, Path], tmp_path: Path, template: str | None, inline: bool = False) -> Path:
    """A folder like Qwen's with this template, whose generation ends at <|im_end|> too."""
    folder = Path(shutil.copytree(folders["qwen"], tmp_path / "qwen"))
    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, JsonTokenizer)
    stops = [tokenizer.token_id("<|im_end|>"), tokenizer.eos_id]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    if inline:
        config = folder / "tokenizer_config.json"
        named = [{"name": "other", "template": "x"}, {"name": "default", "template": template}]
        config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": named}))
    elif template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def conversation(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"messages": messages}


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["plain", "marked"])
@pytest.mark.parametrize("inline", [False, True], ids=["file", "config"])
def test_every_answer_follows_the_tokens_that_generation_sees(
    folders: dict[str, Path], tmp_path: Path, template: str, inline: bool
) -> None:
    """Each answer is learned with its end token, behind transformers' own tokens of the conversation before it."""
    folder = adopted(folders, tmp_path, template, inline)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    if inline:
        theirs.chat_template = template
    form = Chat(load_tokenizer(folder), Limits(256))
    example = form.example(conversation(MESSAGES))
    assert form.notes == []
    whole = theirs.apply_chat_template(MESSAGES, return_dict=False)
    assert example.ids == whole[: len(example.ids)] and theirs.decode(whole[len(example.ids) :]) == "\n"
    for (begin, end), index in zip(example.answers, (2, 4), strict=True):
        prompt = theirs.apply_chat_template(MESSAGES[:index], add_generation_prompt=True, return_dict=False)
        assert example.ids[:begin] == prompt
        assert theirs.decode(example.ids[begin:end]) == MESSAGES[index]["content"] + "<|im_end|>"


def test_without_a_template(tokenizer: Tokenizer) -> None:
    """A plain one is used: what generation sees, and after it the answer and the end token."""
    form = Chat(tokenizer, Limits(256))
    assert "no chat template" in form.notes[0]
    example = form.example(conversation(MESSAGES))
    (first, first_end), (second, second_end) = example.answers
    prompt = "System: Be brief.\nUser: What is the assert statement?\nAssistant:"
    assert example.ids[:first] == [tokenizer.bos_id, *tokenizer.encode(prompt)]
    assert example.ids[first:first_end] == [*tokenizer.encode(" A way to insert assertions."), tokenizer.eos_id]
    assert example.ids[first_end:second] == tokenizer.encode("User: And <tool> del?\n\nAssistant:")
    assert example.ids[second:] == [*tokenizer.encode(" It deletes.\n\nSee also: 12 "), tokenizer.eos_id]
    assert second_end == len(example.ids)


def test_a_long_conversation_keeps_the_exchanges_that_fit(tokenizer: Tokenizer) -> None:
    whole = Chat(tokenizer, Limits(256)).example(conversation(MESSAGES))
    (_, first_end), (_, second_end) = whole.answers
    exact = Chat(tokenizer, Limits(second_end - 1)).example(conversation(MESSAGES))
    assert exact == whole and not exact.counts
    cut = Chat(tokenizer, Limits(second_end - 2)).example(conversation(MESSAGES))
    assert (cut.ids, cut.answers) == (whole.ids[:first_end], whole.answers[:1])
    lost = {"conversations cut": 1, "answers cut": 1, "tokens cut from conversations": second_end - first_end}
    assert dict(cut.counts) == lost
    with pytest.raises(RecordDropped, match="first exchange longer than a sequence"):
        Chat(tokenizer, Limits(first_end - 2)).example(conversation(MESSAGES))
    later = Chat(tokenizer, Limits(256)).example(conversation([*MESSAGES, {"role": "user", "content": "Thanks."}]))
    assert later == whole, "what follows the last answer is not needed"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({}, "`messages` is None, not a list of messages"),
        (conversation([]), "`messages` is .*, not a list"),
        ({"messages": [1]}, "message 1 is 1, not an object"),
        (conversation([{"role": "tool", "content": "a"}]), "message 1: `role` is 'tool', not one of system, user, assistant"),
        (conversation([{"role": "user"}]), "message 1: `content` is None, not a string"),
        (conversation([{"role": "user", "content": [{"type": "text"}]}]), "message 1: `content` is .*, not a string"),
        (conversation([MESSAGES[1] | {"tool_calls": [1]}]), "message 1 has `tool_calls`: only `role` and `content` are known"),
        (conversation(MESSAGES[2:]), "message 1 is of the assistant"),
        (conversation(MESSAGES[:2]), "conversation without an assistant"),
        (conversation([MESSAGES[1], {"role": "assistant", "content": " "}]), "empty answer"),
    ],
)
def test_records_that_are_refused(tokenizer: Tokenizer, record: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Chat(tokenizer, Limits(256)).example(record)


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (PLAIN, [MESSAGES[1], {"role": "assistant", "content": "a<|im_end|>"}], "message 2 has the special token '<|im_end|>'"),
        (PLAIN, [MESSAGES[1], {"role": "assistant", "content": "\n\na"}], "a token of the conversation lies across the place"),
        (FORGETFUL, MESSAGES, "the chat template writes message 3, or one before it, differently in the whole"),
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN,
            MESSAGES,
            "the chat template fails: TemplateError: no system",
        ),
        (PLAIN.replace("{{ message.content }}", ""), MESSAGES[1:3], None),
        ("{% generation %}{% endgeneration %}", MESSAGES, "the chat template writes nothing for an answer"),
        ("{% if no %}{% generation %}a{% endgeneration %}{% endif %}", MESSAGES, "the chat template marks nothing"),
    ],
)
def test_conversations_without_an_exact_place(
    folders: dict[str, Path], tmp_path: Path, template: str, messages: list[dict[str, str]], message: str | None
) -> None:
    form = Chat(load_tokenizer(adopted(folders, tmp_path, template)), Limits(256))
    if message is None:
        assert form.example(conversation(messages)).answers
        return
    with pytest.raises(ValueError, match=message):
        form.example(conversation(messages))


def test_templates_that_are_refused_or_doubtful(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = adopted(folders, tmp_path, "{% for %}")
    with pytest.raises(ValueError, match=r"qwen/chat_template.jinja: the chat template is not Jinja \(line 1: "):
        Chat(load_tokenizer(folder), Limits(256))
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"qwen/chat_template.jinja is not UTF-8"):
        Chat(load_tokenizer(folder), Limits(256))
    (folder / "chat_template.jinja").write_text(UNENDED)
    (note,) = Chat(load_tokenizer(folder), Limits(256)).notes
    assert "ends answers with" in note and "generation stops at '<|im_end|>', '<|endoftext|>'" in note
    (folder / "chat_template.jinja").write_text("{{ ''.__class__.__mro__ }}")
    with pytest.raises(ValueError, match="the chat template fails: SecurityError"):
        Chat(load_tokenizer(folder), Limits(256)).example(conversation(MESSAGES))


LARGE = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "memory": "{{ ('a' * 2 * 10 ** 9) | length }}",
    "output": "{{ 'a' * 300 }}",
}


@pytest.mark.parametrize(("template", "inline"), list(zip(LARGE.values(), (False, True, False), strict=True)), ids=LARGE)
@pytest.mark.timeout(60)
def test_templates_without_end(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, inline: bool
) -> None:
    """A template is stopped, and so is the command, with the template's file in its error."""
    for name, limit in (("MAX_SECONDS", 0), ("MAX_MEMORY", 2**30), ("MAX_TEXT", 200)):
        monkeypatch.setattr(chat_renderer, name, limit)
    folder, output = (
        adopted(folders, tmp_path, "{% if messages | length > 2 %}" + template + "{% endif %}", inline),
        tmp_path / "out",
    )
    path = write_lines(tmp_path / "in.jsonl", [conversation(MESSAGES)])
    source = ExampleSource("chat", (str(path),), (str(path),), Limits(256))
    name = "tokenizer_config.json" if inline else "chat_template.jinja"
    with pytest.raises(UserError, match=f"in.jsonl:1: .*/qwen/{name}: the chat template takes more than"):
        prepare_examples(source, output, load_tokenizer(folder), lambda counts, tokens: None)
    assert not output.exists()
