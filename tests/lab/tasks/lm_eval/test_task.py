"""lm-eval's tasks on our models: log-likelihoods against a plain forward pass and against lm-eval's own model class."""

import json
import math
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from scipy.stats import binomtest
from torch import Tensor

from megatape.hf.exporting.exporter import export
from megatape.hf.loading.load import load_exported
from megatape.hf.loading.loaded_model import LoadedModel
from megatape.lab.tasks.lm_eval import loading
from megatape.lab.tasks.lm_eval.model import LmEvalModel
from megatape.lab.tasks.lm_eval.task import LmEval
from megatape.model.transformer import Transformer
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.checks.slow import slow_but
from tests.helpers.models.imported import TEXTS, write_llama3, write_qwen
from tests.helpers.models.memory_checkpoint import memory_checkpoint
from tests.helpers.processes.command import Command

pytestmark = pytest.mark.numerics


POSITIONS = 96
QUESTIONS: list[dict[str, Any]] = [
    {"question": f"Which word stands in line {number}?", "choices": TEXTS[number].split()[:4], "answer": number % 4}
    for number in range(12)
]
CHOICES = """
task: words
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
  - metric: acc_norm
  - metric: brier_score
"""


@pytest.fixture(scope="module", autouse=True)
def datasets_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        yield


def exported(folder: Path, tokenizer: Callable[[Path], Path], **changes: Any) -> tuple[LoadedModel, Transformer]:
    changes = {"vocab_size": 640, "max_positions": POSITIONS} | changes
    checkpoint, ours = memory_checkpoint(tokenizer(folder / "tokenizer"), **changes)
    export(checkpoint, folder / "model")
    return load_exported(folder / "model"), ours


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[LoadedModel, Transformer]]:
    """A model whose tokenizer has a beginning token, and one whose tokenizer has none."""
    return {
        name: exported(tmp_path_factory.mktemp(name), tokenizer)
        for name, tokenizer in (("llama3", write_llama3), ("qwen", write_qwen))
    }


@torch.no_grad()
def token_losses(model: Transformer, ids: list[int]) -> Tensor:
    """Return the losses of ids[1:] in nats by the model of training, float64 [tokens]."""
    tokens = torch.tensor([ids[:-1]])
    scores = model(tokens, torch.arange(len(ids) - 1)[None])[0].double().log_softmax(-1)
    return -scores[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]


@pytest.fixture
def own_task(tmp_path: Path) -> Path:
    (tmp_path / "own").mkdir()
    file = tmp_path / "own" / "test.jsonl"
    file.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    (tmp_path / "own" / "words.yaml").write_text(CHOICES.format(file=file))
    (tmp_path / "own" / "more.yaml").write_text(CHOICES.format(file=file).replace("task: words", "task: more"))
    (tmp_path / "own" / "both.yaml").write_text(
        "group: both\ntask: [words, more]\naggregate_metric_list:\n  - metric: acc\n    weight_by_size: true\n"
    )
    return tmp_path / "own"


def test_own_task_equals_a_plain_forward_pass(models: dict[str, Any], own_task: Path, command: Command, tmp_path: Path) -> None:
    """Log-likelihoods equal those of our forward pass after the beginning token, and accuracies follow from them."""
    model, ours = models["llama3"]
    words = ("evaluate", "lm-eval", model.name, "--tasks", "words", "--include", own_task, "--output", tmp_path / "out")
    status, printed, errors = command(*words)
    assert status == 0, errors
    folder = tmp_path / "out" / "lm-eval" / "model"
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    right: dict[str, list[float]] = {"acc": [], "acc_norm": []}
    for question, sample in zip(QUESTIONS, samples, strict=True):
        expected = []
        for choice in question["choices"]:
            context, whole = (
                model.tokenizer(text).input_ids for text in (question["question"], f"{question['question']} {choice}")
            )
            assert whole[0] == model.tokenizer.bos_token_id
            expected.append(-float(token_losses(ours, whole)[len(context) - 1 :].sum()))
        assert_close([found for found, _ in sample["prediction"]], expected, bounds.EXPORTED)
        norms = [value / len(choice) for value, choice in zip(expected, question["choices"], strict=True)]
        for name, values in (("acc", expected), ("acc_norm", norms)):
            right[name].append(float(values.index(max(values)) == question["answer"]))
            assert sample["metrics"]["none"][name] == right[name][-1]
    assert 0 < sum(right["acc"]) < 12
    measures = {measure["name"]: measure for measure in json.loads((folder / "results.json").read_text())["measures"]}
    for name, values in right.items():
        measure = measures[f"words {name} (%)"]
        assert measure["value"] == pytest.approx(100 * fmean(values))
        assert measure["n"] == 12
        assert measure["error"] == pytest.approx(100 * stdev(values) / math.sqrt(12))
        expected = binomtest(round(sum(values)), 12).proportion_ci(0.95, "wilson")
        assert measure["interval"] == pytest.approx([100 * expected.low, 100 * expected.high])
    # The samples' scores are arrays.
    assert 0 < measures["words brier_score"]["value"] < 2
    assert measures["words brier_score"]["interval"] is None
    assert "words acc (%)" in printed
    assert (folder / "lm-eval.png").stat().st_size > 5000


