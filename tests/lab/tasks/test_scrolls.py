"""SCROLLS: sets are read in their published layout, prompted as in fine-tuning, scored as by the official scorer."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest

from megatape.data.finetuning import scrolls
from megatape.data.finetuning.format import Limits
from megatape.data.finetuning.scrolls import Answering, Summarizing
from megatape.data.tokenizers.files import load_tokenizer
from megatape.hf.loading.exact_tokenizer import read_tokenizer
from megatape.lab.paper import SCROLLS
from megatape.lab.tasks.engine.evaluation import Evaluation
from megatape.lab.tasks.engine.lengths import BATCH_TOKENS
from megatape.lab.tasks.engine.record import ModelOrigin
from megatape.lab.tasks.engine.runner import evaluate
from megatape.lab.tasks.scores import rouge_scorer
from megatape.lab.tasks.scrolls import SETS, PromptTokenizer, Scrolls, parse_set, read_set
from tests.helpers.command import Command
from tests.helpers.imported import FAMILIES
from tests.helpers.scrolls import OFFICIAL, PREDICTIONS, REFERENCES, lines, write_set
from tests.helpers.workers import Workers

END = 3


class Letters:
    """A tokenizer with an id for each character; 2 begins a text and 3 ends it."""

    eos_token_id = END

    def __len__(self) -> int:
        return 0x110000

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [2] * add_special_tokens + [*map(ord, text)]}

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        assert skip_special_tokens
        return "".join(chr(token) for token in ids if token > END)


class Reader:
    """A model that answers by `answer`, from the text of the prompt, after the separator."""

    name = "a model"
    tokenizer = Letters()
    vocab_size = 0x110000

    def __init__(self, answer: Callable[[str], str], max_positions: int = 1300) -> None:
        self.answer = answer
        self.max_positions = max_positions
        self.prompts: list[tuple[list[str], int]] = []

    def logits(self, tokens: Any) -> Any:
        raise NotImplementedError

    def continuations(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        assert len({len(prompt) for prompt in prompts}) == 1
        texts = [self.tokenizer.decode(prompt, skip_special_tokens=True) for prompt in prompts]
        self.prompts.append((texts, num_tokens))
        found = [[2, *map(ord, self.answer(text)), END] for text in texts]
        return [[*ids, *[0] * (num_tokens - len(ids))][:num_tokens] for ids in found]


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    """The example of the official scorer, as every one of the published sets."""
    for name in SETS:
        write_set(tmp_path / "sets", name, lines())
    return tmp_path / "sets"


def official(prompt: str) -> str:
    (number,) = (int(character) for character in prompt if character.isdecimal())
    return f" {PREDICTIONS[number]} "


def test_all_sets(sets: Path, tmp_path: Path, command: Command) -> None:
    """Results are those of the official scorer, also from the predictions that are written; the paper has the same columns."""
    model = Reader(official)
    task = Scrolls(sets)
    folder = tmp_path / "out"
    evaluation = Evaluation(folder, "scrolls", task, model)
    evaluation.open(ModelOrigin("model", [], training_code=False, tp=1))
    measures = evaluation.run(model).measures
    expected = {name: OFFICIAL[{"f1": "narrative_qa", "exact_match": "contract_nli", "rouge": "gov_report"}[metric]]
                for name, metric in SETS.items()}  # fmt: skip
    names = [
        "qasper F1",
        "contract_nli EM",
        "narrative_qa F1",
        "quality EM",
        "qmsum ROUGE",
        "summ_screen_fd ROUGE",
        "gov_report ROUGE",
    ]
    assert [(measure.name, measure.n) for measure in measures] == [(name, 3) for name in names]
    assert [measure.value for measure in measures] == pytest.approx(
        [expected[name][metric] for name, metric in SETS.items()], abs=1e-4
    )
    assert set(task.paper()) == {f"{name}, 155M" for name in SCROLLS} and all(
        list(row) == names for row in task.paper().values()
    )
    results = json.loads((folder / "results.json").read_text())
    assert results["settings"]["sets"] == list(SETS)
    for name, scores in expected.items():
        found = results["details"][name]
        assert found["questions"] == 3
        assert {key: value["mean"] for key, value in found["scores"].items()} == pytest.approx(scores, abs=1e-4)
        _, printed, _ = command("scores", folder / f"predictions_{name}.json", "--scrolls", sets, "--set", name)
        proportion = SETS[name] == "exact_match"
        assert (" to " in printed, "± " in printed) == (proportion, not proportion)
        assert all(f"{value:.4f}" in printed for value in scores.values())
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert samples[1] == {
        "example": 1,
        "set": "qasper",
        "id": "q1",
        "prompt": "Question 1\n\ntext",
        "prediction": "hello there",
        "references": REFERENCES[1],
        "scores": {"f1": pytest.approx(200 / 3)},
        "sha256": samples[1]["sha256"],
    }
    assert (folder / "scrolls.png").stat().st_size > 5000


@pytest.mark.parametrize(("name", "form"), [("quality", Answering), ("qmsum", Summarizing)])
def test_prompts_are_those_of_fine_tuning(name: str, form: type[scrolls.Scrolls], sets: Path) -> None:
    """In batches of one length; N is the model's maximum or given, and so is the room for answers."""
    tokenizer = PromptTokenizer(Letters(), "letters")
    for positions, length, room in ((1300, None, None), (1300, 1050, None), (70, None, 20), (1300, 64, 7)):
        model = Reader(lambda prompt: "answer", positions)
        limits = Limits(length or positions, max_answer=room)
        evaluate(Scrolls(sets, (name,), sequence_length=length, max_answer_tokens=room), model)
        prompts = []
        for record in lines()[:3]:
            example = form(tokenizer, limits).example(record | {"output": "a" * 2000})
            ((begin, end),) = example.answers
            prompts.append(tokenizer.decode(example.ids[:begin]))
        assert model.prompts == [(prompts, end - begin - 1)]


