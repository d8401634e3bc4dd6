"""Repeat the comparison of one-layer models on flip-flops in docs/results/suite.md.

Train models of one layer and two heads with rope, fox and path at three learning rates, and print the errors of the
best rate of each, chosen by validation loss. The nine runs take about ten minutes of one core. A second call
continues where the first one stopped.

    python docs/results/path_fox.py runs/one --jobs 2
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ENCODINGS = ("rope", "fox", "path")
SHAPE = ("num_layers=1", "num_heads=2")
RATES = ("1e-3", "3e-3", "1e-2")
SPLITS = ("test", "sparse", "dense", "long", "long_sparse")


def label_of(encoding: str) -> str:
    """Return the suite's label of an encoding in a model of this shape."""
    return ":".join([encoding, *SHAPE])


def train(out: Path, rate: str, jobs: int) -> None:
    """Train and score a model of each encoding. One rate alone is used without a search."""
    labels = ",".join(label_of(encoding) for encoding in ENCODINGS)
    command = [sys.executable, "-m", "megatape", "study", "suite"]
    command += ["--tasks", "flip_flop", "--encodings", labels, "--seeds", "1", "--rates", rate]
    command += ["--jobs", str(jobs), "--output", str(out)]
    subprocess.run(command, check=True)


def read_scores(out: Path, encoding: str, rate: str) -> dict[str, Any]:
    """Return the scores of a run."""
    folder = label_of(encoding).replace(":", "_")
    path = out / "flip_flop" / folder / f"rate-{float(rate):g}" / "seed-1" / "scores.json"
    scores: dict[str, Any] = json.loads(path.read_text())
    return scores


def row_of(scores: dict[str, Any], encoding: str, rate: str) -> str:
    """Return a row of the table: encoding, learning rate, and the error of each split in %."""
    by_split = {record["split"]: record["score"] for record in scores["records"]}
    errors = [f"{100 * (1 - by_split[split]):.1f}" for split in SPLITS]
    return " | ".join(["", f"`{encoding}`", rate, *errors, ""]).strip()


def main() -> None:
    """Train the missing models and print two tables: the best rate of each encoding, and all rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs in parallel (default: 1)")
    options = parser.parse_args()

    for rate in RATES:
        train(options.out, rate, options.jobs)

    best_rows = []
    all_rows = []
    for encoding in ENCODINGS:
        scores_of = {rate: read_scores(options.out, encoding, rate) for rate in RATES}
        best = min(RATES, key=lambda rate: scores_of[rate]["validation_loss"])
        best_rows.append(row_of(scores_of[best], encoding, best))
        all_rows += [row_of(scores, encoding, rate) for rate, scores in scores_of.items()]

    columns = ["", "", "rate", *SPLITS, ""]
    header = [" | ".join(columns).strip(), "|---" * (len(columns) - 2) + "|"]
    print("\nErrors in %, at the best of three learning rates:\n")
    print("\n".join([*header, *best_rows]))
    print("\nErrors in %, at each learning rate:\n")
    print("\n".join([*header, *all_rows]))


if __name__ == "__main__":
    main()