def test_group_has_the_mean_of_its_tasks(models: dict[str, Any], own_task: Path) -> None:
    """The table has the mean, the details have the tasks, too, and results follow from predictions, without a data set."""
    task = LmEval(("both",), max_examples=5, include=own_task)
    assert [len(batch) for batch in task.batches(models["llama3"][0])] == [5, 5]
    predictions = [
        prediction for batch in task.batches(models["llama3"][0]) for prediction in task.run(models["llama3"][0], batch)
    ]
    (own_task / "test.jsonl").unlink()
    loading.load_tasks.cache_clear()
    scores = task.result(predictions)
    assert [(measure.name, measure.n) for measure in scores.measures] == [("both acc (%)", 10)]
    assert scores.metrics["both"]["acc,none"] == scores.metrics["words"]["acc,none"] == scores.metrics["more"]["acc,none"]


@pytest.mark.parametrize("name", ["llama3", "qwen"])
def test_answers_equal_those_of_lm_evals_own_class(models: dict[str, Any], name: str) -> None:
    """Requests are pairs with and without a context, too long ones, answers of one token, whole texts, and greedy texts."""
    model, _ = models[name]
    theirs = HFLM(pretrained=model.model, tokenizer=model.tokenizer, batch_size=1)
    ours = LmEvalModel(model)

    def ask(kind: str, *arguments: Any) -> tuple[Any, Any]:
        """Return the answers of our class and lm-eval's."""
        requests = [Instance(kind, {}, given, 0) for given in arguments]
        return getattr(ours, kind)(requests), getattr(theirs, kind)(requests)

    pairs = [("The statement", " is"), ("The statement", " of"), ("", TEXTS[0][:50]), (TEXTS[1][:2000], TEXTS[2][:40])]
    pairs += [("A space ", "behind"), ("The statement", " is a list of names")]
    found, expected = ask("loglikelihood", *pairs)
    assert_close([value for value, _ in found], [value for value, _ in expected], bounds.EXPORTED)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    settings = {"until": ["e"], "max_gen_toks": 20, "do_sample": False}
    found, expected = ask("generate_until", ("The statement", dict(settings)), (TEXTS[1][:2000], dict(settings)))
    assert found == expected
    begin = model.tokenizer.decode(theirs.prefix_token_id)
    texts = (TEXTS[0][:1500],), (TEXTS[3][:50],), (f"{begin}{TEXTS[3][:50]}",)
    found, expected = ask("loglikelihood_rolling", *texts)
    assert_close(found, expected, bounds.EXPORTED)
    theirs = HFLM(pretrained=model.model, tokenizer=model.tokenizer, batch_size=1, add_bos_token=False)
    ours.predicts_begin = False
    found, expected = ask("loglikelihood_rolling", *texts)
    assert_close(found, expected, bounds.EXPORTED)
    likeliest = model.continuations([model.tokenizer("The statement").input_ids], 3)[0]
    text = model.tokenizer.decode(likeliest)
    if model.tokenizer(f"The statement{text}").input_ids[-3:] == likeliest:
        assert ask("loglikelihood", ("The statement", text))[0][0][1]


ROLLING = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: word_perplexity
  - metric: byte_perplexity
  - metric: bits_per_byte
