"""Uploads an exported model to the Hugging Face hub."""

from pathlib import Path

from megatape.hf.folder_name import check_model_folder
from megatape.utils.values.options import CommandOptions, option

EXAMPLE = "megatape push exported user/tape-155m"


class Options(CommandOptions):
    """An exported model and its repository.

    Attributes:
        folder: export or adapter that `megatape export` wrote
        repository: model repository on the hub, such as user/tape-155m; created if it does not
            exist, private by default
        public: let everyone read a new repository, or upload to one that is public already
    """

    folder: Path = option(positional=True, metavar="FOLDER")
    repository: str = option(positional=True, metavar="REPO")
    public: bool = False


def run(options: Options) -> None:
    """Upload the folder, resuming an interrupted upload."""
    check_model_folder(options.folder)

    from megatape.hf.exporting.upload import upload_model

    url = upload_model(options.folder, options.repository, options.public)
    print(f"uploaded {options.folder} to {url}")
