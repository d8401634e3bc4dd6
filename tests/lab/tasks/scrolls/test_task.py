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
from megatape.lab.tasks.scrolls.prompt_tokenizer import PromptTokenizer
from megatape.lab.tasks.scrolls.sets import SETS
from megatape.lab.tasks.scrolls.task import Scrolls
from tests.helpers.lab.scrolls import OFFICIAL, PREDICTIONS, REFERENCES, lines, write_set
from tests.helpers.models.imported import FAMILIES
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import Workers

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
