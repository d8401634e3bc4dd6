"""Creates a run that decays the learning rate of a checkpoint."""

import shlex
from pathlib import Path

from megatape.commands.options.shared_options import FrozenBaseOptions
from megatape.hf.folder_name import CHECKPOINT, check_model_folder
from megatape.utils.text.url_secrets import is_masked
from megatape.utils.values.options import option

EXAMPLE = "megatape branch runs/stable/checkpoints/step-00000100 --decay-tokens 200000"


class Options(FrozenBaseOptions):
    """A checkpoint, and the decay that starts from it.

    Attributes:
        checkpoint: checkpoint at the peak learning rate, such as RUN/checkpoints/step-00000100
        decay_tokens: length of the decay in tokens, rounded up to whole steps
        output: run directory of the new run (default: next to the run, named after the decay's steps)
    """

    checkpoint: Path = option(positional=True, metavar="CHECKPOINT")
    decay_tokens: int = option(ge=1, metavar="N")
    output: Path | None = option(None, metavar="OUT")


def run(options: Options) -> None:
    """Verify the checkpoint, create the new run directory, and print the command to run next."""
    check_model_folder(options.checkpoint, CHECKPOINT)

    from megatape.checkpoint.load.reader import verified_checkpoint
    from megatape.run_folder import RunFolder
    from megatape.tools.branch import branch

    reader = verified_checkpoint(options.checkpoint, options.base)
    config = branch(reader, options.decay_tokens, options.output)
    folder = RunFolder(Path(config.run.directory))
    steps = f"{reader.step + 1:,} to {config.training.steps:,}"
    print(f"wrote {folder.directory}: steps {steps} decay the learning rate, from {reader.directory}; now, for example:")
    command = ["megatape", "pretrain", "--config", str(folder.config), "--resume", "auto"]
    if options.base:
        command += ["--base", str(options.base)]
    if is_masked(config.data.path):
        # The user has to fill in the masked password.
        command += ["--set", f"data.path={config.data.path}"]
    print(shlex.join(command))
