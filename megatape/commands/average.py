"""Averages the weights of several checkpoints."""

from pathlib import Path
from typing import Literal

from megatape.commands.options.shared_options import FrozenBaseOptions
from megatape.errors import UserError
from megatape.hf.folder_name import CHECKPOINT, check_model_folder
from megatape.utils.values.options import option

EXAMPLE = "megatape average runs/a/checkpoints/step-0000{80,90,100} --output runs/a/average"


class Options(FrozenBaseOptions):
    """Checkpoints of one run, and their average.

    Attributes:
        checkpoints: two or more checkpoints of one run, such as RUN/checkpoints/step-00000100
        output: folder to write; must not exist
        weighting: uniform, or linear: weights 1, 2, 3 and so on from the oldest to the newest
    """

    checkpoints: tuple[Path, ...] = option(positional=True, metavar="CHECKPOINT")
    output: Path = option(metavar="FOLDER")
    weighting: Literal["uniform", "linear"] = "uniform"


def run(options: Options) -> None:
    """Verify the checkpoints, and write their average as a checkpoint."""
    if len(options.checkpoints) < 2:
        raise UserError("only one checkpoint is given: give at least two checkpoints of a run to average")
    for checkpoint in options.checkpoints:
        check_model_folder(checkpoint, CHECKPOINT)

    from megatape.checkpoint.load.reader import verified_checkpoint
    from megatape.tools.average import average

    readers = [verified_checkpoint(checkpoint, options.base) for checkpoint in options.checkpoints]
    record = average(readers, options.weighting, options.output)
    shares: list[str] = []
    for step, share in zip(record.steps, record.shares, strict=True):
        shares.append(f"{share:.1%} of step {step}")
    newest = record.steps[-1]
    print(f"wrote {options.output}: weights are {', '.join(shares)}; all other state is that of step {newest}")
