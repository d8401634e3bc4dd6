"""Classifiers: scores, thresholds, and models that fail to load."""

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


def fasttext_rule(label: str) -> str:
    return f"fasttext_classifier:model={fasttext_model()},minimum=0.5,label={label}"


def test_fasttext_keeps_texts_with_the_label() -> None:
    decision = decide(fasttext_rule("en"), ENGLISH)

    assert decision.text == ENGLISH
    assert 0.5 < decision.scores["fasttext_classifier"] <= 1.001


def test_fasttext_drops_texts_with_another_label() -> None:
    """The score is the probability of the given label, not of the most likely one."""
    decision = decide(fasttext_rule("en"), GERMAN)

    assert decision.text is None
    assert decision.reason == "below 0.5"
    assert decision.scores["fasttext_classifier"] < 0.1
    assert decide(fasttext_rule("de"), GERMAN).text == GERMAN


@pytest.mark.parametrize(
    ("labels", "option", "minimum"),
    [
        pytest.param(["no", "yes"], ",label=yes", 0.5, id="probability of a class"),
        pytest.param(["score"], "", 0.0, id="single output"),
    ],
)
def test_transformers(tmp_path: Path, labels: list[str], option: str, minimum: float) -> None:
    """A text of any length is scored by its first tokens."""
    folder = save_classifier(tmp_path / "model", labels)
    rule = f"transformers_classifier:model={folder},minimum={minimum}{option}"

    good = decide(rule, "good text")
    bad = decide(rule, "bad text")
    long = decide(rule, "good " * 40_000)
    (description,) = Cleaning(parse_rules([rule])).describe()

    assert good.text == "good text"
    assert good.scores["transformers_classifier"] > minimum
    assert bad.text is None
    assert bad.reason == f"below {minimum}"
    assert bad.scores["transformers_classifier"] < minimum
    assert long.text is not None
    assert description["packages"].keys() == {"torch", "transformers"}
    assert list(description["sha256"]) == [str(folder)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder with two classifiers, and with other models."""
    folder = tmp_path_factory.mktemp("models")
    two_classes = save_classifier(folder / "two_classes", ["no", "yes"])
    save_classifier(folder / "single", ["score"])

    config = BertConfig(vocab_size=6, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    BertModel(config).save_pretrained(folder / "headless")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "headless" / name).write_bytes((two_classes / name).read_bytes())

    (folder / "empty.bin").write_bytes(b"no model")
    (folder / "folder").mkdir()
    (folder / "folder" / "file").write_text("")
    return folder


REFUSED_RULES = {
    "transformers_classifier:model={models}/two_classes,minimum=0.5": "two_classes: label is missing: give one of no, yes",
    "transformers_classifier:model={models}/two_classes,minimum=0.5,label=good": "label is 'good': give one of no, yes",
    "transformers_classifier:model={models}/single,minimum=0.5,label=good": (
        "the model has a single output: leave the label out"
    ),
    "transformers_classifier:model={models}/headless,minimum=1": "no sequence classifier, its files lack classifier",
    "transformers_classifier:model={models}/folder,minimum=1": "no sequence classifier of transformers",
    "transformers_classifier:model={models}/none,minimum=1": "none: no such file, nor a folder with files",
    "fasttext_classifier:model={models}/empty.bin,minimum=1,label=x": "not a model of fastText",
    "fasttext_classifier:model={fasttext},minimum=1,label=klingon": "label is 'klingon': give one of ",
    "fasttext_classifier:model={fasttext},label=en": "needs minimum",
}


@pytest.mark.parametrize(("rule", "message"), REFUSED_RULES.items())
def test_impossible_models_are_refused_before_a_document_is_read(models: Path, rule: str, message: str) -> None:
    """The error starts with the rule or the model's path."""
    name = rule.partition(":")[0]

    with pytest.raises(UserError, match=f"^(rule {name}|{models}|{fasttext_model()}).*{message}"):
        parse_rules([rule.format(models=models, fasttext=fasttext_model())])


def test_a_missing_package_is_named_before_a_document_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatape.data.cleaning.rules.classifier.FastTextClassifier.packages", ("missing-package",))

    with pytest.raises(ModuleNotFoundError, match="missing-package"):
        parse_rules([fasttext_rule("en")])
