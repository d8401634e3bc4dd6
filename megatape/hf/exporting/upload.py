"""Uploads an exported model or adapter to the Hugging Face hub."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from megatape.errors import UserError, flag, path_errors
from megatape.hf.adapters.files import SETTINGS, WEIGHTS
from megatape.hf.folder_name import HUB_ID, check_model_folder
from megatape.hf.model_folder import FolderKind, open_model_folder
from megatape.hf.weights.tensor_headers import INDEX, tensor_headers
from megatape.utils.text.url_secrets import mask_secrets

if TYPE_CHECKING:
    from huggingface_hub import HfApi

EXPORTED = "an export or an adapter that `megatape export` wrote"
# Suffixes of files that are searched for secrets. The tokenizer's vocabulary is not: its tokens are no secrets.
TEXT_SUFFIXES = {".json", ".md", ".py", ".jinja", ".txt"}
VOCABULARY = "tokenizer.json"
# Access tokens of the Hugging Face hub, AWS, GitHub and OpenAI.
ACCESS_TOKEN = re.compile(r"\b(?:hf_[A-Za-z0-9]{30,}|AKIA[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{36,}|sk-[A-Za-z0-9_-]{32,})\b")
# Weights of an earlier upload, which the hub deletes unless the folder has a file of the same name.
OLD_WEIGHTS = ["*.safetensors", INDEX]
HIDDEN_FILES = [".*", "*/.*"]


@path_errors()
def check_upload(folder: Path) -> None:
    """Check that a folder is a complete export or adapter, and that its text files contain no secret.

    Args:
        folder: Folder to upload.

    Raises:
        FileNotFoundError: The folder or one of its files is missing.
        UserError: The folder is something else, a weight file is corrupted, or a file contains a password or an access token.
    """
    check_model_folder(folder, EXPORTED)
    if open_model_folder(folder).kind in (FolderKind.CHECKPOINT, FolderKind.IMPORT):
        raise UserError(f"{folder} is not an export: export it first: megatape export {folder} OUT --push REPO")
    if not (folder / SETTINGS).is_file():
        if not (folder / "config.json").is_file():
            raise UserError(f"{folder} has neither config.json nor {SETTINGS}: give {EXPORTED}")
        # Reading all headers finds missing and truncated weight files.
        tensor_headers(folder)
    elif not (folder / WEIGHTS).is_file():
        raise UserError(f"{folder} has {SETTINGS}, but no {WEIGHTS}: export the adapter again")
    for path in _text_files(folder):
        text = path.read_text(encoding="utf-8", errors="replace")
        if ACCESS_TOKEN.search(text) or mask_secrets(text) != text:
            raise UserError(f"{path} contains a password or an access token: remove it, then give the command again")


def check_repository(repository: str) -> None:
    """Check the id of a repository and that the user has logged in, without using the network.

    Args:
        repository: Id of a model repository, such as user/tape-155m.

    Raises:
        UserError: The id is malformed, the client is offline, or there is no access token.
    """
    from huggingface_hub import constants, get_token

    if not HUB_ID.fullmatch(repository):
        raise UserError(f"{repository!r} is not the id of a repository on the hub: give one such as user/tape-155m")
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"{repository}: HF_HUB_OFFLINE is set, so nothing can be uploaded: unset it")
    if get_token() is None:
        raise UserError(f"{repository}: no access token for {constants.ENDPOINT}: run `hf auth login`, or set HF_TOKEN")


def upload_model(folder: Path, repository: str, public: bool = False) -> str:
    """Upload a folder to a model repository of the hub, which is created if it does not exist.

    If an upload was interrupted, the next one resumes. Weight files of an earlier model are deleted from the repository.

    Args:
        folder: Exported model or adapter.
        repository: Id of the repository, such as user/tape-155m.
        public: Whether everyone may read the repository. A private one stays private until its owner changes that.

    Returns:
        URL of the repository.

    Raises:
        FileNotFoundError, UserError: The folder or the repository's id is not suitable, or the upload failed.
    """
    check_repository(repository)
    check_upload(folder)

    from huggingface_hub import HfApi, constants

    client = HfApi()
    with _upload_errors(folder, repository, constants.ENDPOINT):
        is_private = _is_private(client, repository)
        if is_private is None:
            client.create_repo(repository, private=not public)

    if is_private is False and not public:
        raise UserError(
            f"{repository} exists on {constants.ENDPOINT} and is public: add {flag('public')} to upload to it, or choose "
            "another name"
        )
    with _upload_errors(folder, repository, constants.ENDPOINT):
        client.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message="Upload a model exported by MegaTAPE",
            ignore_patterns=HIDDEN_FILES,
            delete_patterns=OLD_WEIGHTS,
        )
    return f"{constants.ENDPOINT}/{repository}"


def _is_private(client: "HfApi", repository: str) -> bool | None:
    """Return whether a repository is private, None if it does not exist."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        return bool(client.model_info(repository).private)
    except RepositoryNotFoundError:
        return None


@contextmanager
def _upload_errors(folder: Path, repository: str, endpoint: str) -> Iterator[None]:
    """Turn errors of an upload into UserErrors. The client raises its own, those of its HTTP package, and those of the disk."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{folder} was not uploaded to {endpoint}/{repository} ({reason}): `megatape push {folder} {repository}` resumes; "
            "if access is denied, run `hf auth login` with a token that may write there"
        ) from error


def _text_files(folder: Path) -> Iterator[Path]:
    """Yield the text files that are uploaded, except the vocabulary."""
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix in TEXT_SUFFIXES and path.name != VOCABULARY and not is_hidden and path.is_file():
            yield path
