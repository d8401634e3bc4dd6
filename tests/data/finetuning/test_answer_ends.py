"""Tokens ending a chat template's answers, where generation stops."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from megatape.data.finetuning.chat import Chat
from megatape.data.finetuning.format import Limits
from megatape.data.tokenizers.files import load_tokenizer
from megatape.errors import RecordError
from tests.helpers.data.conversations import HEADER, MESSAGES, PLAIN, adopted, conversation, open_template, prompted

UNENDED = PLAIN.replace("<|im_end|>", "")
CHANNEL = PLAIN.replace("{{ message.content }}", "<|endoftext|>final\n{{ message.content }}")
DEMANDS_SYSTEM = "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}" + PLAIN
# Like GLM-4's template: the next role's mark ends an answer, and nothing ends the last answer.
ROLE_MARKS = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
ROLE_MARKS_MARKED = (
    "{% for message in messages %}<|{{ message.role }}|>\n{% if message.role == 'assistant' %}{% generation %}"
    "{{ message.content }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def test_a_template_that_does_not_end_answers_is_noted(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = adopted(folders, tmp_path, UNENDED)
    (note,) = Chat(load_tokenizer(folder), Limits(256)).notes
    assert "ends answers with '<|im_start|>', and generation stops at '<|im_end|>', '<|endoftext|>'" in note


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        (PLAIN, ["<|im_end|>"]),
        (CHANNEL, ["<|im_end|>"]),
        (UNENDED, ["<|im_start|>"]),
        (DEMANDS_SYSTEM, ["<|im_end|>"]),
        (prompted(PLAIN, HEADER + "<think>\n"), ["<|im_end|>"]),
        (UNENDED.replace("<|im_start|>", ""), []),
        ("{{ raise_exception('never') }}", []),
    ],
    ids=[
        "end of the message",
        "a special token before the answer",
        "start of the next message",
        "system prompt required",
        "no exact position of answers",
        "no special token",
        "template fails",
    ],
)
def test_the_end_of_an_answer_follows_from_the_template(
    folders: dict[str, Path], tmp_path: Path, template: str, ends: list[str]
) -> None:
    """Without generation_config.json nothing else names it."""
    folder = adopted(folders, tmp_path, template)
    (folder / "generation_config.json").unlink()
    tokenizer, chat_template = open_template(folder)
    assert chat_template.ends == {tokenizer.token_id(end) for end in ends}
    assert tokenizer.stop_ids == [tokenizer.eos_id]


def folder_like_glm4(folders: dict[str, Path], tmp_path: Path, template: str, stops: list[str]) -> Path:
    """Return a tokenizer folder with a token for each role, and `stops` in generation_config.json."""
    folder = adopted(folders, tmp_path, template)
    file = folder / "tokenizer.json"
    backend = Tokenizer.from_file(str(file))
    backend.add_special_tokens(["<|system|>", "<|user|>", "<|assistant|>"])
    backend.save(str(file))
    (folder / "generation_config.json").unlink()
    if stops:
        ids = [backend.token_to_id(stop) for stop in stops]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return folder


@pytest.mark.parametrize("stops", [[], ["<|user|>", "<|endoftext|>"]], ids=["no stops", "stops"])
@pytest.mark.parametrize(
    ("template", "end"),
    [
        (ROLE_MARKS, "<|user|>"),
        (ROLE_MARKS_MARKED, "<|user|>"),
        (ROLE_MARKS.replace("%}<|", "%}\n\n<|"), "\n<|user|>"),
    ],
    ids=["plain", "marked", "newlines"],
)
def test_the_next_roles_mark_ends_the_last_answer_too(
    folders: dict[str, Path], tmp_path: Path, template: str, end: str, stops: list[str]
) -> None:
    """Without the mark, the model would not learn to stop. The warning names the mark, and no token in the answer's text."""
    tokenizer, chat_template = open_template(folder_like_glm4(folders, tmp_path, template, stops))
    form = Chat(tokenizer, Limits(256))
    if stops:
        assert form.notes == []
    else:
        (note,) = form.notes
        assert "ends answers with '<|user|>'" in note
        assert "'.'" not in note
    assert chat_template.ends == {tokenizer.token_id("<|user|>")}

    example = form.example(conversation(MESSAGES))
    for (answer_begin, answer_end), index in zip(example.answers, (2, 4), strict=True):
        expected = tokenizer.encode_rendered(MESSAGES[index]["content"] + end)
        assert example.ids[answer_begin:answer_end] == expected
    _, last_end = example.answers[-1]
    assert last_end == len(example.ids)

    longer = form.example(conversation([*MESSAGES, {"role": "user", "content": "Thanks."}]))
    assert longer == example, "the added end is the one that another message brings"


def test_chatml_without_generation_config_is_noted(folders: dict[str, Path], tmp_path: Path) -> None:
    """Answers end with <|im_end|>, and the warning names it instead of the newline after it."""
    folder = adopted(folders, tmp_path, PLAIN)
    (folder / "generation_config.json").unlink()
    tokenizer, _ = open_template(folder)
    form = Chat(tokenizer, Limits(256))
    (note,) = form.notes
    assert "ends answers with '<|im_end|>', and generation stops at '<|endoftext|>': add '<|im_end|>' to eos_token_id" in note
    example = form.example(conversation(MESSAGES))
    assert {example.ids[end - 1] for _, end in example.answers} == {tokenizer.token_id("<|im_end|>")}


def test_answers_that_nothing_ends_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    template = (
        "{% for message in messages %}{{ message.role }}\n{{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant\n{% endif %}"
    )
    form = Chat(load_tokenizer(adopted(folders, tmp_path, template)), Limits(256))
    assert form.notes == []
    with pytest.raises(RecordError, match=r"writes no token at which generation stops \('<\|im_end\|>', .* ends 'A way"):
        form.example(conversation([MESSAGES[1], {"role": "assistant", "content": "A way"}]))
