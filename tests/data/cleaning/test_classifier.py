"""Classifiers: scores, thresholds, and what cannot be loaded."""

from pathlib import Path

import pytest
from transformers import BertConfig, BertModel

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.sources.document import Decision, Document
from megatape.errors import UserError
from tests.helpers.data.classifiers import fasttext_model, save_classifier

ENGLISH = "This is a text in English,\nand nothing else."
GERMAN = "Auf dem Tisch liegt ein Buch, und der Hund schläft."


def decide(rule: str, text: str) -> Decision:
    return Cleaning(parse_rules([rule])).decide(Document(text, ""))


def test_fasttext() -> None:
    """The probability of the label, whatever is the most likely one."""
    rule = f"fasttext_classifier:model={fasttext_model()},minimum=0.5,label="
    kept = decide(f"{rule}en", ENGLISH)
    dropped = decide(f"{rule}en", GERMAN)
    assert kept.text == ENGLISH and 0.5 < kept.scores["fasttext_classifier"] <= 1.001
    assert (dropped.text, dropped.reason) == (None, "below 0.5") and dropped.scores["fasttext_classifier"] < 0.1
    assert decide(f"{rule}de", GERMAN).text == GERMAN


@pytest.mark.parametrize(("labels", "option", "minimum"), [(["no", "yes"], ",label=yes", 0.5), (["score"], "", 0.0)])
def test_transformers(tmp_path: Path, labels: list[str], option: str, minimum: float) -> None:
    """The probability of a class, or the only output, of the first tokens of a text however long."""
    folder = save_classifier(tmp_path / "model", labels)
    rule = f"transformers_classifier:model={folder},minimum={minimum}{option}"
    good = decide(rule, "good text")
    bad = decide(rule, "bad text")
    assert good.text == "good text" and bad.text is None and bad.reason == f"below {minimum}"
    assert good.scores["transformers_classifier"] > minimum > bad.scores["transformers_classifier"]
    assert decide(rule, "good " * 40_000).text is not None
    (described,) = Cleaning(parse_rules([rule])).describe()
    assert described["packages"].keys() == {"torch", "transformers"} and list(described["sha256"]) == [str(folder)]


def test_what_cannot_be_loaded_is_refused_before_a_document_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_classifier(tmp_path / "model", ["no", "yes"])
    single = save_classifier(tmp_path / "single", ["score"])
    size = {"vocab_size": 6, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    BertModel(BertConfig(**size)).save_pretrained(tmp_path / "headless")
    (tmp_path / "headless" / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "headless" / "tokenizer_config.json").write_bytes((folder / "tokenizer_config.json").read_bytes())
    (tmp_path / "empty.bin").write_bytes(b"no model")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("")
    refused = {
        f"transformers_classifier:model={folder},minimum=0.5": f"{folder}: label is missing: give one of no, yes",
        f"transformers_classifier:model={folder},minimum=0.5,label=good": "label is 'good': give one of no, yes",
        f"transformers_classifier:model={single},minimum=0.5,label=good": "the model has a single output: leave the label out",
        f"transformers_classifier:model={tmp_path / 'headless'},minimum=1": "no sequence classifier, its files lack classifier",
        f"transformers_classifier:model={tmp_path / 'folder'},minimum=1": "no sequence classifier of transformers",
        f"transformers_classifier:model={tmp_path / 'none'},minimum=1": "none: no such file, nor a folder with files",
        f"fasttext_classifier:model={tmp_path / 'empty.bin'},minimum=1,label=x": "not a model of fastText",
        f"fasttext_classifier:model={fasttext_model()},minimum=1,label=klingon": "label is 'klingon': give one of ",
        f"fasttext_classifier:model={fasttext_model()},label=en": "needs minimum",
    }
    for rule, message in refused.items():
        with pytest.raises(UserError, match=f"^(rule {rule.partition(':')[0]}|{tmp_path}|{fasttext_model()}).*{message}"):
            parse_rules([rule])
    monkeypatch.setattr("megatape.data.cleaning.classifier.FastTextClassifier.packages", ("missing-package",))
    with pytest.raises(ModuleNotFoundError, match="missing-package"):
        parse_rules([f"fasttext_classifier:model={fasttext_model()},minimum=0.5,label=en"])
