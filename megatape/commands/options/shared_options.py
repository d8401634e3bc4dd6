"""Options that several commands share: configurations, launchers and models."""

from collections.abc import Mapping
from pathlib import Path

from megatape.config import Config, load_config
from megatape.hf.folder_name import ADAPTER, check_model_folder
from megatape.imports import OPTION
from megatape.registry import Entry
from megatape.utils.values.options import CommandOptions, option


def descriptions(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return the description of each name in a registry, for the end of a command's help."""
    return {name: entry.description for name, entry in entries.items()}


class ImportOptions(CommandOptions):
    """Modules of the user, for commands that read a configuration, run, checkpoint or export. `run_command` imports them.

    Attributes:
        imports: import your own module or .py file, which registers encodings, optimizers, sinks or
            other parts; repeatable
    """

    imports: tuple[str, ...] = option((), flag=OPTION, metavar="MODULE", repeatable=True)


class OverrideOptions(CommandOptions):
    """Changes to a configuration.

    Attributes:
        set: override one configuration value; repeatable
    """

    set: tuple[str, ...] = option((), metavar="SECTION.KEY=VALUE", repeatable=True)


class ConfigOptions(OverrideOptions, ImportOptions):
    """A configuration and changes to it.

    Attributes:
        config: JSON file with the configuration (docs/config.md)
    """

    config: str = option(metavar="FILE")

    def load(self) -> Config:
        """Load the configuration.

        Raises:
            FileNotFoundError: The file is missing.
            UserError: The configuration is invalid.
        """
        return load_config(self.config, self.set)


class LaunchedOptions(CommandOptions):
    """Options of commands that a launcher starts on every rank.

    Attributes:
        verbose: show DeepSpeed's full log, not only its errors
    """

    verbose: bool = False


class FrozenBaseOptions(ImportOptions):
    """Frozen weights that a checkpoint does not contain.

    Attributes:
        base: new folder of the frozen base model, if it has moved since training; only for
            checkpoints without frozen weights, such as LoRA's (docs/lora_and_long_context.md)
    """

    base: Path | None = option(None, metavar="DIR")


class ModelOptions(FrozenBaseOptions):
    """Options for opening a model folder. Its Python files only run with `trust_remote_code`.

    Attributes:
        adapter: LoRA adapter from `megatape export --adapter`, to merge into the model that it was
            trained on
        trust_remote_code: run the Python files in MODEL_DIR; only needed for models that `megatape
            export` did not write
    """

    adapter: Path | None = option(None, metavar="DIR")
    trust_remote_code: bool = False

    def check_folders(self, *models: Path) -> None:
        """Check that the models and the adapter exist, without importing torch.

        Args:
            models: Folders of the models.

        Raises:
            MissingPath: A folder is missing.
        """
        for model in models:
            check_model_folder(model)
        if self.adapter is not None:
            check_model_folder(self.adapter, ADAPTER)
