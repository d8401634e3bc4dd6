"""RULER and BABILong: texts fit a length in the model's tokens, and scores are of the answers, by length."""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
import nltk.tokenize
import pytest

from megatape.errors import UserError
from megatape.hf.loading.exact_tokenizer import read_tokenizer
from megatape.lab.tasks.engine.runner import evaluate
from megatape.lab.tasks.lm_eval.task import LmEval
from tests.helpers.lab.ruler_copies import ESSAYS, HOTPOT, SQUAD, write_copies
from tests.helpers.models.imported import write_llama3

# Given as a folder of custom tasks, so lm-eval does not read its other tasks.
RULER = Path(lm_eval.tasks.__path__[0]) / "ruler"
BABILONG = RULER.parent / "babilong"
LENGTHS = (2048, 3072)


@dataclass
class Reader:
    """Model that knows the answers to the prompts it has learned, and answers others with an empty text.

    Attributes:
        answers: Answers by the ids of their prompts.
        asked: Number of tokens of each prompt, and the room for its answer.
    """

    tokenizer: Any
    max_positions: int = 3072
    name: str = "reader"
    answers: dict[tuple[int, ...], str] = field(default_factory=dict)
    asked: list[tuple[int, int]] = field(default_factory=list)

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)

    def continuations(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        self.asked += [(len(prompt), num_tokens) for prompt in prompts]
        answers = [self.answers.get(tuple(prompt), "") for prompt in prompts]
        return [self.tokenizer(answer, add_special_tokens=False)["input_ids"][:num_tokens] for answer in answers]

    def learn(self, task: LmEval) -> None:
        """Learn the answers to all prompts of a task."""
        for batch in task.batches(self):
            loaded = task.load(self).tasks[batch[0].task]
            loaded.build_all_requests(limit=task.max_examples)
            for request in loaded.instances:
                answer = request.doc.get("outputs") or [request.doc["target"]]
                self.answers[tuple(self.tokenizer(request.args[0])["input_ids"])] = " ".join(answer)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        yield Reader(read_tokenizer(write_llama3(tmp_path_factory.mktemp("reader") / "tokenizer", 6000)))


@pytest.fixture(autouse=True)
def forget_answers(reader: Reader) -> None:
    reader.answers.clear()
    reader.asked.clear()


@pytest.mark.slow  # RULER's words are six million pairs
def test_ruler_fits_its_lengths_without_a_network(reader: Any, tmp_path: Path) -> None:
    """No prompt of the thirteen tasks is too long with its answer or far too short, no length has the questions or scores of
    another one, and there is no -1, which lm-eval gives lengths without questions."""
    task = LmEval(("ruler",), None, 2, LENGTHS, write_copies(tmp_path), RULER)
    empty = evaluate(task, reader)
    assert [(measure.name, measure.value, measure.n) for measure in empty.measures] == [
        (f"ruler at {length} acc (%)", 0, 26) for length in LENGTHS
    ]
    for length, (size, answer) in zip([length for length in LENGTHS for _ in range(26)], reader.asked, strict=True):
        assert size + answer <= length
    full = [size for size, _ in reader.asked if size > 1500]
    assert len(full) > 30  # There are few documents for questions here.
    first = task.batches(reader)
    reader.learn(task)
    scores = evaluate(task, reader)
    assert {name: metrics["acc,none"] for name, metrics in scores.metrics.items() if metrics["acc,none"] != 1} == {}
    assert [measure.value for measure in scores.measures] == [100, 100]
    names = {name.partition(" at ")[0] for name in scores.metrics}
    assert len(names) == 14
    alone = LmEval(("ruler_cwe",), None, 2, LENGTHS[1:], tmp_path, RULER)
    assert alone.batches(reader)[0] in first  # whatever was loaded before it


@pytest.mark.slow
def test_single_needle_equals_rulers(reader: Any) -> None:
    """lm-eval's prompts replace those of `passkey --protocol ruler`, and have as many lines as fit."""
    task = LmEval(("niah_single_1",), None, 3, (1024,), None, RULER)
    (examples,) = task.batches(reader)
    for example in examples:
        document = example.document
        word = re.search(r"magic number for (\S+) mentioned in the provided text\?$", document["input"])
        assert word is not None
        lines = f"{document['input']} {document['gen_prefix']}".split("\n")
        (number,) = document["outputs"]
        assert lines[0] == (
            "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the "
            "number afterwards."
        )
        noise = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
        needle = f"One of the special magic numbers for {word[1]} is: {number}."
        assert sorted(set(lines[1:-1])) == sorted({noise, needle})
        assert lines.count(needle) == 1
        assert lines[-1] == (
            f"What is the special magic number for {word[1]} mentioned in the provided text? The special magic number for "
            f"{word[1]} mentioned in the provided text is"
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "length", "gone", "message"),
    [
        ("niah_single_2", 2048, "nltk_data", "punkt_tab"),
        ("niah_single_2", 2048, ESSAYS, "paul_graham_essays"),
        ("ruler_qa_squad", 2048, SQUAD, SQUAD),
        ("ruler_qa_hotpot", 2048, HOTPOT, HOTPOT),
        ("niah_single_1", 150, None, "cannot load niah_single_1 in `data_root`"),
        ("ruler_vt", 600, None, "lengths 600: ruler_vt of lm-eval has room for "),
        ("ruler_cwe", 500, None, "lengths 500: ruler_cwe of lm-eval has room for 500 tokens, but its shortest text has "),
        ("ruler_fwe", 150, None, "lengths 150: ruler_fwe of lm-eval has room for 150 tokens, but its shortest text has 200"),
    ],
)
def test_missing_files_and_short_lengths_are_refused(
    reader: Any, tmp_path: Path, task: str, length: int, gone: str | None, message: str
) -> None:
    """If the shortest text does not fit, lm-eval's own loops would never end."""
    write_copies(tmp_path)
    nltk.tokenize._get_punkt_tokenizer.cache_clear()  # type: ignore[attr-defined]
    if gone is not None:
        path = tmp_path / gone
        path.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=re.escape(message)):
        LmEval((task,), None, 2, (length,), tmp_path, RULER).batches(reader)


