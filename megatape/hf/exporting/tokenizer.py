"""Writes the tokenizer files of exports for transformers' AutoTokenizer.

Imported tokenizers are copied, SentencePiece models are converted.
"""

import json
from pathlib import Path

from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.data.tokenizers.tokenizer import GENERATION_FILE, Tokenizer
from megatape.hf.exporting.sentencepiece import build_tokenizer, read_proto


def write_tokenizer(tokenizer: Tokenizer, max_length: int, folder: Path) -> None:
    """Write the files of a tokenizer, except generation_config.json, whose end tokens `special_tokens` returns.

    Args:
        tokenizer: Tokenizer to export.
        max_length: Number of positions that the model was made for. transformers warns about longer texts.
        folder: Folder to write to.

    Raises:
        UserError: The tokenizer cannot be exported.
    """
    if isinstance(tokenizer, JsonTokenizer):
        for name in tokenizer.files.keys() - {GENERATION_FILE}:
            (folder / name).write_bytes(tokenizer.files[name])
        return
    proto = read_proto(tokenizer)
    build_tokenizer(proto).save(str(folder / "tokenizer.json"))
    trainer = proto.trainer_spec
    settings = {
        "tokenizer_class": "TokenizersBackend",
        "bos_token": proto.pieces[trainer.bos_id].piece,
        "eos_token": proto.pieces[trainer.eos_id].piece,
        "unk_token": proto.pieces[trainer.unk_id].piece,
        "pad_token": proto.pieces[trainer.unk_id].piece,
        "padding_side": "left",
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def describe_tokenizer(tokenizer: Tokenizer) -> str:
    """Return the paragraph about a tokenizer in the model card."""
    if isinstance(tokenizer, JsonTokenizer):
        begin = "with their text"
        if tokenizer.bos_id is not None:
            begin = f"with `{tokenizer.piece(tokenizer.bos_id)}`"
        return (
            "The tokenizer's files are those of the model that this one was trained from. Training documents began\n"
            f"{begin} and ended with `{tokenizer.piece(tokenizer.eos_id)}`.\n"
            "Special tokens written out in a text were text, as with\n"
            "`AutoTokenizer.from_pretrained(folder, split_special_tokens=True)`."
        )
    return (
        "The tokenizer puts `<s>` in front of a text, as every training document had it, and does not add\n"
        "`</s>`. Batches are padded on the left, with `<unk>`."
    )
