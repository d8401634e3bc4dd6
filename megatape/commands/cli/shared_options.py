"""Groups of options that several commands share: configurations, launchers and models."""

from collections.abc import Mapping
from pathlib import Path

from megatape.config import Config, load_config
from megatape.hf.folder_name import ADAPTER, check_model_folder
from megatape.imports import OPTION
from megatape.registry import Entry
from megatape.utils.options import CommandOptions, option


def describe(entries: Mapping[str, Entry]) -> str:
    """Return the help of an option whose value is a name in a registry.

    Args:
        entries: Registry.
    """
    return "; ".join(f"{name}: {entry.description}" for name, entry in entries.items())


def descriptions(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return the description of each name in a registry, as a list of the help.

    Args:
        entries: Registry.
    """
    return {name: entry.description for name, entry in entries.items()}


class ImportOptions(CommandOptions):
    """Modules of commands that read a configuration, a run, a checkpoint or an export. `run_command` imports them.

    Attributes:
        imports: import a module of your own, or a .py file, that registers encodings, optimizers,
            sinks or others; repeatable
    """

    imports: tuple[str, ...] = option((), flag=OPTION, metavar="MODULE", repeatable=True)


class OverrideOptions(CommandOptions):
    """Changes of a configuration.

    Attributes:
        set: override one configuration value; repeatable
    """

    set: tuple[str, ...] = option((), metavar="SECTION.KEY=VALUE", repeatable=True)


class ConfigOptions(OverrideOptions, ImportOptions):
    """A configuration and changes of it.

    Attributes:
        config: JSON configuration (docs/config.md)
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
    """Where the frozen weights are that a checkpoint does not hold.

    Attributes:
        base: of a checkpoint that holds only what was trained: where its base is, if it moved
            (docs/lora_and_long_context.md)
    """

    base: Path | None = option(None, metavar="DIR")


class ModelOptions(FrozenBaseOptions):
    """How a model folder is opened. Nothing in it is run without `trust_remote_code`.

    Attributes:
        adapter: adapter that `megatape export --adapter` wrote, to merge into the model that it was
            trained on
        trust_remote_code: run the Python files in MODEL_DIR: for models that `megatape export` did
            not write
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
