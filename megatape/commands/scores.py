"""megatape scores: megatape scores predictions.json --scrolls scrolls --set qasper"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("predictions", type=Path, metavar="PREDICTIONS", help="JSON file {id: answer}, as SCROLLS takes it")
    parser.add_argument(
        "--scrolls", type=Path, required=True, metavar="FOLDER", help="the sets as SCROLLS publishes them, folders or zip files"
    )
    parser.add_argument("--set", required=True, metavar="NAME", help="the set, or NAME=METRIC (docs/evaluation.md)")
    parser.add_argument("--split", default="validation", metavar="NAME", help="split of the set (default %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the scores."""
    from megatape.tables import columns
    from megatape.tasks.scrolls_predictions import check_coverage, read_predictions
    from megatape.tasks.scrolls_sets import parse_set, read_set
    from megatape.tasks.text_scores import mean_scores, score

    chosen = parse_set(args.set)
    predictions = read_predictions(args.predictions)
    questions = read_set(args.scrolls, chosen.name, args.split, encode=lambda text: [])
    check_coverage(predictions, questions, args.predictions)
    found = mean_scores([score(chosen.metric, predictions[each.id], each.references) for each in questions])
    rows = [(name, f"{mean:.4f}", "" if error is None else f"± {error:.4f}") for name, (mean, error) in found.items()]
    print(f"{chosen.name}, {args.split}: {len(questions):,} questions", columns(rows), sep="\n")
    return 0
