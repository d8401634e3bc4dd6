"""megatape evaluate: megatape evaluate addition exported --data runs/data/addition_5 --output evaluated"""

import argparse
from dataclasses import fields
from pathlib import Path

from megatape.commands.options import add_trust
from megatape.registry import TASKS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments, each task's beside those that all tasks have."""
    tasks = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    for name, entry in TASKS.items():
        task = tasks.add_parser(name, help=entry.description, description=f"{entry.description}: {name}.json, {name}.png")
        task.add_argument("model", type=Path, metavar="MODEL_DIR", help="checkpoint, or folder that `megatape export` wrote")
        task.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder to write; it must not exist")
        add_trust(task)
        entry.load().add_arguments(task)


def run(args: argparse.Namespace) -> int:
    """Evaluate, write the folder, print a summary."""
    from transformers.utils.logging import disable_progress_bar

    from megatape.tasks.report import report

    disable_progress_bar()
    kind = TASKS[args.task].load()
    task = kind(**{field.name: getattr(args, field.name) for field in fields(kind)})
    print(report(args.task, task, args.model, args.output, args.trust_remote_code))
    return 0
