"""The frame of `megatape evaluate`: folders, tables, evaluations that were stopped, and ranks that divide the work."""

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
from megatape.lab.tasks.perplexity.task import Perplexity
from megatape.lab.tasks.registry import TASKS
from megatape.utils.options import Listed
from tests.helpers.lab.evaluations import LENGTHS, Evaluate
from tests.helpers.models.memory_checkpoint import memory_checkpoint
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import WITH_TRANSFORMERS, Workers

BATCHES = 3 + 6  # at most 4096 tokens each, of 359 windows of each length


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".png"}


def test_one_that_was_stopped_goes_on(evaluate: Evaluate, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after every batch, each time with a torn last line: every batch is answered once, the results are equal."""
    folder = tmp_path / "out" / "perplexity" / model.name
    run = Perplexity.run
    answered: list[tuple[int, int]] = []
    assert evaluate(model)[0] == 0
    whole = content(folder)
    shutil.rmtree(tmp_path / "out")

    def stopping(self: Perplexity, model: Any, batch: Any) -> Any:
        if stop.pop():
            raise KeyboardInterrupt
        answered.append((batch[0].length, batch[0].begin))
        return run(self, model, batch)

    monkeypatch.setattr(Perplexity, "run", stopping)
    statuses: list[int] = []
    while 0 not in statuses:
        stop = [True, False] if len(answered) < BATCHES else []
        statuses.append(evaluate(model)[0])
        if statuses[-1]:
            assert not (folder / "results.json").exists()
            with (folder / "samples-0.jsonl").open("a") as file:
                file.write('\n{"example": 0, "length')
    assert statuses == [130] * (BATCHES - 1) + [0]  # after the last one it does not come to a stop
    assert len(set(answered)) == len(answered) == BATCHES
    assert content(folder) == whole and len(whole["samples.jsonl"].splitlines()) == 2 * len(range(0, 1500 - 64, 4))

    stop = []  # nothing is left to answer
    assert evaluate(model)[0] == 0 and content(folder) == whole


def test_samples_that_were_altered_are_asked_again(
    evaluate: Evaluate, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out" / "perplexity" / model.name
    settings = ("--lengths", "32", "--max-tokens", "500")
    assert evaluate(model, settings=settings)[0] == 0
    whole = content(folder)
    lines = whole["samples.jsonl"].decode().splitlines()
    forged = [json.loads(line) | change for line, change in zip(lines, FORGED, strict=False)]
    altered = [*map(json.dumps, [*forged, [], 7, None, {"example": []}]), *lines[len(forged) :]]
    (folder / "samples.jsonl").write_text("\n".join(altered))
    assert evaluate(model, settings=settings)[0] == 0 and content(folder) == whole


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


def test_lines_of_an_earlier_version(evaluate: Evaluate, model: Path, tmp_path: Path) -> None:
    """Lines without a field are computed again; the settings are those of the earlier version."""
    folder = tmp_path / "out" / "perplexity" / model.name
    assert evaluate(model)[0] == 0
    whole = content(folder)
    lines = [json.loads(line) for line in whole["samples.jsonl"].splitlines()]
    for line in lines[::2]:
        del line["text_bytes"], line["sha256"]
        line["sha256"] = hashlib.sha256(json.dumps(line).encode()).hexdigest()
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert evaluate(model)[0] == 0 and content(folder) == whole


def test_only_with_the_same_settings(evaluate: Evaluate, model: Path, tmp_path: Path) -> None:
    settings = ("--lengths", "32", "--max-tokens", "500")
    assert evaluate(model, settings=settings)[0] == 0
    folder = tmp_path / "out" / "perplexity" / model.name
    before = content(folder)
    code, _, errors = evaluate(model, settings=("--lengths", "32", "--max-tokens", "600"))
    assert code == 2 and "settings.max_tokens is 500 there and 600 here: choose another --output" in errors
    changed = tmp_path / "changed" / model.name
    shutil.copytree(model, changed)
    (changed / "generation_config.json").write_text("{}")
    code, _, errors = evaluate(changed, settings=settings)
    assert code == 2 and f'model.name is "{model}" there and "{changed}" here' in errors
    assert content(folder) == before
    (folder / "samples.jsonl").unlink()  # one that never began leaves nothing to mix with
    assert evaluate(model, settings=("--lengths", "32", "--max-tokens", "600"))[0] == 0
    (folder / "settings.json").write_text("no JSON")
    assert "describes no evaluation" in evaluate(model, settings=settings)[2]


def test_paths_without_end(evaluate: Evaluate, command: Command, model: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "loop: no such folder" in evaluate(tmp_path / "loop")[2]
    os.mkfifo(tmp_path / "pipe")
    errors = command("evaluate", "perplexity", model, "--data", tmp_path / "pipe", "--output", tmp_path / "out")[2]
    assert "pipe is a device or a pipe: give a text file" in errors


def test_only_with_the_same_text(evaluate: Evaluate, command: Command, model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    out = tmp_path / "out"
    for content, status in (("some words. " * 40, 0), ("other words. " * 40, 2)):
        text.write_text(content)
        code, _, errors = command("evaluate", "perplexity", model, "--data", text, "--lengths", "32", "--output", out)
        assert code == status, errors
    assert "settings: examples." in errors


@pytest.mark.slow
def test_ranks_agree(evaluate: Evaluate, model: Path, data_directory: Path, tmp_path: Path) -> None:
    """Several ranks give the results of one, to the last bit."""
    assert evaluate(model)[0] == 0
    out = tmp_path / "divided"
    words = ["evaluate", "perplexity", str(model), "--data", str(data_directory), *LENGTHS, "--output", str(out)]
    with Workers(words, 4, tmp_path / "workers", imports=WITH_TRANSFORMERS) as workers:
        assert workers.statuses() == [0] * 4, workers.logs()
    assert content(out / "perplexity" / model.name) == content(tmp_path / "out" / "perplexity" / model.name)


def test_several_models_and_tasks(command: Command, data_directory: Path, model: Path, tmp_path: Path) -> None:
    """A row for each model, those of the paper where they have its columns, and samples with everything that was said."""
    other = tmp_path / "other"
    checkpoint, _ = memory_checkpoint(data_directory / "tokenizer.model", encoding="rope")
    export(checkpoint, other)
    words = ("--data", data_directory, "--lengths", "64", "--mode", "authors", "--max-tokens", 1000)
    status, printed, errors = command("evaluate", "perplexity", model, other, *words, "--output", tmp_path / "out")
    assert status == 0, errors
    rows = (tmp_path / "out" / "perplexity" / "results.md").read_text().splitlines()
    assert [row.split("|")[1].strip() for row in rows[2:]] == ["exported", "other"] and all(row in printed for row in rows)
    lines = printed.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("exported: perplexity"))
    assert [line.partition(": perplexity")[0] for line in lines[first - 1 : first + 3]] == ["", "exported", "other", ""]
    found = [
        json.loads((tmp_path / "out" / "perplexity" / name / "results.json").read_text()) for name in ("exported", "other")
    ]
    assert found[0]["model"]["sha256"] != found[1]["model"]["sha256"]
    assert found[0]["settings"] == {
        "data": str(data_directory),
        "lengths": [64],
        "mode": "authors",
        "stride": None,
        "max_tokens": 1000,
    }
    assert found[0]["measures"][0]["n"] == 63 * 4 and set(found[0]["versions"]) > {"transformers"}
    assert found[0]["paper"]["TAPE, Llama 2 7B on PG19"]["perplexity at 8192"] == 7.063

    status, _, errors = command("evaluate", "perplexity,passkey", model, *words, "--output", tmp_path / "both")
    assert status == 2 and "--lengths 64 is too short for --protocol authors" in errors
    assert "error: task passkey: --lengths 64" in errors and not (tmp_path / "both").exists()  # before perplexity


def test_any_name_of_a_model(evaluate: Evaluate, model: Path, tmp_path: Path) -> None:
    """In the table, and in a picture's title, which matplotlib searches for formulas."""
    odd = tmp_path / "a|b $\\frac$"
    shutil.copytree(model, odd)
    status, _, errors = evaluate(odd, settings=("--lengths", "32", "--max-tokens", "500"))
    assert status == 0, errors
    rows = (tmp_path / "out" / "perplexity" / "results.md").read_text(encoding="utf-8").splitlines()
    assert rows[2].startswith("| a\\|b $\\frac$ |")


def test_a_full_gpu(evaluate: Evaluate, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nMore")

    monkeypatch.setattr(Perplexity, "run", run)
    code, _, errors = evaluate(model)
    assert code == 2 and "does not fit on the GPU (CUDA out of memory. Tried to allocate 2 GiB): divide it" in errors


@dataclass(frozen=True)
class Length:
    """The number of tokens of a word."""

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
    """A task of one's own: how many tokens words have.

    Attributes:
        words: words to encode
    """

    words: Listed[str]
    prediction = Length

    def batches(self, model: ModelOutline) -> list[list[str]]:
        return [[word] for word in self.words]

    def run(self, model: EvaluationModel, batch: list[str]) -> list[Length]:
        return [Length(word, len(model.tokenizer(word, add_special_tokens=False)["input_ids"])) for word in batch]

    def result(self, predictions: list[Length]) -> Lengths:
        return Lengths([each.num_tokens for each in predictions])


def test_a_task_of_one_s_own(command: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class, and a line of the registry."""
    monkeypatch.setitem(TASKS, "word-lengths", Entry(f"{__name__}:WordLengths", "lengths of words"))
    words = ("evaluate", "word-lengths", model, "--words", "a,aaaa", "--output", tmp_path / "out")
    status, printed, errors = command(*words)
    assert status == 0, errors
    assert "| exported" in printed and "tokens" in printed
    folder = tmp_path / "out" / "word-lengths" / model.name
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [line["word"] for line in lines] == ["a", "aaaa"] and lines[0]["num_tokens"] < lines[1]["num_tokens"]
    pictures = [Image.open(folder / f"word-lengths{ending}.png").convert("RGB").getpixel((0, 0)) for ending in ("", "-dark")]
    assert pictures == [(255, 255, 255), (0x12, 0x16, 0x1C)]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("perplexity,perplexity", "'perplexity' is given twice"),
        ("perplexity,passkeys", "did you mean passkey? choose one of perplexity, passkey"),
        ("", "choose one of perplexity, passkey"),
        ("mine", "to use a task of your own, give its file with --import before the tasks"),
    ],
)
def test_unknown_tasks(command: Command, tasks: str, message: str) -> None:
    status, _, errors = command("evaluate", tasks, "a", "--output", "b")
    assert status == 2 and message in errors


def test_all_tasks_share_their_options(command: Command, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command("evaluate", ",".join(TASKS), "--help")
    assert "--lengths" in capfd.readouterr().out


def test_names() -> None:
    runs = [Path(f"/runs/{name}/checkpoints/step-00000010") for name in ("tape", "rope")]
    assert name_models([*runs, Path("/exported")]) == [
        "tape_checkpoints_step-00000010",
        "rope_checkpoints_step-00000010",
        "exported",
    ]
    assert name_models([Path("/model"), Path("/data/model")]) == ["model", "data_model"]  # no path that leads elsewhere
    with pytest.raises(ValueError, match="results of b/a and of another model would both be in b_a: rename"):
        name_models([Path("b/a"), Path("c/a"), Path("b_a")])
    with pytest.raises(ValueError, match="/exported is given twice"):
        name_models([Path("/exported"), Path("/a/../exported")])


@pytest.fixture(scope="module")
def long(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with room for passkeys."""
    folder = tmp_path_factory.mktemp("models") / "long"
    export(memory_checkpoint(data_directory / "tokenizer.model", max_positions=512)[0], folder)
    return folder


def test_nothing_runs_before_all_inputs_are_good(
    command: Command, data_directory: Path, long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A length that only the second model lacks, and results of other settings that only the second task has."""
    small = tmp_path / "small"
    out = tmp_path / "out"
    export(memory_checkpoint(data_directory / "tokenizer.model", max_positions=64)[0], small)
    data = ("--data", data_directory, "--max-tokens", 500)
    passkey = ("--protocol", "grid", "--trials", 1)
    assert command("evaluate", "passkey", long, "--lengths", 400, *passkey, "--output", out)[0] == 0
    runs: list[str] = []
    monkeypatch.setattr(Perplexity, "run", lambda self, model, batch: runs.append(model.name))

    words = ("evaluate", "perplexity,passkey", long, *data, *passkey, "--lengths", 64, "--output", out)
    status, printed, errors = command(*words, "--passkey-lengths", 401)
    assert (status, printed, runs) == (2, "", []) and "settings.lengths is [400] there and [401] here" in errors
    status, printed, errors = command("evaluate", "perplexity,passkey", long, small, *words[3:], "--passkey-lengths", 400)
    assert (status, printed, runs) == (2, "", []) and "error: task passkey: --lengths 400: " in errors and str(small) in errors


def both_tasks(model: Path, data: Path, out: Path) -> tuple[object, ...]:
    """Words that evaluate perplexity and passkey, with one value of `--lengths`."""
    settings = ("--max-tokens", 500, "--protocol", "grid", "--trials", 1, "--lengths", 64)
    return ("evaluate", "perplexity,passkey", model, "--data", data, *settings, "--output", out)


def test_lengths_of_one_task(
    command: Command, data_directory: Path, long: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`--passkey-lengths` is for passkey alone, and other tasks keep `--lengths`."""
    words = both_tasks(long, data_directory, tmp_path / "out")
    status, _, errors = command(*words, "--pasky-lengths", 400)
    assert status == 2 and "--pasky-lengths is not an option: did you mean --passkey-lengths?" in errors
    status, printed, errors = command(*words, "--passkey-lengths", 400)
    assert status == 0, errors
    assert "examples for long: perplexity 7 in 1 batches, passkey 5 in " in printed
    lengths = {
        task: json.loads((tmp_path / "out" / task / "long" / "results.json").read_text())["settings"]["lengths"]
        for task in ("perplexity", "passkey")
    }
    assert lengths == {"perplexity": [64], "passkey": [400]}
    with pytest.raises(SystemExit):
        command("evaluate", "perplexity,passkey", "--help")
    assert "--passkey-lengths" in capfd.readouterr().out
    with pytest.raises(SystemExit):
        command("evaluate", "passkey", "--help")
    assert "--passkey-lengths" not in capfd.readouterr().out


def test_results_stay(
    command: Command, data_directory: Path, long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a task that is done, with its table, when the next one fails; the same command evaluates only the latter."""
    words = (*both_tasks(long, data_directory, tmp_path / "out"), "--passkey-lengths", 400)
    run = Perplexity.run
    runs = []
    with monkeypatch.context() as patch:
        patch.setattr("megatape.lab.tasks.passkey.task.Passkey.run", interrupt)
        status, printed, errors = command(*words)
    assert status == 130 and "run the same command again to continue" in errors and "long: perplexity (" in printed
    table = tmp_path / "out" / "perplexity" / "results.md"
    before = {path: path.read_bytes() for path in [table, table.parent / "long" / "results.json"]}
    assert not list((tmp_path / "out" / "passkey").rglob("results.*"))
    monkeypatch.setattr(Perplexity, "run", lambda *each: runs.append(each) or run(*each))  # type: ignore[func-returns-value]
    assert command(*words)[0] == 0 and not runs
    assert before == {path: path.read_bytes() for path in before}


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt
