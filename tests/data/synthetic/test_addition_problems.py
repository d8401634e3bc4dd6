"""Addition data: what it contains, what it holds out, and the command that generates it."""

import json
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.synthetic.addition_problems import (
    ALPHABET,
    TEST_PROBLEMS,
    AdditionTask,
    Problem,
    longest_document,
    prepare_addition,
)
from megatape.data.tokenizers.sentencepiece import character_tokenizer
from megatape.data.training.document_dataset import DocumentDataset
from megatape.utils.validation import as_type
from tests.helpers.processes.command import Command

ROOT = Path(__file__).parents[3]
TASK = AdditionTask(digits=3, per_cell=300, seed=7)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("addition") / "data"
    prepare_addition(TASK, path, lambda tokens: None)
    return path


def read(directory: Path, split: str) -> list[tuple[int, int]]:
    """The operands of every document; checks that each is a sum in reversed digits without leading zeros."""
    dataset = DocumentDataset(StoredSplit(directory, split), longest_document(3) - 1)
    tokenizer = dataset.split.tokenizer()
    found = []
    for index in range(dataset.num_samples):
        numbers = tokenizer.decode(dataset.sample(index).tokens).replace("=", "+").split("+")
        a, b, c = (int(number[::-1]) for number in numbers)
        assert a + b == c
        assert [str(a)[::-1], str(b)[::-1], str(c)[::-1]] == numbers
        found.append((a, b))
    return found


def test_reversed_digits() -> None:
    problem = Problem(123, 450)
    assert (problem.prompt, problem.answer) == ("321+054=", "375")


def test_every_combination_of_lengths_equally_often(directory: Path) -> None:
    cells = Counter((len(str(a)), len(str(b))) for a, b in read(directory, "train"))
    assert cells == dict.fromkeys(product((1, 2, 3), repeat=2), 300)


def test_no_test_problem_is_trained_in_either_order(directory: Path) -> None:
    trained = set(read(directory, "train"))
    trained |= {(b, a) for a, b in trained}
    for lengths in product(range(1, 7), repeat=2):
        problems = TASK.test_problems(*lengths)
        assert len(set(problems)) == len(problems)
        assert {(len(str(problem.a)), len(str(problem.b))) for problem in problems} == {lengths}
        assert trained.isdisjoint((problem.a, problem.b) for problem in problems)
        if sum(lengths) > 3:
            assert len(problems) == TEST_PROBLEMS
        else:  # 100 or 900 pairs, a tenth of them held out
            assert 0.04 < len(problems) / (100 if lengths == (1, 1) else 900) < 0.16


def test_all_that_is_not_held_out_is_trained() -> None:
    task = AdditionTask(1, 2000, 7)
    trained = {(problem.a, problem.b) for problem in task.training_problems()}
    assert all((pair in trained) != task.held_out(Problem(*pair)) for pair in product(range(10), repeat=2))


def test_validation_is_the_test_problems_of_the_trained_lengths(directory: Path) -> None:
    wanted = [(p.a, p.b) for lengths in product((1, 2, 3), repeat=2) for p in TASK.test_problems(*lengths)]
    found = read(directory, "validation")
    assert sorted(found) == sorted(wanted)
    assert len({(len(str(a)), len(str(b))) for a, b in found[:60]}) > 6, "the first ones, which a run looks at, mix the lengths"


def test_one_character_is_one_token() -> None:
    tokenizer = character_tokenizer(ALPHABET)
    text = "0123456789+=00112233" * 3
    assert len(tokenizer.encode(text)) == len(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_longest_document(directory: Path) -> None:
    prompt_and_answer = Problem(999, 999)
    text = prompt_and_answer.prompt + prompt_and_answer.answer
    assert longest_document(3) == len(character_tokenizer(ALPHABET).encode_documents([text])[0])


def test_forty_digits() -> None:
    task = AdditionTask(40, 1, 0)
    assert len(list(task.training_problems())) == 1600
    assert {len(str(problem.b)) for problem in task.test_problems(80, 79)} == {79}


def test_the_seed_decides(directory: Path, tmp_path: Path) -> None:
    prepare_addition(TASK, tmp_path / "same", lambda tokens: None)
    names = sorted(path.name for path in directory.iterdir())
    assert all((directory / name).read_bytes() == (tmp_path / "same" / name).read_bytes() for name in names)
    assert AdditionTask.of(directory) == TASK
    other = AdditionTask(3, 300, 8)
    assert set(other.test_problems(3, 3)) != set(TASK.test_problems(3, 3))
    assert {p.a for p in other.test_problems(1, 1)} | {p.b for p in other.test_problems(1, 1)}


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 1, 0), "digits: must be greater than or equal to 1, got 0"),
        ((1, 0, 0), "per_cell: must be greater"),
        ((1, 1, -1), "seed: must be greater"),
    ],
)
def test_impossible_tasks(numbers: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_type(dict(zip(("digits", "per_cell", "seed"), numbers, strict=True)), AdditionTask)


def test_data_of_another_task(data_directory: Path) -> None:
    with pytest.raises(ValueError, match="holds data of kind 'text', not 'addition'"):
        AdditionTask.of(data_directory)


@pytest.mark.parametrize("source", [{"digits": "2", "per_cell": 1, "seed": 0}, {"seed": 0}, {"digits": float("nan")}])
def test_a_forged_index(data_directory: Path, tmp_path: Path, source: dict[str, object]) -> None:
    index = json.loads((data_directory / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(index | {"source": {"kind": "addition"} | source}))
    with pytest.raises(ValueError, match="digits: (Field required|must be a finite number|must be a valid integer)"):
        AdditionTask.of(tmp_path)


def test_command(command: Command, tmp_path: Path) -> None:
    words = ("prepare", "addition")
    status, printed, errors = command(*words, "--digits", 2, "--per-cell", 50, "--output", tmp_path / "data")
    assert status == 0, errors
    assert "train: 200 problems" in printed
    assert "data.sequence_length must be at least 10" in printed
    assert AdditionTask.of(tmp_path / "data") == AdditionTask(2, 50, 0)
    for arguments, message in [
        (("--digits", 0, "--output", tmp_path / "new"), "--digits: must be greater than or equal to 1, got 0"),
        (("--digits", 1, "--output", tmp_path / "data"), "exists: remove it or choose another name"),
    ]:
        status, _, errors = command(*words, *arguments)
        assert (status, errors.count("\n")) == (2, 1)
        assert message in errors
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
