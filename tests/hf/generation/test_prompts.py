"""Tokens of prompts and conversations: those that the model has learned from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatape.data.finetuning.chat import Chat
from megatape.data.finetuning.conversation import Conversation
from megatape.data.finetuning.format import Limits
from megatape.data.tokenizers.files import load_tokenizer
from megatape.errors import RecordError, UserError
from megatape.hf.exporting.exporter import export
from megatape.hf.generation.prompts import ConversationPrompts, read_prompt
from megatape.hf.loading.load import load_exported, load_trained
from megatape.hf.loading.loaded_model import LoadedModel
from tests.helpers.data.conversations import MESSAGES, PLAIN, adopted, conversation
from tests.helpers.models.exports import Exported
from tests.helpers.models.imported import FAMILIES, write_qwen
from tests.helpers.models.memory_checkpoint import memory_checkpoint
from tests.helpers.models.tiny_models import save_beside_tokenizer


def test_an_empty_prompt_is_the_declared_beginning_token(tmp_path: Path) -> None:
    folder = save_beside_tokenizer(write_qwen(tmp_path / "qwen"))
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"bos_token": "<|im_start|>"}))
    assert read_prompt(load_exported(folder), "").ids == [601]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("remote", [False, True])
def test_special_tokens_in_a_prompt_are_text(family: str, remote: bool, tmp_path: Path) -> None:
    """Prompts are tokenized as in training, even with a tokenizer loaded by transformers."""
    folder = save_beside_tokenizer(FAMILIES[family](tmp_path / family))
    tokenizer = load_tokenizer(folder)
    loaded = load_exported(folder, trust_remote_code=remote)
    text = "".join(["a", *tokenizer.special_texts, " b"])  # type: ignore[attr-defined]
    ids = read_prompt(loaded, text).ids[len(tokenizer.begin) :]
    assert not {*ids} & {*load_exported(folder).tokenizer.all_special_ids}
    if not remote:  # Otherwise transformers normalizes by the model's class.
        assert ids == tokenizer.encode(text)


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
    """Models without a chat template get fine-tuning's own format, whose answers are separately tokenized."""
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
