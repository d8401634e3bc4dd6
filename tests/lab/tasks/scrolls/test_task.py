"""SCROLLS: prompts equal those of fine-tuning, and scores equal those of the official scorer."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import pytest

from megatape.data.finetuning import scrolls
from megatape.data.finetuning.format import Limits
from megatape.data.finetuning.scrolls import Answering, Summarizing
from megatape.data.tokenizers.files import load_tokenizer
from megatape.hf.loading.exact_tokenizer import read_tokenizer
from megatape.lab.paper import SCROLLS
from megatape.lab.tasks.engine.evaluation import Evaluation, TaskExamples
from megatape.lab.tasks.engine.lengths import BATCH_TOKENS
from megatape.lab.tasks.engine.record import ModelOrigin
from megatape.lab.tasks.engine.result import Measure
from megatape.lab.tasks.engine.runner import evaluate
from megatape.lab.tasks.scores import rouge_scorer
from megatape.lab.tasks.scrolls.prompt_tokenizer import PromptTokenizer
from megatape.lab.tasks.scrolls.sets import SETS
from megatape.lab.tasks.scrolls.task import Scrolls
from tests.helpers.lab.scrolls import OFFICIAL, PREDICTIONS, REFERENCES, lines, write_set
from tests.helpers.models.imported import FAMILIES
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import Workers

BEGIN = 2
END = 3


class Letters:
    """Tokenizer with an id for each character, BEGIN and END."""

    eos_token_id = END

    def __len__(self) -> int:
        return 0x110000

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = [ord(character) for character in text]
        if add_special_tokens:
            ids = [BEGIN, *ids]
        return {"input_ids": ids}

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        assert skip_special_tokens
        return "".join(chr(token) for token in ids if token > END)


class AnsweredBatch(NamedTuple):
    """Prompts that were answered together, and the room for their answers in tokens."""

    prompts: list[str]
    num_tokens: int


class Reader:
    """Model that answers by a function of the prompt's text.

    Attributes:
        batches: Batches that were answered.
    """

    name = "a model"
    tokenizer = Letters()
    vocab_size = 0x110000

    def __init__(self, answer: Callable[[str], str], max_positions: int = 1300) -> None:
        self.answer = answer
        self.max_positions = max_positions
        self.batches: list[AnsweredBatch] = []

    def logits(self, tokens: Any) -> Any:
        raise NotImplementedError

    def continuations(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        assert len({len(prompt) for prompt in prompts}) == 1
        texts = [self.tokenizer.decode(prompt, skip_special_tokens=True) for prompt in prompts]
        self.batches.append(AnsweredBatch(texts, num_tokens))
        continuations = []
        for text in texts:
            ids = [BEGIN, *map(ord, self.answer(text)), END]
            padding = [0] * (num_tokens - len(ids))
            continuations.append([*ids, *padding][:num_tokens])
        return continuations


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    """The example of the official scorer, as every one of the published sets."""
    for name in SETS:
        write_set(tmp_path / "sets", name, lines())
    return tmp_path / "sets"


def official_answer(prompt: str) -> str:
    """Return the official scorer's example of an answer to the question with the prompt's number."""
    (number,) = [int(character) for character in prompt if character.isdecimal()]
    return f" {PREDICTIONS[number]} "


# Metric -> official scores for the example, with the scored one last
OFFICIAL_OF_METRIC = {
    "f1": OFFICIAL["narrative_qa"],
    "exact_match": OFFICIAL["contract_nli"],
    "rouge": OFFICIAL["gov_report"],
}
MEASURES = {
    "qasper": "qasper F1",
    "contract_nli": "contract_nli EM",
    "narrative_qa": "narrative_qa F1",
    "quality": "quality EM",
    "qmsum": "qmsum ROUGE",
    "summ_screen_fd": "summ_screen_fd ROUGE",
    "gov_report": "gov_report ROUGE",
}


class Evaluated(NamedTuple):
    """Evaluation of all sets.

    Attributes:
        folder: Folder with the results.
        measures: Measures by name.
    """

    folder: Path
    measures: dict[str, Measure]


@pytest.fixture
def evaluated(sets: Path, tmp_path: Path) -> Evaluated:
    model = Reader(official_answer)
    origin = ModelOrigin("model", [], training_code=False, tp=1)
    evaluation = Evaluation.open(tmp_path / "out", TaskExamples("scrolls", Scrolls(sets), model), origin)
    measures = evaluation.run(model).measures
    return Evaluated(tmp_path / "out", {measure.name: measure for measure in measures})


def test_measures_equal_the_official_scores(evaluated: Evaluated) -> None:
    assert list(evaluated.measures) == list(MEASURES.values())
    for name, metric in SETS.items():
        measure = evaluated.measures[MEASURES[name]]
        assert measure.n == 3
        assert measure.value == pytest.approx(OFFICIAL_OF_METRIC[metric][metric], abs=1e-4)


def test_paper_has_the_same_columns(sets: Path) -> None:
    paper = Scrolls(sets).paper()

    assert set(paper) == {f"{name}, 155M" for name in SCROLLS}
    for row in paper.values():
        assert list(row) == list(MEASURES.values())


def test_results_file_equals_the_official_scores(evaluated: Evaluated) -> None:
    results = json.loads((evaluated.folder / "results.json").read_text())

    assert results["settings"]["sets"] == list(SETS)
    for name, metric in SETS.items():
        details = results["details"][name]
        means = {score: value["mean"] for score, value in details["scores"].items()}
        assert details["questions"] == 3
        assert means == pytest.approx(OFFICIAL_OF_METRIC[metric], abs=1e-4)
    assert (evaluated.folder / "scrolls.png").stat().st_size > 5000


def test_predictions_file_has_the_official_scores(evaluated: Evaluated, sets: Path, command: Command) -> None:
    """Proportions have an interval, and means an error."""
    for name, metric in SETS.items():
        predictions = evaluated.folder / f"predictions_{name}.json"
        _, printed, _ = command("scores", predictions, "--scrolls", sets, "--set", name)
        is_proportion = metric == "exact_match"
        assert (" to " in printed) == is_proportion
        assert ("± " in printed) == (not is_proportion)
        for value in OFFICIAL_OF_METRIC[metric].values():
            assert f"{value:.4f}" in printed


def test_samples_have_prompts_answers_and_scores(evaluated: Evaluated) -> None:
    samples = [json.loads(line) for line in (evaluated.folder / "samples.jsonl").read_text().splitlines()]

    sample = samples[1]
    del sample["sha256"]
    assert sample == {
        "example": 1,
        "set": "qasper",
        "id": "q1",
        "prompt": "Question 1\n\ntext",
        "prediction": "hello there",
        "references": REFERENCES[1],
        "scores": {"f1": pytest.approx(200 / 3)},
    }


class PromptCase(NamedTuple):
    """Lengths of prompts in tokens.

    Attributes:
        positions: Positions of the model.
        sequence_length: Length to use, None for all positions.
        max_answer: Room for answers, None for the default.
    """

    positions: int
    sequence_length: int | None = None
    max_answer: int | None = None


@pytest.mark.parametrize(
    "case",
    [
        PromptCase(1300),
        PromptCase(1300, sequence_length=1050),
        PromptCase(70, max_answer=20),
        PromptCase(1300, sequence_length=64, max_answer=7),
    ],
    ids=str,
)
@pytest.mark.parametrize(("name", "form"), [("quality", Answering), ("qmsum", Summarizing)])
def test_prompts_equal_those_of_fine_tuning(name: str, form: type[scrolls.Scrolls], sets: Path, case: PromptCase) -> None:
    tokenizer = PromptTokenizer(Letters(), "letters")
    limits = Limits(case.sequence_length or case.positions, max_answer=case.max_answer)
    expected_prompts = []
    for record in lines()[:3]:
        example = form(tokenizer, limits).example(record | {"output": "a" * 2000})
        ((begin, end),) = example.answers
        expected_prompts.append(tokenizer.decode(example.ids[:begin]))
    model = Reader(lambda prompt: "answer", case.positions)
    task = Scrolls(sets, (name,), sequence_length=case.sequence_length, max_answer_tokens=case.max_answer)

    evaluate(task, model)

    assert model.batches == [AnsweredBatch(expected_prompts, end - begin - 1)]


def test_batches_have_prompts_of_one_length(tmp_path: Path) -> None:
    """Batches have at most BATCH_TOKENS with their answers. Each answer is scored by its own references: one is wrong here."""
    rows = []
    for number in range(500):
        width = 50 * (1 + number % 3)
        rows.append({"id": f"q{number}", "input": f"{number:<{width}}.", "output": str(number)})
    write_set(tmp_path, "mine", rows)

    def answer(prompt: str) -> str:
        number = prompt.split()[0]
        if number == "8":
            return "7"
        return number

    model = Reader(answer)

    result = evaluate(Scrolls(tmp_path, ("mine=exact_match",), max_examples=450), model)

    assert result.measures[0].value == pytest.approx(100 * 449 / 450)
    sizes = []
    for prompts, num_tokens in model.batches:
        num_positions = len(prompts[0]) + 1 + num_tokens
        sizes.append((len(prompts), num_positions))
        assert len(prompts) * num_positions <= BATCH_TOKENS
    assert sizes == [(129, 253), (21, 253), (108, 303), (42, 303), (92, 353), (58, 353)]


@pytest.mark.parametrize("family", FAMILIES)
def test_tokenizer_of_a_model_gives_the_tokens_of_training(family: str, tmp_path: Path) -> None:
    folder = FAMILIES[family](tmp_path / family)
    ours = load_tokenizer(folder)
    text = "</s> 12\n\n  the <|end|> \u00e9\u6f22"

    theirs = PromptTokenizer(read_tokenizer(folder), family)

    assert theirs.begin == ours.begin
    assert theirs.eos_id == ours.eos_id
    assert theirs.encode(text) == ours.encode(text)
    decoded = ours.decode([*ours.begin, *ours.encode(text), ours.eos_id])
    assert theirs.decode(theirs.encode_documents([text])[0]) == decoded


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_length": 1301}, "sequence_length is 1301, but a model has 1300 positions"),
        ({"max_answer_tokens": 1299}, "sequence_length 1300 leaves 0 tokens for prompts before answers of 1299"),
        ({"split": "test"}, r"expected qasper/test.jsonl in it: unpack SCROLLS' qasper.zip there"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(options: dict[str, Any], message: str, sets: Path) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Scrolls(sets, **options).batches(Reader(official_answer))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("qasper,qasper", "a set is named twice"),
        ("qasper,mine", "'mine' is not a set"),
    ],
)
def test_bad_names_are_refused(names: str, message: str, command: Command) -> None:
    status, _, errors = command("evaluate", "scrolls", "model", "--scrolls", "sets", "--sets", names, "--output", "out")

    assert status == 2
    assert errors.startswith("error: --sets is ")
    assert message in errors


@pytest.fixture
def no_rouge(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without the package for ROUGE."""
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    rouge_scorer.cache_clear()


@pytest.mark.usefixtures("no_rouge")
def test_missing_package_is_reported_before_answering(sets: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="rouge_score"):
        Scrolls(sets).batches(Reader(official_answer))


@pytest.mark.usefixtures("no_rouge")
def test_sets_with_other_metrics_need_no_package(sets: Path) -> None:
    assert Scrolls(sets, ("qasper",)).batches(Reader(official_answer))


def test_model_trained_on_a_set_knows_it(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    """The public commands train a model to name twelve topics of Python's documentation from their first words."""
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
