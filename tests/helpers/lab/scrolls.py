"""Question sets laid out as in SCROLLS, and official scores for some answers."""

import json
from pathlib import Path
from typing import Any

# Example in the official scorer's docstring (tau/scrolls, metrics/scrolls.py)
PREDICTIONS = ["exact match example", "hello there", "general kenobi"]
REFERENCES = [["exact match example"], ["hello", "hi there"], ["commander kenobi"]]
OFFICIAL = {
    "narrative_qa": {"f1": 72.2222},
    "contract_nli": {"exact_match": 33.3333},
    "gov_report": {"rouge1": 72.2222, "rouge2": 33.3333, "rougeL": 72.2222, "rouge": 55.8136},
}


def lines(references: list[list[Any]] = REFERENCES) -> list[dict[str, Any]]:
    """Return the lines in a set. Lines belonging to one question do not follow each other."""
    rows = []
    for number, texts in enumerate(references):
        for index, text in enumerate(texts):
            rows.append(
                {"id": f"q{number}", "pid": f"q{number}_{index}", "input": f"Question {number}\n\ntext", "output": text}
            )
    return sorted(rows, key=lambda row: row["pid"][-1])


def write_set(data: Path, name: str, rows: list[Any], split: str = "validation") -> Path:
    """Write one split of a set, and return its file."""
    path = data / name / f"{split}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
