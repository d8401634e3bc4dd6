"""Folders with tokenizers as pretrained models have them, trained on Python's own documentation."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = list(topics.values())
EDGE_CASES = [
    "",
    "a",
    " a",
    "  a \n\n\tb\r\n",
    "<s> a</s><unk> <|begin|>x<|end|> <|eot|><tool> <pad> <0x41>",
    "</s>",
    "12345 3.14 \u00bd",
    "e\u0301 \ufb01 \u6f22\u5b57 \U0001f600\u200d \xa0",
    "\u2581 mark\u2581\u2581",
    "\ufffd \u2028 \x00",
    "x" * 3000,
]
# Llama 3's pattern. Qwen's differs in taking digits one by one.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def write_llama3(folder: Path, vocab_size: int = 600) -> Path:
    """Byte-level BPE with a beginning token in the template, and generation that ends at two tokens. Trailing padding and
    a length limit are in the file, as programs leave them there."""
    tokenizer = byte_level(vocab_size)
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>", "<|eot|>"])
    begin, end, turn = (tokenizer.token_to_id(token) for token in ("<|begin|>", "<|end|>", "<|eot|>"))
    template = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A $B", special_tokens=[("<|begin|>", begin)]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16, pad_token="<|eot|>", pad_id=turn)
    return write_folder(
        folder,
        tokenizer,
        {"bos_token": "<|begin|>", "eos_token": "<|end|>", "model_max_length": 131072},
        **{
            "special_tokens_map.json": {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>", "lstrip": False}},
            "generation_config.json": {"eos_token_id": [turn, end], "do_sample": True},
            "chat_template.jinja": "{% for message in messages %}{{ message['content'] }}<|eot|>{% endfor %}",
        },
    )


def write_qwen(folder: Path, vocab_size: int = 600, unused: int = 0) -> Path:
    """Byte-level BPE with NFC and without a beginning token; a tool's token is not special.

    unused: Tokens before the special ones, which no text contains."""
    content = json.loads(byte_level(vocab_size).to_str())
    content["model"]["vocab"] |= {f"unused {number}": vocab_size + number for number in range(unused)}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<tool>"])
    special = {str(tokenizer.token_to_id(token)): {"content": token} for token in ("<|endoftext|>", "<tool>")}
    return write_folder(
        folder,
        tokenizer,
        {
            "add_bos_token": False,
            "added_tokens_decoder": {
                token: fields | {"special": fields["content"] != "<tool>"} for token, fields in special.items()
            },
            "bos_token": None,
            "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
        },
    )


def write_llama2(folder: Path, vocab_size: int = 600) -> Path:
    """BPE in SentencePiece's manner: a space in front, byte fallback, no pre-tokenizer."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    spaces = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    trained.normalizer = normalizers.Sequence(spaces)
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trained.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=first, show_progress=False))
    content = json.loads(trained.to_str())
    content |= {"pre_tokenizer": None, "added_tokens": [token for token in content["added_tokens"] if token["id"] < 3]}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    config = {name: {"__type": "AddedToken", "content": token} for name, token in (("bos_token", "<s>"), ("eos_token", "</s>"))}
    return write_folder(
        folder,
        tokenizer,
        config
        | {"unk_token": "<unk>", "pad_token": None, "add_bos_token": True, "model_max_length": int(1e30), "legacy": False},
    )


FAMILIES: dict[str, Callable[[Path], Path]] = {"llama3": write_llama3, "qwen": write_qwen, "llama2": write_llama2}


def byte_level(vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def write_folder(folder: Path, tokenizer: Tokenizer, config: dict[str, Any], **others: Any) -> Path:
    """tokenizer.json, tokenizer_config.json and other files, as text or JSON."""
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | config
    for name, content in {"tokenizer_config.json": config, **others}.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


def sentencepiece_llama2(vocab_size: int = 600) -> bytes:
    """A SentencePiece model with Llama 2's settings."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("\n".join(TEXTS).split("\n")),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        add_dummy_prefix=True,
        max_sentence_length=10_000,
        minloglevel=2,
    )
    return model.getvalue()