"""


@pytest.mark.parametrize("name", slow_but(["llama3"], ["llama3", "qwen"]))
def test_perplexities_of_whole_texts_equal_lm_evals(
    models: dict[str, Any], name: str, command: Command, tmp_path: Path
) -> None:
    """lm-eval's names have the numbers of its own class. Beside them are those of texts that begin as in training. They differ
    only if texts begin with a token that lm-eval predicts after itself."""
    model = models[name][0]
    own = tmp_path / "own"
    own.mkdir()
    (own / "texts.jsonl").write_text(
        "".join(json.dumps({"text": text[:size]}) + "\n" for text, size in zip(TEXTS[:3], (1500, 50, 400), strict=True))
    )
    (own / "texts.yaml").write_text(ROLLING.format(name="texts", file=own / "texts.jsonl"))
    words = ("evaluate", "lm-eval", model.name, "--tasks", "texts", "--include", own, "--output", tmp_path / "out")
    status, printed, errors = command(*words)
    assert status == 0, errors
    folder = tmp_path / "out" / "lm-eval" / "model"
    measures = {each["name"]: each for each in json.loads((folder / "results.json").read_text())["measures"]}
    for prefix, begin in (("", None), ("megatape_", False)):
        theirs = HFLM(pretrained=model.model, tokenizer=model.tokenizer, batch_size=1, add_bos_token=begin)
        tasks = TaskManager(include_path=str(own), include_defaults=False)
        expected = simple_evaluate(theirs, tasks=["texts"], task_manager=tasks, bootstrap_iters=0)["results"]["texts"]
        for metric in ("word_perplexity", "byte_perplexity", "bits_per_byte"):
            found = measures[f"texts {prefix}{metric}"]["value"]
            assert_close([math.log(found)], [math.log(expected[f"{metric},none"])], bounds.EXPORTED)
        assert f"texts {prefix}bits_per_byte" in printed
    alike = measures["texts bits_per_byte"]["value"] == measures["texts megatape_bits_per_byte"]["value"]
    assert alike == (name == "qwen")
    sample = json.loads((folder / "samples.jsonl").read_text().splitlines()[0])
    assert sample["metrics"]["none"].keys() >= {"bits_per_byte", "megatape_bits_per_byte"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("{{question}}", "{{question if '7' not in question else question.a.b}}"),
            "lm-eval cannot make the prompts of words: 'str object' has no attribute 'a'",
        ),
        (("multiple_choice", "generate_until"), "words of lm-eval has an answer that needs 97 positions, but "),
        (('"{{choices}}"', '"[\\"a\\", \\"{{question * 20}}\\"]"'), "words of lm-eval has an answer that needs "),
    ],
)
def test_prompts_are_made_before_anything_is_asked(
    models: dict[str, Any],
    own_task: Path,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Any,
    message: str,
) -> None:
    """A failing template, and texts without room in the model, are refused before another task of the command runs."""
    monkeypatch.setattr(LmEvalModel, "__init__", None)
    yaml = (own_task / "words.yaml").read_text().replace(*change)
    if "generate_until" in change:
        yaml = yaml.replace('doc_to_choice: "{{choices}}"\n', "") + 'generation_kwargs:\n  until: ["e"]\n  max_gen_toks: 96\n'
    (own_task / "words.yaml").write_text(yaml)
    words = ("evaluate", "lm-eval", models["llama3"][0].name, "--tasks", "more,words", "--include", own_task)
    status, printed, errors = command(*words, "--output", tmp_path / "out")
    assert status == 2, errors
    assert printed == "", errors
    assert f"error: task lm-eval: --tasks: {message}" in errors, errors


def test_texts_begin_as_in_training(models: dict[str, Any]) -> None:
    """Texts begin with the beginning token. Without one, a text follows the end token of the document before."""
    for name, first in (("llama3", 600), ("qwen", 600)):
        model, ours = models[name]
        request = Instance("loglikelihood", {}, ("", "The statement"), 0)
        ((value, _),) = LmEvalModel(model).loglikelihood([request])
        ids = model.tokenizer("The statement", add_special_tokens=False).input_ids
        begin = model.tokenizer.bos_token_id if name == "llama3" else model.tokenizer.eos_token_id
        assert begin == first
        assert_close([value], [-float(token_losses(ours, [begin, *ids]).sum())], bounds.EXPORTED)
    assert LmEvalModel(models["llama3"][0]).tok_encode("The")[0] == 600
    assert LmEvalModel(models["qwen"][0]).tok_encode("The")[0] != 600


def hub_copy(folder: Path) -> Path:
    """Write allenai/ai2_arc in the layout of the hub, with few questions."""
    questions = [
        {
            "id": str(number),
            "question": f"What is {number}?",
            "choices": {"text": question["choices"], "label": list("ABCD")},
            "answerKey": "ABCD"[number % 4],
        }
        for number, question in enumerate(QUESTIONS)
    ]
    data = folder / "allenai" / "ai2_arc"
    (data / "ARC-Easy").mkdir(parents=True)
    for split in ("train", "validation", "test"):
        pyarrow.parquet.write_table(pa.Table.from_pylist(questions), data / "ARC-Easy" / f"{split}-00000-of-00001.parquet")
    files = "".join(f"  - split: {split}\n    path: ARC-Easy/{split}-*\n" for split in ("train", "validation", "test"))
    (data / "README.md").write_text(f"---\nconfigs:\n- config_name: ARC-Easy\n  data_files:\n{files}---\n")
    return folder


@pytest.mark.slow  # lm-eval reads 13,000 files to know its tasks
def test_stock_task_offline(models: dict[str, Any], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts have examples, which are the same every time. The paper's rows stand below."""
    for module in (datasets.config, huggingface_hub.constants):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    asked: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: asked.append(args))
    model, _ = models["llama3"]
    words: tuple[Any, ...] = (
        "evaluate",
        "lm-eval",
        model.name,
        "--tasks",
        "arc_easy",
        "--data-root",
        hub_copy(tmp_path / "hub"),
    )
    words += ("--num-fewshot", 1, "--max-examples", 5)
    found = []
    for name in ("a", "b"):
        status, printed, errors = command(*words, "--output", tmp_path / name)
        assert status == 0, errors
        found.append((tmp_path / name / "lm-eval" / "model" / "samples.jsonl").read_text())
    samples = [json.loads(line) for line in found[0].splitlines()]
    assert found[0] == found[1]
    assert len(samples) == 5
    assert samples[3]["prompt"][0][0].endswith("\n\nQuestion: What is 3?\nAnswer:")
    assert "arc_easy acc_norm (%)" in printed
    assert "| paper: TAPE " in printed
    assert "| 74.16 " in printed
    status, _, errors = command("evaluate", "lm-eval", model.name, "--tasks", "arc_eazy", "--output", tmp_path / "c")
    assert status == 2
    assert "--tasks: lm-eval has no 'arc_eazy', but arc_easy" in errors
    words = ("evaluate", "lm-eval", model.name, "--data-root", tmp_path / "hub", "--output", tmp_path / "c", "--tasks")
    for task in ("arc_challenge", "hellaswag"):
        status, _, errors = command(*words, task)
        assert status == 2, errors
        assert f"--tasks: lm-eval cannot load {task} in --data-root {tmp_path / 'hub'}: " in errors, errors
    assert not asked


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "arc_easy,scrolls_qasper"], "lm-eval's scrolls_qasper needs a part of transformers that is gone"),
        (["--tasks", "words", "--include", "nowhere"], "--include nowhere: no such folder"),
        (["--tasks", "words", "--data-root", "nowhere"], "--data-root nowhere: no such folder"),
        (["--tasks", "words", "--num-fewshot", "-1"], "--num-fewshot: must be greater than or equal to 0, got '-1'"),
        (["--tasks", "words", "--max-examples", "0"], "--max-examples: must be greater than or equal to 1, got '0'"),
    ],
)
def test_bad_options_are_refused(
    models: dict[str, Any], command: Command, tmp_path: Path, words: list[str], message: str
) -> None:
    status, printed, errors = command("evaluate", "lm-eval", models["llama3"][0].name, *words, "--output", tmp_path / "out")
    assert status == 2, errors
    assert printed == "", errors
    assert errors.count("\n") == 1, errors
    assert message in errors, errors


def test_missing_data_are_refused(models: dict[str, Any], own_task: Path, command: Command, tmp_path: Path) -> None:
    (own_task / "test.jsonl").unlink()
    words = ("evaluate", "lm-eval", models["llama3"][0].name, "--tasks", "words", "--include", own_task)
    status, printed, errors = command(*words, "--output", tmp_path / "out")
    assert status == 2
    assert printed == ""
    assert "error: task lm-eval: --tasks: lm-eval cannot load words: " in errors


def test_missing_package_is_reported_with_the_command_to_install_it(
    models: dict[str, Any], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not (Path(folder) / "lm_eval").is_dir()])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    loading.task_manager.cache_clear()
    words = ("evaluate", "lm-eval", models["llama3"][0].name, "--tasks", "words", "--output", tmp_path / "out")
    status, _, errors = command(*words)
    assert status == 2
    assert 'pip install -c constraints.txt -e ".[lm-eval]"' in errors
