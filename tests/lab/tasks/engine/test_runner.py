"""Runner of `megatape evaluate`: folders, tables, stopped evaluations, and ranks that share the work."""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from megatape.entries import Entry
from megatape.hf.exporting.exporter import export
from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.result import Measure
from megatape.lab.tasks.engine.runner import name_models
from megatape.lab.tasks.engine.task import Task
from megatape.lab.tasks.passkey.task import Passkey
from megatape.lab.tasks.perplexity.task import Perplexity
from megatape.lab.tasks.registry import TASKS
from megatape.utils.options import Listed
from tests.helpers.lab.evaluations import LENGTHS, Evaluate
from tests.helpers.models.memory_checkpoint import memory_checkpoint
from tests.helpers.processes.command import Command, assert_refused
from tests.helpers.processes.workers import WITH_TRANSFORMERS, Workers

# Number of batches with the settings LENGTHS, 3 + 6: at most 4096 tokens each, of 359 windows of each length.
NUM_BATCHES = 3 + 6
# Settings of a quick evaluation.
QUICK = ("--lengths", "32", "--max-tokens", "500")


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of an evaluation, without pictures."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".png"}


def assert_evaluated(result: tuple[int, str, str]) -> None:
    status, _, errors = result
    assert status == 0, errors


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    """Folder with the results of `evaluate(model)`."""
    return tmp_path / "out" / "perplexity" / model.name


class StoppingTask:
    """Replacement of `Perplexity.run` that is interrupted after each batch.

    Attributes:
        predicted: Length and beginning of the batches that were predicted.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.predicted: list[tuple[int, int]] = []
        self._is_first = True
        run = Perplexity.run

        def run_or_stop(task: Perplexity, model: Any, batch: Any) -> Any:
            if not self._is_first:
                raise KeyboardInterrupt
            self._is_first = False
            self.predicted.append((batch[0].length, batch[0].begin))
            return run(task, model, batch)

        monkeypatch.setattr(Perplexity, "run", run_or_stop)

    def restart(self) -> None:
        """Predict one batch before the next interruption."""
        self._is_first = True


def test_stopped_evaluation_resumes_with_the_same_results(
    evaluate: Evaluate, model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped after every batch, each time with a torn last line. Every batch is predicted once."""
    assert_evaluated(evaluate(model))
    expected = content(folder)
    assert len(expected["samples.jsonl"].splitlines()) == 2 * len(range(0, 1500 - 64, 4))
    shutil.rmtree(tmp_path / "out")
    task = StoppingTask(monkeypatch)

    for _ in range(NUM_BATCHES - 1):
        task.restart()
        status, _, _ = evaluate(model)
        assert status == 130
        assert not (folder / "results.json").exists()
        with (folder / "samples-0.jsonl").open("a") as file:
            file.write('\n{"example": 0, "length')
    task.restart()
    assert_evaluated(evaluate(model))

    assert content(folder) == expected
    assert len(task.predicted) == NUM_BATCHES
    assert len(set(task.predicted)) == NUM_BATCHES


