"""Option groups shared by studies."""

from pathlib import Path
from typing import TYPE_CHECKING

from megatape.commands.options.shared_options import ImportOptions
from megatape.utils.values.options import CommandOptions, Count, Words, option

if TYPE_CHECKING:
    from megatape.lab.study.attention.examined_model import ExaminedModel


class ExaminedModelOptions(ImportOptions):
    """Checkpoints that a study examines, and their text.

    Attributes:
        checkpoints: folder such as checkpoints/step-00000100
        samples: sequences to average over
        length: tokens per sequence (default: data.sequence_length)
        data: data directory of the text (default: the checkpoint's data.path)
    """

    checkpoints: tuple[Path, ...] = option(positional=True, metavar="CHECKPOINT")
    samples: Count = option(8, metavar="N")
    length: int | None = option(None, ge=2, metavar="N")
    data: Path | None = option(None, metavar="FOLDER")

    def load(self) -> "list[ExaminedModel]":
        """Load the models with their text.

        Raises:
            UserError: A checkpoint or the text is unsuitable.
            FileNotFoundError: A checkpoint or the text is missing.
        """
        from megatape.lab.study.attention.examined_model import load_models

        return load_models(self.checkpoints, self.data, self.samples, self.length)


class RunsOptions(CommandOptions):
    """Options of studies that train.

    Attributes:
        output: folder for the runs, the table and the plot
        jobs: parallel runs
        launcher: launcher for each run, such as "deepspeed --num_accelerators 8"
    """

    resumable = True

    output: Path = option(metavar="FOLDER")
    jobs: Count = option(1, metavar="J")
    launcher: Words | None = option(None, metavar="COMMAND")
    # Command line, recorded in the tables.
    typed: str = option("", hidden=True)