def test_batches(tmp_path: Path) -> None:
    """Prompts of one length are answered together, at most BATCH_TOKENS with their answers, each by its own references."""
    rows = [
        {"id": f"q{number}", "input": f"{number:<{50 * (1 + number % 3)}}.", "output": str(number)} for number in range(500)
    ]
    write_set(tmp_path, "mine", rows)
    model = Reader(lambda prompt: "7" if prompt.split()[0] == "8" else prompt.split()[0])
    task = Scrolls(tmp_path, ("mine=exact_match",), max_examples=450)
    assert evaluate(task, model).measures[0].value == pytest.approx(100 * 449 / 450)
    sizes = [(len(texts), len(texts[0]) + 1 + num_tokens) for texts, num_tokens in model.prompts]
    assert sizes == [(129, 253), (21, 253), (108, 303), (42, 303), (92, 353), (58, 353)]
    assert all(count * size <= BATCH_TOKENS for count, size in sizes)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokenizer_of_a_model_gives_the_tokens_of_training(family: str, tmp_path: Path) -> None:
    folder = FAMILIES[family](tmp_path / family)
    ours = load_tokenizer(folder)
    theirs = PromptTokenizer(read_tokenizer(folder), family)
    text = "</s> 12\n\n  the <|end|> \u00e9\u6f22"
    assert (ours.begin, ours.eos_id, ours.encode(text)) == (theirs.begin, theirs.eos_id, theirs.encode(text))
    assert ours.decode([*ours.begin, *ours.encode(text), ours.eos_id]) == theirs.decode(theirs.encode_documents([text])[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_length": 1301}, "sequence_length is 1301, but a model has 1300 positions"),
        ({"max_answer_tokens": 1299}, "sequence_length 1300 leaves 0 tokens for prompts before answers of 1299"),
        ({"split": "test"}, r"expected qasper/test.jsonl in it: unpack SCROLLS' qasper.zip there"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str, sets: Path) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Scrolls(sets, **options).batches(Reader(official))


@pytest.mark.parametrize(("names", "message"), [("qasper,qasper", "a set is named twice"), ("qasper,mine", "'mine' is no set")])
def test_bad_names(names: str, message: str, command: Command) -> None:
    status, _, errors = command("evaluate", "scrolls", "model", "--scrolls", "sets", "--sets", names, "--output", "out")
    assert status == 2 and errors.startswith("error: --sets is ") and message in errors


def test_without_the_package_of_rouge_it_says_so_at_once(sets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    rouge_scorer.cache_clear()
    with pytest.raises(ModuleNotFoundError, match="rouge_score"):
        Scrolls(sets).batches(Reader(official))
    assert Scrolls(sets, ("qasper",)).batches(Reader(official))


def test_a_model_that_was_trained_on_it_knows_it(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    """By the public commands: the names of twelve topics of Python's documentation, from their first words."""
    records = [{"id": key, "input": f"Which topic is this?\n\n{topics[key]}", "output": key} for key in sorted(topics)[:12]]
    validation = write_set(tmp_path / "sets", "topics", records)
    train = shutil.copy(validation, tmp_path / "train.jsonl")
    files = ["--input", train, "--validation", validation, "--output", tmp_path / "data"]
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "all.txt").write_text("\n".join(topics.values()))
    tokenizer = tmp_path / "tokenizer.model"
    source = ["--source", "text", "--input", tmp_path / "texts"]
    assert command("data", "tokenizer", *source, "--vocab-size", 400, "--output", tokenizer)[0] == 0
    sizes = ["--sequence-length", 64, "--max-answer-tokens", 24]
    assert command("prepare", "finetuning", "--format", "scrolls_qa", *files, "--tokenizer", tokenizer, *sizes)[0] == 0
    raw_config["model"] |= {"num_heads": 4, "mlp_size": 64, "vocab_size": 400, "max_positions": 64}
    raw_config["data"] = {"path": str(tmp_path / "data"), "sequence_length": 64, "samples": "examples"}
    raw_config["training"] = {"steps": 60, "global_batch_size": 12, "micro_batch_size": 12}
    raw_config["zero"] = {"stage": 0}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    with Workers(["pretrain", "--config", str(config)], 1, tmp_path / "workers") as workers:
        assert workers.statuses() == [0], workers.logs()
    model = Path(raw_config["run"]["directory"]) / "checkpoints" / "step-00000060"
    words = ["--scrolls", tmp_path / "sets", "--sets", "topics=exact_match", "--max-answer-tokens", 24]
    status, _, errors = command("evaluate", "scrolls", model, *words, "--output", tmp_path / "out")
    assert status == 0, errors
    folder = tmp_path / "out" / "scrolls" / model.name
    assert json.loads((folder / "results.json").read_text())["measures"] == [
        {"name": "topics EM", "value": 100.0, "error": 0.0, "n": 12, "interval": [pytest.approx(75.75, abs=0.01), 100]}
    ]
    rows = (folder / "answers_topics.md").read_text().splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert cells == [[key, "Which topic is this?", key, key, "yes"] for key in sorted(topics)[:12]]


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"q0": "a", "q2": "c"}', "of 3 questions, 1 id (q1) missing: predict this set, and all of it"),
        ('{"x": "a"}', "of 3 questions, 3 ids (q0, q1, q2) missing and 1 id (x) not in the set"),
        (
            '{"q0": "a", "q1": "b", "q2": "c", "w": "", "x": "", "y": "", "z": ""}',
            "of 3 questions, 4 ids (w, x, y, ...) not in the set",
        ),
        ('{"q0": "a", "q1": "b", "q0": "c", "q2": "c"}', "no object {id: answer} of one text for each id (duplicate key q0"),
        (
            '{"q0": "a", "q1": ["b"], "q2": 1}',
            "no object {id: answer} of one text for each id (q1: must be a valid string",
        ),
        ('["a"]', "no object {id: answer} of one text for each id (must be an object"),
        ('{"q0": ', "no object {id: answer} of one text for each id (Expecting value"),
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


def test_layout(tmp_path: Path) -> None:
    """References are grouped."""
    expected = [("q0", [16], REFERENCES[0]), ("q1", [16], REFERENCES[1]), ("q2", [16], REFERENCES[2])]
    path = write_set(tmp_path / "folder", "qasper", lines())
    path.write_text(path.read_text() + "\n")
    assert read(tmp_path / "folder") == expected
    assert read(tmp_path / "folder", max_questions=2) == expected[:2]
    with pytest.raises(FileNotFoundError, match=r"expected qasper/train.jsonl in it: unpack SCROLLS' qasper.zip there"):
        read(tmp_path / "folder", "train")
    with pytest.raises(FileNotFoundError, match=r"folder/qasper: expected qasper/validation.jsonl in it"):
        read(tmp_path / "folder" / "qasper")
    with pytest.raises(FileNotFoundError, match=r"nowhere: expected .* in it"):
        read(tmp_path / "nowhere")


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
    assert [parse_set(name) for name in SETS] == list(SETS.items())
    mine = parse_set("my_set=exact_match")
    assert (mine.name, mine.metric) == ("my_set", "exact_match")
    for wrong in ("my_set", "quality=f1", "my_set=em", "../a=f1", "..=f1", "=f1"):
        with pytest.raises(ValueError, match="is no set: .*choose one of qasper, contract_nli"):
            parse_set(wrong)
