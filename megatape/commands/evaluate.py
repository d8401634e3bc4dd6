"""megatape evaluate: megatape evaluate addition exported --data runs/data/addition_5 --output evaluated"""

import argparse
from dataclasses import fields
from pathlib import Path

from megatape.commands.options import add_base, add_trust
from megatape.registry import TASKS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare one subcommand per task, with the common arguments and the task's own."""
    tasks = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    for name, entry in TASKS.items():
        task = tasks.add_parser(
            name, help=entry.description, description=f"{entry.description[0].upper()}{entry.description[1:]}."
        )
        task.add_argument("model", type=Path, metavar="MODEL_DIR", help="checkpoint or exported model")
        task.add_argument(
            "--output",
            type=Path,
            required=True,
            metavar="FOLDER",
            help=f"new folder for {name}.json and {name}.png",
        )
        add_base(task)
        add_trust(task)
        entry.load().add_arguments(task)


def run(args: argparse.Namespace) -> int:
    """Evaluate, write the results, print a summary."""
    from transformers.utils.logging import disable_progress_bar

    from megatape.tasks.report import report

    disable_progress_bar()
    kind = TASKS[args.task].load()
    task = kind(**{field.name: getattr(args, field.name) for field in fields(kind)})
    print(report(args.task, task, args.model, args.output, args.trust_remote_code, args.base))
    return 0
