"""Small files replacing those read by RULER and BABILong, laid out as `--data-root` expects."""

import json
from pathlib import Path

from tests.helpers.models.imported import TEXTS

SQUAD = "rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json"
HOTPOT = (
    "huggingface.co/datasets/namlh2004/hotpotqa/resolve/7e54db4656209750ff487f6fdf8e39a66dba136b/hotpot_dev_distractor_v1.json"
)
ESSAYS = "baber/paul_graham_essays/train.jsonl"
PUNKT = "nltk_data/tokenizers/punkt_tab/english"
BABILONG = "RMT-team/babilong-1k-samples"
COLORS = ("red", "green", "blue", "yellow", "black", "white", "brown", "gray")


def write_copies(folder: Path) -> Path:
    """The files, with texts made here: Python's documentation as essays, and facts about numbered rooms."""
    facts = [(f"Room {number}", f"Room {number} is {color}.") for number, color in enumerate(COLORS * 3)]
    questions = [f"Which color has {title}?" for title, _ in facts]
    paragraphs = [
        {
            "context": fact,
            "qas": [{"question": question, "is_impossible": False, "answers": [{"text": fact.split()[-1][:-1]}]}],
        }
        for question, (_, fact) in zip(questions, facts, strict=True)
    ]
    hotpot = [
        {"question": question, "answer": fact.split()[-1][:-1], "context": [[title, [fact]], [facts[0][0], [facts[0][1]]]]}
        for question, (title, fact) in zip(questions[1:], facts[1:], strict=True)
    ]
    for name, text in {
        SQUAD: json.dumps({"data": [{"paragraphs": paragraphs}]}),
        HOTPOT: json.dumps(hotpot),
        ESSAYS: "".join(json.dumps({"text": text}) + "\n" for text in TEXTS),
        **{
            f"{PUNKT}/{part}": "" for part in ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")
        },
        **{f"{BABILONG}/{size}/qa1.jsonl": story(lines) for size, lines in (("0k", 2), ("1k", 40))},
        f"{BABILONG}/README.md": "---\nconfigs:\n"
        + "".join(
            f"- config_name: {size}\n  data_files:\n  - split: qa1\n    path: {size}/qa1.jsonl\n" for size in ("0k", "1k")
        )
        + "---\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def story(num_lines: int) -> str:
    """Return a line for BABILong's first task: a fact in a text."""
    text = "The grass is green. " * num_lines + "Mary went to the kitchen."
    return json.dumps({"input": text, "question": "Where is Mary?", "target": "kitchen"}) + "\n"