def test_finished_evaluation_predicts_nothing(
    evaluate: Evaluate, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_evaluated(evaluate(model, settings=QUICK))
    expected = content(folder)
    monkeypatch.setattr(Perplexity, "run", interrupt)

    assert_evaluated(evaluate(model, settings=QUICK))

    assert content(folder) == expected


# Changes of lines that make them invalid.
FORGED: list[dict[str, Any]] = [
    {"losses": "a"},
    {"losses": [float("nan")]},
    {"length": None},
    {"begin": 10**30},
    {"scored": 10**15},
    {"size": 1e300},
    {"example": 3},
    {"sha256": ""},
]
# Lines that are no predictions.
FOREIGN: list[Any] = [[], 7, None, {"example": []}]


def test_altered_predictions_are_computed_again(evaluate: Evaluate, model: Path, folder: Path) -> None:
    assert_evaluated(evaluate(model, settings=QUICK))
    expected = content(folder)
    lines = expected["samples.jsonl"].decode().splitlines()
    altered = []
    for line, change in zip(lines, FORGED, strict=False):
        altered.append(json.dumps(json.loads(line) | change))
    altered += [json.dumps(line) for line in FOREIGN]
    (folder / "samples.jsonl").write_text("\n".join([*altered, *lines[len(FORGED) :]]))

    assert_evaluated(evaluate(model, settings=QUICK))

    assert content(folder) == expected


def test_lines_of_an_earlier_version_are_computed_again(evaluate: Evaluate, model: Path, folder: Path) -> None:
    """They lack a field. The settings are those of the earlier version."""
    assert_evaluated(evaluate(model, settings=QUICK))
    expected = content(folder)
    lines = [json.loads(line) for line in expected["samples.jsonl"].splitlines()]
    for line in lines[::2]:
        del line["text_bytes"]
        del line["sha256"]
        line["sha256"] = hashlib.sha256(json.dumps(line).encode()).hexdigest()
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert_evaluated(evaluate(model, settings=QUICK))

    assert content(folder) == expected


def test_other_settings_are_refused(evaluate: Evaluate, model: Path, folder: Path) -> None:
    assert_evaluated(evaluate(model, settings=QUICK))
    before = content(folder)

    assert_refused(
        evaluate(model, settings=("--lengths", "32", "--max-tokens", "600")),
        "settings.max_tokens is 500 there and 600 here: choose another --output",
    )
    assert content(folder) == before


def test_another_model_of_the_same_name_is_refused(evaluate: Evaluate, model: Path, folder: Path, tmp_path: Path) -> None:
    assert_evaluated(evaluate(model, settings=QUICK))
    before = content(folder)
    changed = tmp_path / "changed" / model.name
    shutil.copytree(model, changed)
    (changed / "generation_config.json").write_text("{}")

    assert_refused(evaluate(changed, settings=QUICK), f'model.name is "{model}" there and "{changed}" here')
    assert content(folder) == before


def test_other_settings_replace_an_evaluation_without_predictions(evaluate: Evaluate, model: Path, folder: Path) -> None:
    """There is nothing that they could be mixed with."""
    assert_evaluated(evaluate(model, settings=QUICK))
    (folder / "samples.jsonl").unlink()

    assert_evaluated(evaluate(model, settings=("--lengths", "32", "--max-tokens", "600")))


def test_malformed_settings_are_refused(evaluate: Evaluate, model: Path, folder: Path) -> None:
    assert_evaluated(evaluate(model, settings=QUICK))
    (folder / "settings.json").write_text("no JSON")

    _, _, errors = evaluate(model, settings=QUICK)

    assert "describes no evaluation" in errors


def test_model_that_links_to_itself_is_refused(evaluate: Evaluate, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")

    _, _, errors = evaluate(tmp_path / "loop")

    assert "loop: no such folder" in errors


def test_data_from_a_pipe_is_refused(command: Command, model: Path, tmp_path: Path) -> None:
    """Reading it would wait forever."""
    os.mkfifo(tmp_path / "pipe")

    _, _, errors = command("evaluate", "perplexity", model, "--data", tmp_path / "pipe", "--output", tmp_path / "out")

    assert "pipe is a device or a pipe: give a text file" in errors


def test_another_text_is_refused(command: Command, model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    words = ("evaluate", "perplexity", model, "--data", text, "--lengths", "32", "--output", tmp_path / "out")
    text.write_text("some words. " * 40)
    assert_evaluated(command(*words))
    text.write_text("other words. " * 40)

    assert_refused(command(*words), "settings: examples.")


@pytest.mark.slow
def test_several_ranks_give_the_results_of_one(
    evaluate: Evaluate, model: Path, folder: Path, data_directory: Path, tmp_path: Path
) -> None:
    """They are equal to the last bit."""
    assert_evaluated(evaluate(model))
    out = tmp_path / "distributed"
    words = ["evaluate", "perplexity", str(model), "--data", str(data_directory), *LENGTHS, "--output", str(out)]

    with Workers(words, 4, tmp_path / "workers", imports=WITH_TRANSFORMERS) as workers:
        assert workers.statuses() == [0] * 4, workers.logs()

    assert content(out / "perplexity" / model.name) == content(folder)


def test_several_models_share_a_table(command: Command, data_directory: Path, model: Path, tmp_path: Path) -> None:
    """There is a row for each model, in the file and printed, and every model has results of its own."""
    other = tmp_path / "other"
    checkpoint, _ = memory_checkpoint(data_directory / "tokenizer.model", encoding="rope")
    export(checkpoint, other)
    words = ("--data", data_directory, "--lengths", "64", "--mode", "authors", "--max-tokens", 1000)

    status, printed, errors = command("evaluate", "perplexity", model, other, *words, "--output", tmp_path / "out")

    assert status == 0, errors
    folder = tmp_path / "out" / "perplexity"
    rows = (folder / "results.md").read_text().splitlines()
    assert [row.split("|")[1].strip() for row in rows[2:]] == ["exported", "other"]
    for row in rows:
        assert row in printed
    lines = printed.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("exported: perplexity"))
    assert [line.partition(": perplexity")[0] for line in lines[first - 1 : first + 3]] == ["", "exported", "other", ""]

    results = json.loads((folder / "exported" / "results.json").read_text())
    other_results = json.loads((folder / "other" / "results.json").read_text())
    assert results["model"]["sha256"] != other_results["model"]["sha256"]
    assert results["settings"] == {
        "data": str(data_directory),
        "lengths": [64],
        "mode": "authors",
        "stride": None,
        "max_tokens": 1000,
    }
    assert results["measures"][0]["n"] == 63 * 4
    assert set(results["versions"]) > {"transformers"}
    assert results["paper"]["TAPE, Llama 2 7B on PG19"]["perplexity at 8192"] == 7.063


def test_settings_of_the_second_task_are_checked_before_the_first_runs(
    command: Command, data_directory: Path, model: Path, tmp_path: Path
) -> None:
    words = ("--data", data_directory, "--lengths", "64", "--mode", "authors", "--max-tokens", 1000)

    status, _, errors = command("evaluate", "perplexity,passkey", model, *words, "--output", tmp_path / "both")

    assert status == 2
    assert "error: task passkey: --lengths 64" in errors
    assert "--lengths 64 is too short for --protocol authors" in errors
    assert not (tmp_path / "both").exists()


def test_any_name_of_a_model(evaluate: Evaluate, model: Path, tmp_path: Path) -> None:
    """A table needs its bars escaped, and matplotlib searches a picture's title for formulas."""
    odd = tmp_path / "a|b $\\frac$"
    shutil.copytree(model, odd)

    assert_evaluated(evaluate(odd, settings=QUICK))

    rows = (tmp_path / "out" / "perplexity" / "results.md").read_text(encoding="utf-8").splitlines()
    assert rows[2].startswith("| a\\|b $\\frac$ |")


def test_full_gpu_is_reported(evaluate: Evaluate, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nMore")

    monkeypatch.setattr(Perplexity, "run", run)

    assert_refused(evaluate(model), "does not fit on the GPU (CUDA out of memory. Tried to allocate 2 GiB): divide it")


@dataclass(frozen=True)
class Length:
    """Number of tokens in a word."""

    word: str
    num_tokens: int


@dataclass(frozen=True)
class Lengths:
    """Results of the task below."""

    lengths: list[int]
    summary = "lengths"

    @property
    def measures(self) -> list[Measure]:
        return [Measure("tokens", max(self.lengths), None, len(self.lengths))]

    def describe(self) -> dict[str, Any]:
        return vars(self)

    def draw(self, figure: Figure) -> None:
        figure.add_subplot().plot(self.lengths)


@dataclass(frozen=True)
class WordLengths(Task[str, Length, Lengths]):
    """Task of a user: how many tokens words have.

    Attributes:
        words: words to encode
    """

    words: Listed[str]
    prediction = Length

    def batches(self, model: ModelOutline) -> list[list[str]]:
        return [[word] for word in self.words]

    def run(self, model: EvaluationModel, batch: list[str]) -> list[Length]:
        lengths = []
        for word in batch:
            ids = model.tokenizer(word, add_special_tokens=False)["input_ids"]
            lengths.append(Length(word, len(ids)))
        return lengths

    def result(self, predictions: list[Length]) -> Lengths:
        return Lengths([each.num_tokens for each in predictions])


def test_own_task(command: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class and a line of the registry are enough."""
    monkeypatch.setitem(TASKS, "word-lengths", Entry(f"{__name__}:WordLengths", "lengths of words"))

    status, printed, errors = command("evaluate", "word-lengths", model, "--words", "a,aaaa", "--output", tmp_path / "out")

    assert status == 0, errors
    assert "| exported" in printed
    assert "tokens" in printed
    folder = tmp_path / "out" / "word-lengths" / model.name
    short, long = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert short["word"] == "a"
    assert long["word"] == "aaaa"
    assert short["num_tokens"] < long["num_tokens"]
    assert _corner_color(folder / "word-lengths.png") == (255, 255, 255)
    assert _corner_color(folder / "word-lengths-dark.png") == (0x12, 0x16, 0x1C)


def _corner_color(picture: Path) -> Any:
    return Image.open(picture).convert("RGB").getpixel((0, 0))


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("perplexity,perplexity", "'perplexity' is given twice"),
        ("perplexity,passkeys", "did you mean passkey? choose one of perplexity, passkey"),
        ("", "choose one of perplexity, passkey"),
        ("mine", "to use a task of your own, give its file with --import before the tasks"),
    ],
)
def test_unknown_tasks_are_refused(command: Command, tasks: str, message: str) -> None:
    status, _, errors = command("evaluate", tasks, "a", "--output", "b")

    assert status == 2
    assert message in errors


def _help(command: Command, capfd: pytest.CaptureFixture[str], tasks: str) -> str:
    with pytest.raises(SystemExit):
        command("evaluate", tasks, "--help")
    return capfd.readouterr().out


def test_all_tasks_share_their_options(command: Command, capfd: pytest.CaptureFixture[str]) -> None:
    assert "--lengths" in _help(command, capfd, ",".join(TASKS))


def test_folder_names_of_checkpoints() -> None:
    tape = Path("/runs/tape/checkpoints/step-00000010")
    rope = Path("/runs/rope/checkpoints/step-00000010")

    assert name_models([tape, rope, Path("/exported")]) == [
        "tape_checkpoints_step-00000010",
        "rope_checkpoints_step-00000010",
        "exported",
    ]


def test_folder_names_lead_nowhere_else() -> None:
    assert name_models([Path("/model"), Path("/data/model")]) == ["model", "data_model"]


def test_models_with_one_folder_name_are_refused() -> None:
    with pytest.raises(ValueError, match="results of b/a and of another model would both be in b_a: rename"):
        name_models([Path("b/a"), Path("c/a"), Path("b_a")])


def test_repeated_models_are_refused() -> None:
    with pytest.raises(ValueError, match="/exported is given twice"):
        name_models([Path("/exported"), Path("/a/../exported")])


@pytest.fixture(scope="module")
def long(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with room for passkeys."""
    folder = tmp_path_factory.mktemp("models") / "long"
    checkpoint, _ = memory_checkpoint(data_directory / "tokenizer.model", max_positions=512)
    export(checkpoint, folder)
    return folder


@pytest.fixture
def perplexity_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that predict for perplexity, which they don't in this test."""
    names: list[str] = []
    monkeypatch.setattr(Perplexity, "run", lambda self, model, batch: names.append(model.name))
    return names


GRID = ("--protocol", "grid", "--trials", 1)


def test_nothing_runs_if_the_second_task_has_results_of_other_settings(
    command: Command, data_directory: Path, long: Path, tmp_path: Path, perplexity_runs: list[str]
) -> None:
    out = tmp_path / "out"
    assert_evaluated(command("evaluate", "passkey", long, "--lengths", 400, *GRID, "--output", out))

    words = (*both_tasks(data_directory, out, long), "--passkey-lengths", 401)
    status, printed, errors = command(*words)

    assert status == 2
    assert "settings.lengths is [400] there and [401] here" in errors
    assert printed == ""
    assert perplexity_runs == []


def test_nothing_runs_if_the_second_model_lacks_a_length(
    command: Command, data_directory: Path, long: Path, tmp_path: Path, perplexity_runs: list[str]
) -> None:
    small = tmp_path / "small"
    checkpoint, _ = memory_checkpoint(data_directory / "tokenizer.model", max_positions=64)
    export(checkpoint, small)

    words = (*both_tasks(data_directory, tmp_path / "out", long, small), "--passkey-lengths", 400)
    status, printed, errors = command(*words)

    assert status == 2
    assert "error: task passkey: --lengths 400: " in errors
    assert str(small) in errors
    assert printed == ""
    assert perplexity_runs == []


def both_tasks(data: Path, out: Path, *models: Path) -> tuple[object, ...]:
    """Return words that evaluate perplexity and passkey with one value of `--lengths`."""
    settings = ("--max-tokens", 500, *GRID, "--lengths", 64)
    return ("evaluate", "perplexity,passkey", *models, "--data", data, *settings, "--output", out)


def test_option_for_one_task_leaves_the_others(command: Command, data_directory: Path, long: Path, tmp_path: Path) -> None:
    """`--passkey-lengths` is for passkey alone, and other tasks use `--lengths`."""
    out = tmp_path / "out"

    status, printed, errors = command(*both_tasks(data_directory, out, long), "--passkey-lengths", 400)

    assert status == 0, errors
    assert "examples for long: perplexity 7 in 1 batches, passkey 5 in " in printed
    perplexity = json.loads((out / "perplexity" / "long" / "results.json").read_text())
    passkey = json.loads((out / "passkey" / "long" / "results.json").read_text())
    assert perplexity["settings"]["lengths"] == [64]
    assert passkey["settings"]["lengths"] == [400]


def test_misspelled_option_for_one_task_is_refused(command: Command, data_directory: Path, long: Path, tmp_path: Path) -> None:
    status, _, errors = command(*both_tasks(data_directory, tmp_path / "out", long), "--pasky-lengths", 400)

    assert status == 2
    assert "--pasky-lengths is not an option: did you mean --passkey-lengths?" in errors


def test_help_lists_options_for_one_task_if_there_are_several(command: Command, capfd: pytest.CaptureFixture[str]) -> None:
    assert "--passkey-lengths" in _help(command, capfd, "perplexity,passkey")
    assert "--passkey-lengths" not in _help(command, capfd, "passkey")


def test_results_of_a_finished_task_stay_when_the_next_one_fails(
    command: Command, data_directory: Path, long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command then evaluates only the other task."""
    out = tmp_path / "out"
    words = (*both_tasks(data_directory, out, long), "--passkey-lengths", 400)

    with monkeypatch.context() as patch:
        patch.setattr(Passkey, "run", interrupt)
        status, printed, errors = command(*words)
    assert status == 130
    assert "run the same command again to continue" in errors
    assert "long: perplexity (" in printed
    table = out / "perplexity" / "results.md"
    results = out / "perplexity" / "long" / "results.json"
    expected_table = table.read_bytes()
    expected_results = results.read_bytes()
    assert not list((out / "passkey").rglob("results.*"))

    monkeypatch.setattr(Perplexity, "run", interrupt)
    assert_evaluated(command(*words))
    assert table.read_bytes() == expected_table
    assert results.read_bytes() == expected_results


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt
