"""Scores are those of SCROLLS' scorer, and a file of predictions is scored only if it is one of the whole set."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any
from zipfile import ZipFile

import pytest

from megatape.tasks.scrolls_sets import SETS, parse_set, read_set
from megatape.tasks.text_scores import mean_scores, normalize, score
from tests.conftest import Command

# From the docstring of the official scorer (tau/scrolls, metrics/scrolls.py).
PREDICTIONS = ["exact match example", "hello there", "general kenobi"]
REFERENCES = [["exact match example"], ["hello", "hi there"], ["commander kenobi"]]
OFFICIAL = {
    "narrative_qa": {"f1": 72.2222},
    "contract_nli": {"exact_match": 33.3333},
    "gov_report": {"rouge1": 72.2222, "rouge2": 33.3333, "rougeL": 72.2222, "rouge": 55.8136},
}


def lines(references: list[list[Any]] = REFERENCES) -> list[dict[str, Any]]:
    """The lines of a set: those of a question do not follow each other."""
    rows = [
        {"id": f"q{number}", "pid": f"q{number}_{place}", "input": f"Question {number}\n\ntext", "output": text}
        for number, texts in enumerate(references)
        for place, text in enumerate(texts)
    ]
    return sorted(rows, key=lambda row: row["pid"][-1])


def write_set(data: Path, name: str, rows: list[dict[str, Any]], split: str = "validation") -> Path:
    (data / name).mkdir(parents=True, exist_ok=True)
    path = data / name / f"{split}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_official_examples(name: str, command: Command, tmp_path: Path) -> None:
    write_set(tmp_path / "sets", name, lines())
    predictions = tmp_path / "predictions.json"
    predictions.write_text(json.dumps({f"q{number}": text for number, text in reversed(list(enumerate(PREDICTIONS)))}))
    status, printed, errors = command("scores", predictions, "--scrolls", tmp_path / "sets", "--set", name)
    assert status == 0, errors
    first, *rows = printed.splitlines()
    assert first == f"{name}, validation: 3 questions"
    assert {row.split()[0]: float(row.split()[1]) for row in rows} == OFFICIAL[name]


def test_normalization() -> None:
    assert normalize(" The U.S.A.'s\tan-swer, a  THEory\n") == ["usas", "answer", "theory"]
    assert score("exact_match", "The answer!", ["no", "answer"]) == {"exact_match": 100}
    assert score("f1", "b b c", ["b c c", "d"]) == {"f1": pytest.approx(200 / 3)}
    assert score("f1", "the", ["a"]) == {"f1": 0}  # as the official scorer has it, though these match
    assert score("rouge", "", ["a"]) == dict.fromkeys(("rouge1", "rouge2", "rougeL"), 0)


def test_standard_errors() -> None:
    """Of the geometric mean as the jackknife has it: from leaving out an answer at a time."""
    scores = [score("rouge", *both) for both in zip(PREDICTIONS, REFERENCES, strict=True)] * 300
    mean, error = mean_scores(scores)["rouge1"]
    assert error == pytest.approx((sum((each["rouge1"] - mean) ** 2 for each in scores) / 899 / 900) ** 0.5)
    without = [mean_scores([*scores[:place], *scores[place + 1 :]])["rouge"][0] for place in range(3)] * 300
    jackknife = (899 / 900 * sum((each - fmean(without)) ** 2 for each in without)) ** 0.5
    assert mean_scores(scores)["rouge"][1] == pytest.approx(jackknife, rel=0.01)
    assert mean_scores(scores[:1])["rouge"] == (pytest.approx(100), None)
    assert mean_scores([dict.fromkeys(("rouge1", "rouge2", "rougeL"), 0.0)] * 2)["rouge"] == (0, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"q0": "a", "q2": "c"}', "of 3 questions, 1 id (q1) missing: predict this set, and all of it"),
        ('{"x": "a"}', "of 3 questions, 3 ids (q0, q1, q2) missing and 1 id (x) not in the set"),
        (
            '{"q0": "a", "q1": "b", "q2": "c", "w": "", "x": "", "y": "", "z": ""}',
            "of 3 questions, 4 ids (w, x, y, ...) not in the set",
        ),
        ('{"q0": "a", "q1": "b", "q0": "c", "q2": "c"}', "1 id (q0) given twice: give each once"),
        ('{"q0": "a", "q1": ["b"], "q2": 1}', "2 ids (q1, q2) whose answer is not a text: ['b']"),
        ('["a"]', "it must be an object {id: answer}, not \"['a']\""),
        ('{"q0": ', "not JSON (Expecting value"),
    ],
)
def test_bad_predictions(content: str, message: str, command: Command, tmp_path: Path) -> None:
    write_set(tmp_path / "sets", "qasper", lines())
    path = tmp_path / "predictions.json"
    path.write_text(content)
    status, printed, errors = command("scores", path, "--scrolls", tmp_path / "sets", "--set", "qasper")
    assert (status, printed) == (2, "") and f"{path}: {message}" in errors


def read(data: Path, split: str = "validation", **options: Any) -> list[tuple[str, list[int], list[str]]]:
    found = read_set(data, "qasper", split, lambda text: [len(text)], **options)
    return [(each.id, list(each.prompt), each.references) for each in found]


def test_layouts(tmp_path: Path) -> None:
    """A folder, the published archive and one without a folder in it hold the same; references are grouped."""
    expected = [("q0", [16], REFERENCES[0]), ("q1", [16], REFERENCES[1]), ("q2", [16], REFERENCES[2])]
    path = write_set(tmp_path / "folder", "qasper", lines())
    path.write_text(path.read_text() + "\n")
    assert read(tmp_path / "folder") == expected
    for layout, member in (("published", "qasper/validation.jsonl"), ("flat", "validation.jsonl")):
        (tmp_path / layout).mkdir()
        with ZipFile(tmp_path / layout / "qasper.zip", "w") as archive:
            archive.write(path, member)
        assert read(tmp_path / layout) == expected
    assert read(tmp_path / "folder", max_questions=2) == expected[:2]
    with pytest.raises(
        FileNotFoundError, match=r"expected qasper/train.jsonl in it, or qasper.zip .*/qasper.zip holds validation.jsonl"
    ):
        read(tmp_path / "flat", "train")
    with pytest.raises(FileNotFoundError, match=r"folder/qasper: expected qasper/validation.jsonl .* holds validation.jsonl"):
        read(tmp_path / "folder" / "qasper")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="SCROLLS publishes its sets; it is empty"):
        read(tmp_path / "empty")
    (tmp_path / "flat" / "qasper.zip").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"qasper.zip: corrupted .*: download it again"):
        read(tmp_path / "flat")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "validation.jsonl is empty"),
        ([{"id": "a", "input": "b", "output": None}], "1 id (a) without a reference: `output` must have its text"),
        ([{"id": "a", "input": "b"}] * 2, "1 id (a) without a reference"),
        (
            [{"id": "a", "input": "b", "output": "c"}, {"id": "a", "input": "d", "output": "c"}],
            "jsonl:2: id 'a' was given another",
        ),
        ([{"id": 1, "input": "b", "output": "c"}], "jsonl:1: 'id' is 1, not a string"),
        ([{"pid": "a", "input": "b", "output": "c"}], "jsonl:1: 'id' is missing; the record has 'pid', 'input', 'output'"),
        ([{"id": "a", "input": " ", "output": "c"}], "jsonl:1: `input` is empty"),
        ([["a"]], "jsonl:1: ['a'] is not an object"),
    ],
)
def test_bad_sets(rows: list[Any], message: str, tmp_path: Path) -> None:
    write_set(tmp_path, "qasper", rows)
    with pytest.raises(ValueError) as raised:
        read(tmp_path)
    assert message in str(raised.value)


def test_the_published_test_split_has_no_references(tmp_path: Path) -> None:
    write_set(tmp_path, "qasper", [{"id": "a", "input": "b", "output": None}], "test")
    with pytest.raises(ValueError, match="the published test split has none, use the validation split"):
        read(tmp_path, "test")
    (tmp_path / "qasper" / "test.jsonl").write_text("{")
    with pytest.raises(ValueError, match=r"test.jsonl:1: malformed JSON"):
        read(tmp_path, "test")


def test_names_of_sets() -> None:
    assert [parse_set(name) for name in SETS] == list(SETS.values())
    mine = parse_set("my_set=exact_match")
    assert (mine.name, mine.metric) == ("my_set", "exact_match")
    for wrong in ("my_set", "quality=f1", "my_set=em", "../a=f1", "..=f1", "=f1"):
        with pytest.raises(ValueError, match="is no set: give one of qasper, contract_nli"):
            parse_set(wrong)
