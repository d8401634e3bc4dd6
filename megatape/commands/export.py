"""megatape export: `megatape export runs/tape_tiny/checkpoints/step-00000100 exported`."""

from pathlib import Path

from megatape.commands.options import FrozenBaseOptions
from megatape.config.export import Dtype
from megatape.errors import UserError
from megatape.options import option


class Options(FrozenBaseOptions):
    """A checkpoint, and the form of its export."""

    at_most_one = (("adapter", "without_adapter"),)

    checkpoint: Path = option(
        "folder such as checkpoints/step-00000100, or an exported adapter", positional=True, metavar="CHECKPOINT"
    )
    out: Path = option("folder to write; must not exist", positional=True, metavar="OUT")
    dtype: Dtype | None = option("precision of the stored weights (default: that of the run)", None)
    adapter: bool = option("of a run with LoRA: only what was trained, in peft's format", False)
    without_adapter: bool = option("of a run with LoRA: the base that peft adds the adapter to", False)


def run(options: Options) -> int:
    """Verify the checkpoint, then export it; or merge an adapter into its base."""
    from megatape.checkpoint.reader import verified_checkpoint
    from megatape.hf.export import export
    from megatape.hf.lora import SETTINGS, export_adapter
    from megatape.hf.merge import merge_adapter
    from megatape.hf.model_folder import open_model_folder

    if (options.checkpoint / SETTINGS).is_file():
        if options.base is None or options.dtype or options.adapter or options.without_adapter:
            remedy = "give `base` DIR, the model to merge it into, and nothing else"
            raise UserError(f"{options.checkpoint} is an adapter: {remedy}")
        merge_adapter(options.checkpoint, open_model_folder(options.base).files, options.out)
        print(f"merged {options.checkpoint} into {options.base}, as {options.out}")
        return 0
    checkpoint = verified_checkpoint(options.checkpoint, options.base)
    if options.dtype:
        section = checkpoint.config.export.model_copy(update={"dtype": options.dtype})
        checkpoint.config = checkpoint.config.model_copy(update={"export": section})
    if options.adapter:
        export_adapter(checkpoint, options.out)
    else:
        export(checkpoint, options.out, merge=not options.without_adapter)
    print(f"exported step {checkpoint.step}, {checkpoint.tokens:,} tokens, to {options.out}")
    return 0
