"""Sets of questions in the layout of SCROLLS, and the official scores of some answers."""

import json
from pathlib import Path
from typing import Any

# From the docstring of the official scorer (tau/scrolls, metrics/scrolls.py).
PREDICTIONS = ["exact match example", "hello there", "general kenobi"]
REFERENCES = [["exact match example"], ["hello", "hi there"], ["commander kenobi"]]
OFFICIAL = {
    "narrative_qa": {"f1": 72.2222},
    "contract_nli": {"exact_match": 33.3333},
    "gov_report": {"rouge1": 72.2222, "rouge2": 33.3333, "rougeL": 72.2222, "rouge": 55.8136},
}


def lines(references: list[list[Any]] = REFERENCES) -> list[dict[str, Any]]:
    """The lines of a set: those of a question do not follow each other."""
    rows = [
        {"id": f"q{number}", "pid": f"q{number}_{place}", "input": f"Question {number}\n\ntext", "output": text}
        for number, texts in enumerate(references)
        for place, text in enumerate(texts)
    ]
    return sorted(rows, key=lambda row: row["pid"][-1])


def write_set(data: Path, name: str, rows: list[dict[str, Any]], split: str = "validation") -> Path:
    (data / name).mkdir(parents=True, exist_ok=True)
    path = data / name / f"{split}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
