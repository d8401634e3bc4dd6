"""Sample conversation, chat templates, and tokenizers with a chat template."""

import json
import shutil
from pathlib import Path
from typing import Any

from megatape.data.finetuning.chat_template import ChatTemplate
from megatape.data.tokenizers.files import json_tokenizer, load_tokenizer
from megatape.data.tokenizers.huggingface import JsonTokenizer

PLAIN = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for message in messages %}{% if message.role == 'assistant' %}<|im_start|>assistant\n{% generation %}"
    "{{ message.content }}<|im_end|>{% endgeneration %}{{ '\n' }}{% else %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Like templates dropping earlier thoughts: the prompt of each answer stays the same, but the answer changes.
FICKLE = PLAIN.replace(
    "{{ message.content }}", "{{ message.content if loop.last or message.role != 'assistant' else 'dropped' }}"
)
HEADER = "<|im_start|>assistant\n"
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the assert statement?"},
    {"role": "assistant", "content": "A way to insert assertions."},
    {"role": "user", "content": "And <tool> del?\n"},
    {"role": "assistant", "content": "It deletes.\n\nSee also: 12 "},
]


def adopted(folders: dict[str, Path], tmp_path: Path, template: str | None, inline: bool = False) -> Path:
    """Copy Qwen's tokenizer folder and give it a chat template. Generation ends at <|im_end|> as well.

    Args:
        folders: Tokenizer folders by name.
        tmp_path: Parent of the copy.
        template: Chat template, or None.
        inline: Whether to write the template into tokenizer_config.json, next to one of another name.
    """
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


def unlearned(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message used as context only."""
    return message | {"weight": 0}


def prompted(template: str, prompt: str) -> str:
    """Return the template, replacing the answer's header in generation's prompt by other text."""
    return template.removesuffix(HEADER + "{% endif %}") + prompt + "{% endif %}"


def open_template(folder: Path) -> tuple[JsonTokenizer, ChatTemplate]:
    """Return a folder's tokenizer and its chat template."""
    tokenizer = json_tokenizer(folder / "tokenizer.json")
    assert tokenizer.chat_template is not None
    return tokenizer, ChatTemplate(tokenizer, tokenizer.chat_template)