def test_babilong_has_the_chosen_length(reader: Any, tmp_path: Path) -> None:
    """Texts have the chosen length, and a prompt without room in the model is refused instead of cut."""
    task = LmEval(("babilong_qa1",), None, None, (1024,), write_copies(tmp_path), BABILONG)
    assert [measure.value for measure in evaluate(task, reader).measures] == [0]
    assert reader.asked[0][0] > 200
    reader.learn(task)
    (measure,) = evaluate(task, reader).measures
    assert measure.name == "babilong_qa1 at 1024 acc (%)"
    assert measure.value == 100
    small = Reader(reader.tokenizer, 128)
    with pytest.raises(
        UserError, match="babilong_qa1 at 1024 of lm-eval has an answer that needs .* positions with its prompt"
    ):
        task.batches(small)
    with pytest.raises(UserError, match=r"cannot load babilong_qa1 .*'2k' not found. Available: \['0k', '1k'\]"):
        LmEval(("babilong_qa1",), None, None, (2048,), tmp_path, BABILONG).batches(reader)


def test_lengths_that_a_task_needs_or_does_not_have(reader: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RULER without a length, a length for a task without lengths, and a missing package are refused."""
    with pytest.raises(UserError, match="niah_single_1 of lm-eval needs text lengths: give `lengths`, such as 4096"):
        LmEval(("niah_single_1",), include=RULER).batches(reader)
    (tmp_path / "words.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "words.yaml").write_text(
        f"task: words\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path}/words.jsonl}}}}\n"
        "output_type: loglikelihood_rolling\ntest_split: test\ndoc_to_text: ''\ndoc_to_target: text\n"
    )
    with pytest.raises(UserError, match="words of lm-eval has no lengths: evaluate it by a command without `lengths`"):
        LmEval(("words",), lengths=(1024,), include=tmp_path).batches(reader)
    monkeypatch.setitem(sys.modules, "wonderwords", None)
    monkeypatch.delitem(sys.modules, "megatape.lab.tasks.lm_eval.lengths")
    with pytest.raises(ModuleNotFoundError, match="wonderwords"):
        LmEval(("niah_single_1",), lengths=(1024,), include=RULER).batches(reader)
