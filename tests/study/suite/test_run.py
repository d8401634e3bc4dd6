"""megatape study suite: how models are scored, what is refused, and that the command goes on where it was stopped."""

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor

from megatape.config import parse_config
from megatape.data.synthetic.folder import Encoder
from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask
from megatape.data.training.positions import Positions
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS, Entry
from megatape.report.suite_page import write_page
from megatape.run_folder import RunFolder
from megatape.study.children import Children, locked
from megatape.study.runs import RunsFailed
from megatape.study.suite.baselines import BASELINES
from megatape.study.suite.failures import failures
from megatape.study.suite.measure import inapplicable, score_split
from megatape.study.suite.plan import parse_plan
from megatape.study.suite.records import read_records
from megatape.study.suite.run import suite
from megatape.study.suite.sizes import SIZES, Sizing

QUICK = Sizing(
    model={"num_layers": 2, "hidden_size": 16, "num_heads": 2, "mlp_size": 16},
    tokens=3 * 4 * 6,
    batch=4,
    micro_batch=4,
    precision="float32",
    rates=(1e-3, 1e-2),
    rate=1e-3,
    validation=8,
    test=6,
)


class Capitals(SyntheticTask):
    """Letters, each followed by its capital: `aAbB`. Key: which letter it is."""

    alphabet = "abcABC"
    axis = "letter"
    scored: ClassVar[Literal["answers", "samples"]] = "answers"
    answers_end = True

    def make_splits(self, size: Size) -> dict[str, Split]:
        return {"train": Split(4), "test": Split(4), "long": Split(12, "longer")}

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        letters = generator.choices("abc", k=generator.randint(1, split.characters // 2))
        answers = tuple(Answer(2 * place + 1, 2 * place + 2, place) for place in range(len(letters)))
        return SyntheticSample("".join(letter + letter.upper() for letter in letters), answers)


class WholeCapitals(Capitals):
    """A sample is right if all of its answers are."""

    scored: ClassVar[Literal["answers", "samples"]] = "samples"


@pytest.fixture
def capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task `capitals`, learned in three steps."""
    monkeypatch.setitem(SYNTHETIC_TASKS, "capitals", Entry(f"{__name__}:Capitals", "capitals"))
    monkeypatch.setitem(SIZES, "tiny", QUICK)


class Scripted(torch.nn.Module):
    """Follows letters by their capitals, but `c` by `A`, and never ends a text."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        ids = {letter: encoder.tokenizer.encode(letter)[0] for letter in "abcABC"}
        self.next = torch.zeros(encoder.tokenizer.vocab_size, dtype=torch.long)
        for letter, capital in zip("abc", "ABA", strict=True):
            self.next[ids[letter]] = ids[capital]
        self.encoding = self
        self.lengths: set[int] = set()

    def positions(self, random_offset: bool) -> Positions:
        return Positions()

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        assert tokens.shape == positions.shape
        self.lengths.add(tokens.shape[1])
        return torch.nn.functional.one_hot(self.next[tokens], len(self.next)).float()


@pytest.mark.parametrize("kind", [Capitals, WholeCapitals])
@pytest.mark.parametrize("batch_tokens", [1, 2**13])
def test_answers_are_right_if_every_token_is_the_likeliest(
    kind: type[Capitals], batch_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatape.study.suite.measure.BATCH_TOKENS", batch_tokens)
    task, count = kind("capitals", "tiny"), 40
    model: Any = Scripted(Encoder(task))
    scored = score_split(model, task, "long", count, 1)
    assert model.lengths == {13}
    expected, there = Counter[int](), Counter[int]()
    for sample in task.samples("long", count):
        letters = sample.text[::2]
        # The last answer includes the end token, which the model never gives.
        correct = [letter != "c" and place < len(letters) - 1 for place, letter in enumerate(letters)]
        for place, verdict in enumerate(correct) if kind is Capitals else [(len(letters) - 1, all(correct))]:
            there[place] += 1
            expected[place] += verdict
    assert scored.curve == tuple((key, expected[key], there[key]) for key in sorted(there))
    if kind is Capitals:
        assert 0 < scored.score < 1


def test_what_an_encoding_cannot_do_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Capitals("capitals", "tiny")
    monkeypatch.setitem(ENCODINGS, "xpos", replace(ENCODINGS["xpos"], max_positions=12))
    assert inapplicable(task, "test", "xpos") is inapplicable(task, "long", "rope") is None
    reason = inapplicable(task, "long", "xpos")
    assert reason == "not applicable because its samples have 13 tokens and xpos represents at most 12 positions"


@pytest.mark.parametrize("size", SIZES)
def test_every_size_suits_every_encoding(size: Size, tmp_path: Path) -> None:
    for task in parse_plan(size, "all", "rope", 1, None).tasks:
        sizing = SIZES[size]
        raw = sizing.config(task, "data", 300) | {"run": {"directory": str(tmp_path)}}
        for encoding in ENCODINGS:
            config = parse_config(raw | {"model": raw["model"] | {"encoding": encoding}}, "test")
            assert all(inapplicable(task, split, encoding) is None for split in task.splits)
        training = config.training
        assert training.global_batch_size % training.micro_batch_size == 0
        assert sizing.tokens / 2 < training.steps * sizing.batch * task.tokens("train") <= sizing.tokens
        assert sizing.rate in sizing.rates


@pytest.mark.usefixtures("capitals")
def test_bad_input() -> None:
    plan = parse_plan("tiny", "all", "all", 2, None)
    assert [task.name for task in plan.tasks] == list(SYNTHETIC_TASKS) and plan.encodings == tuple(ENCODINGS)
    assert plan.rates == QUICK.rates and parse_plan("tiny", "all", "all", 2, "0.1, 0.2").rates == (0.1, 0.2)
    for arguments, message in [
        (("huge", "all", "all", 1, None), "size: 'huge' is not a size: choose from tiny, small, base"),
        (("tiny", "capital", "all", 1, None), "tasks: 'capital' is not a task: choose from flip_flop, "),
        (("tiny", "capitals,capitals", "all", 1, None), "tasks: capitals is listed twice"),
        (("tiny", "all", "ropes", 1, None), "'ropes' is not an encoding"),
        (("tiny", "all", "rope,rope", 1, None), "rope is listed twice"),
        (("tiny", "all", "rope", 1, "fast"), "rates: 'fast' is not a number"),
        (("tiny", "all", "rope", 1, "0.1,-1"), "rates: -1 is not between 0 and 1"),
        (("tiny", "all", "rope", 1, "0.1,1e-1"), "rates: 1e-1 is listed twice"),
    ]:
        with pytest.raises(ValueError) as error:
            parse_plan(*arguments)
        assert message in str(error.value)


def read_scores(run: Path, file: str = "scores.json") -> dict[str, Any]:
    """A file of a run; of metrics those of the first step."""
    text = (run / file).read_text()
    content: dict[str, Any] = json.loads(text.splitlines()[0] if file.endswith("l") else text)
    return content


def run(out: Path, seeds: int, rates: str = "1e-3,1e-2", only: int | None = None) -> str:
    """Output of the command with two encodings."""
    plan = parse_plan("tiny", "capitals", "rope,tape", seeds, rates)
    return "\n".join(suite(plan, out, 1, None, "typed", write_page, only=only))


@pytest.mark.usefixtures("capitals", "quick_children")
def test_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, trained = Children.run, []

    def stop_at_the_fourth(self: Children, words: list[str], environment: dict[str, str], log: Path) -> int:
        if "pretrain" in words:
            trained.append(log.parent.relative_to(tmp_path))
            if len(trained) == 4:
                raise KeyboardInterrupt
        return start(self, words, environment, log)

    monkeypatch.setattr(Children, "run", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 1)
    assert {record.row for record in read_records(tmp_path / "results.jsonl")} == set(BASELINES)
    assert "capitals, tape: seeds 1 (not run yet, or failed)" in (tmp_path / "suite.md").read_text()
    printed = run(tmp_path, 1)
    losses = {
        (row, rate): read_scores(tmp_path / f"capitals/{row}/rate-{rate}/seed-0")["validation_loss"]
        for row in ("rope", "tape")
        for rate in (0.001, 0.01)
    }
    best = {row: min((0.001, 0.01), key=lambda rate: losses[row, rate]) for row in ("rope", "tape")}
    assert [str(folder) for folder in trained] == [
        "capitals/rope/rate-0.001/seed-0",
        "capitals/rope/rate-0.01/seed-0",
        "capitals/tape/rate-0.001/seed-0",
        *2 * ["capitals/tape/rate-0.01/seed-0"],  # stopped, and begun again
        *(f"capitals/{row}/rate-{rate}/seed-1" for row, rate in best.items()),
    ]
    assert f"capitals, tape, rate {best['tape']}, seed 1: validation loss" in printed

    records = read_records(tmp_path / "results.jsonl")
    assert [
        (record.row, record.split, record.seed, record.learning_rate) for record in records if record.kind == "encoding"
    ] == [(row, split, 1, best[row]) for split in ("long", "test") for row in ("rope", "tape")]
    assert {record.row for record in records} == {"rope", "tape", *BASELINES}
    assert (tmp_path / "suite.md").read_text().startswith("    typed\n") and "`tape`" in printed
    # The same samples in the same order, and the same initial weights of all that both have.
    first, second = (read_scores(tmp_path / f"capitals/{row}/rate-0.01/seed-0", "metrics.jsonl") for row in ("rope", "tape"))
    assert first["digest"] == second["digest"] and first["loss"] == pytest.approx(second["loss"], rel=1e-5)

    monkeypatch.setitem(SIZES, "tiny", replace(QUICK, model=QUICK.model | {"num_layers": 3}))
    with pytest.raises(ValueError, match="was trained with model.num_layers 2, the configuration says 3"):
        run(tmp_path, 1)
    monkeypatch.setitem(SIZES, "tiny", replace(QUICK, tokens=5 * 4 * 6))
    with pytest.raises(ValueError, match="was written for samples"):
        run(tmp_path, 1)


@pytest.mark.usefixtures("capitals", "quick_children")
def test_a_part_of_an_array_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trains one task and encoding; the tables have what all have done so far. Then the models are looked into."""
    with pytest.raises(ValueError, match="cell is 2: the tasks and encodings have the numbers 0 to 1"):
        run(tmp_path, 1, "1e-3", only=2)
    assert "1 runs, 1 of them to do" in (printed := run(tmp_path, 1, "1e-3", only=1))
    assert "capitals, rope: seeds 1 (not run yet, or failed)" in printed
    assert {record.row for record in read_records(tmp_path / "results.jsonl") if record.kind == "encoding"} == {"tape"}
    with locked(tmp_path / "capitals" / "tape"):  # another part does not wait for it
        assert "not run yet" not in run(tmp_path, 1, "1e-3", only=0)
        with pytest.raises(ValueError, match="is in use by another study"):
            run(tmp_path, 1, "1e-3", only=1)
    records = read_records(tmp_path / "results.jsonl")
    assert {record.row for record in records if record.kind == "encoding"} == {"rope", "tape"}

    folders = [tmp_path / "capitals" / row / "rate-0.001" / "seed-1" for row in ("rope", "tape")]
    for arguments, message in [
        ((folders, "test", 6), "capitals: its answers do not repeat one place of the text"),
        ((folders, "train", 6), "split: capitals has no split 'train': choose from test, long"),
        (([*folders, folders[0]], "test", 6), "is listed twice"),
        (([tmp_path], "test", 6), "no configuration at"),
    ]:
        with pytest.raises((ValueError, OSError), match=message):
            list(failures(*arguments))
    monkeypatch.setattr(
        Capitals, "copies", True
    )  # some earlier place is looked for then, and the scores are those of the suite
    title, answers, attention, updates, examples = failures(folders, "long", QUICK.test)
    assert title == "capitals, size tiny, 6 samples of long; the first model is rope, seed 1"
    for record in records:
        if record.kind == "encoding" and record.split == "long":
            (line,) = (line.replace(" ", "") for line in answers.splitlines() if record.row in line)
            assert line.startswith(f"|`{record.row},seed1`|{record.asked}|") and f"|{100 * record.score:.1f}|" in line
    assert attention.count("`rope, seed 1`") == attention.count("`tape, seed 1`") == 2 and "`rope" not in updates
    assert examples.count("sample ") == 6


@pytest.mark.usefixtures("capitals", "measured_here")
def test_a_failed_run_is_named(tmp_path: Path) -> None:
    plan = parse_plan("tiny", "capitals", "rope", 1, "1e-3")
    with pytest.raises(RunsFailed, match="capitals, rope, rate 0.001, seed 1: training exited with status 1"):
        list(suite(plan, tmp_path, 1, "false", "typed", write_page))
    assert not RunFolder(tmp_path / "capitals/rope/rate-0.001/seed-1").list_checkpoints()
