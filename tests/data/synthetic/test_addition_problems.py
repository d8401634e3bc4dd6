"""Addition data: problems for training, problems held out, and the command that generates them."""

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
from megatape.data.training.datasets.document_dataset import DocumentDataset
from megatape.utils.values.validation import as_type
from tests.helpers.processes.command import Command

ROOT = Path(__file__).parents[3]
TASK = AdditionTask(digits=3, per_cell=300, seed=7)
LENGTHS = list(product(range(1, 7), repeat=2))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("addition") / "data"
    prepare_addition(TASK, path, lambda tokens: None)
    return path


@pytest.fixture(scope="module")
def trained(directory: Path) -> list[tuple[int, int]]:
    """Operands of all training problems."""
    return read_operands(directory, "train")


def num_digits(a: int, b: int) -> tuple[int, int]:
    return len(str(a)), len(str(b))


def read_operands(directory: Path, split: str) -> list[tuple[int, int]]:
    """Return the operands of every document, after checking that each is a sum in reversed digits without leading zeros."""
    dataset = DocumentDataset(StoredSplit(directory, split), longest_document(3) - 1)
    tokenizer = dataset.split.tokenizer()
    operands = []
    for index in range(dataset.num_samples):
        numbers = tokenizer.decode(dataset.sample(index).tokens).replace("=", "+").split("+")
        a, b, c = (int(number[::-1]) for number in numbers)
        assert a + b == c
        assert [str(a)[::-1], str(b)[::-1], str(c)[::-1]] == numbers
        operands.append((a, b))
    return operands


def test_digits_are_reversed() -> None:
    problem = Problem(123, 450)
    assert problem.prompt == "321+054="
    assert problem.answer == "375"


def test_every_combination_of_lengths_is_equally_frequent(trained: list[tuple[int, int]]) -> None:
    counts = Counter(num_digits(a, b) for a, b in trained)
    assert counts == dict.fromkeys(product((1, 2, 3), repeat=2), 300)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_no_test_problem_is_trained_in_either_order(trained: list[tuple[int, int]], lengths: tuple[int, int]) -> None:
    problems = TASK.test_problems(*lengths)
    assert len(set(problems)) == len(problems)
    assert {num_digits(problem.a, problem.b) for problem in problems} == {lengths}

    pairs = {(problem.a, problem.b) for problem in problems}
    reversed_pairs = {(problem.b, problem.a) for problem in problems}
    assert pairs.isdisjoint(trained)
    assert reversed_pairs.isdisjoint(trained)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_a_tenth_of_few_problems_is_held_out(lengths: tuple[int, int]) -> None:
    """Longer operands have enough pairs for a fixed number of test problems."""
    num_problems = len(TASK.test_problems(*lengths))
    if sum(lengths) > 3:
        assert num_problems == TEST_PROBLEMS
        return
    num_pairs = 900
    if lengths == (1, 1):
        num_pairs = 100
    assert 0.04 < num_problems / num_pairs < 0.16


def test_every_problem_that_is_not_held_out_is_trained() -> None:
    task = AdditionTask(1, 2000, 7)
    trained = {(problem.a, problem.b) for problem in task.training_problems()}
    for pair in product(range(10), repeat=2):
        assert (pair in trained) != task.held_out(Problem(*pair)), pair


def test_validation_is_the_test_problems_of_the_trained_lengths(directory: Path) -> None:
    """The first ones, which a run evaluates, mix the lengths."""
    expected = []
    for lengths in product((1, 2, 3), repeat=2):
        expected += [(problem.a, problem.b) for problem in TASK.test_problems(*lengths)]
    operands = read_operands(directory, "validation")
    assert sorted(operands) == sorted(expected)
    assert len({num_digits(a, b) for a, b in operands[:60]}) > 6


def test_one_character_is_one_token() -> None:
    tokenizer = character_tokenizer(ALPHABET)
    text = "0123456789+=00112233" * 3
    assert len(tokenizer.encode(text)) == len(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_longest_document_has_the_largest_operands() -> None:
    problem = Problem(999, 999)
    (document,) = character_tokenizer(ALPHABET).encode_documents([problem.prompt + problem.answer])
    assert longest_document(3) == len(document)


def test_operands_may_have_forty_digits() -> None:
    task = AdditionTask(40, 1, 0)
    assert len(list(task.training_problems())) == 1600
    assert {len(str(problem.b)) for problem in task.test_problems(80, 79)} == {79}


def test_equal_tasks_give_equal_files(directory: Path, tmp_path: Path) -> None:
    prepare_addition(TASK, tmp_path / "same", lambda tokens: None)
    for path in directory.iterdir():
        assert (tmp_path / "same" / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_data_directory_names_its_task(directory: Path) -> None:
    assert AdditionTask.of(directory) == TASK


def test_another_seed_holds_out_other_problems() -> None:
    reseeded = AdditionTask(3, 300, 8)
    assert set(reseeded.test_problems(3, 3)) != set(TASK.test_problems(3, 3))
    assert reseeded.test_problems(1, 1)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"digits": 0}, "digits: must be greater than or equal to 1, got 0"),
        ({"per_cell": 0}, "per_cell: must be greater"),
        ({"seed": -1}, "seed: must be greater"),
    ],
)
def test_impossible_tasks_are_refused(numbers: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_type({"digits": 1, "per_cell": 1, "seed": 0} | numbers, AdditionTask)


def test_data_of_another_task_is_refused(data_directory: Path) -> None:
    with pytest.raises(ValueError, match="holds data of kind 'text', not 'addition'"):
        AdditionTask.of(data_directory)


@pytest.mark.parametrize("source", [{"digits": "2", "per_cell": 1, "seed": 0}, {"seed": 0}, {"digits": float("nan")}])
def test_a_forged_index_is_refused(data_directory: Path, tmp_path: Path, source: dict[str, object]) -> None:
    index = json.loads((data_directory / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(index | {"source": {"kind": "addition"} | source}))
    with pytest.raises(ValueError, match="digits: (Field required|must be a finite number|must be a valid integer)"):
        AdditionTask.of(tmp_path)


def test_the_command_prints_what_it_prepared(command: Command, tmp_path: Path) -> None:
    output = tmp_path / "data"
    status, printed, errors = command("prepare", "addition", "--digits", 2, "--per-cell", 50, "--output", output)
    assert status == 0, errors
    assert "train: 200 problems" in printed
    assert "data.sequence_length must be at least 10" in printed
    assert AdditionTask.of(output) == AdditionTask(2, 50, 0)


@pytest.mark.parametrize(
    ("digits", "output", "message"),
    [
        (0, "new", "--digits: must be greater than or equal to 1, got 0"),
        (1, "existing", "exists: remove it or choose another name"),
    ],
)
def test_the_command_refuses_unfit_options_in_one_line(
    command: Command, tmp_path: Path, digits: int, output: str, message: str
) -> None:
    (tmp_path / "existing").mkdir()
    (tmp_path / "existing" / "index.json").write_text("{}")
    status, _, errors = command("prepare", "addition", "--digits", digits, "--output", tmp_path / output)
    assert status == 2
    assert errors.count("\n") == 1
    assert message in errors
    assert [path.name for path in tmp_path.iterdir()] == ["existing"]
