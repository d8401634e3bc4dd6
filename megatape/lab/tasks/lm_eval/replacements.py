"""Parts of lm-eval and its libraries that are replaced while it loads tasks, because no argument reaches them.

RULER's texts come from functions that the YAML files of lm-eval's tasks name, so a subclass of a task cannot change them. They
always generate 500 texts, load a tokenizer by its name with AutoTokenizer, and download with nltk and requests.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from megatape.utils.replaced_attribute import replaced_attribute


@contextmanager
def data_sets_in(folder: Path) -> Iterator[None]:
    """Make `datasets` look for data sets only in this folder. It has read HF_HUB_OFFLINE from the environment by now."""
    import datasets
    from huggingface_hub import constants

    with ExitStack() as stack:
        stack.enter_context(chdir(folder))
        stack.enter_context(replaced_attribute(datasets.config, "HF_HUB_OFFLINE", True))
        stack.enter_context(replaced_attribute(constants, "HF_HUB_OFFLINE", True))
        yield


@contextmanager
def downloads_in_working_directory() -> Iterator[None]:
    """Make RULER's modules read copies of what they download: nltk's data in nltk_data, and files as wget stores them."""
    import nltk
    import requests

    nltk_data = str(Path("nltk_data").resolve())
    with ExitStack() as stack:
        stack.enter_context(replaced_attribute(nltk.data, "path", [nltk_data, *nltk.data.path]))
        stack.enter_context(replaced_attribute(nltk, "download", lambda *_: False))
        stack.enter_context(replaced_attribute(requests, "get", _read_copy))
        yield


@contextmanager
def generated_texts(
    tokenizer: Any, max_texts: int | None, download: Callable[[Any, dict[str, Any] | None], None]
) -> Iterator[None]:
    """Make RULER's modules measure texts by this tokenizer, and stop after some texts.

    Args:
        tokenizer: Called with a text. Takes the place of the one that AutoTokenizer would load.
        max_texts: Number of texts to generate, None for all 500. The modules generate them in a loop over tqdm(range(500)).
        download: Called by the constructor of a task with the task and its dataset_kwargs, as ConfigurableTask.download is.
    """
    import tqdm
    from lm_eval.api.task import ConfigurableTask
    from transformers import AutoTokenizer

    def download_task(task: Any, dataset_kwargs: dict[str, Any] | None = None) -> None:
        download(task, dataset_kwargs)

    with ExitStack() as stack:
        stack.enter_context(replaced_attribute(tqdm, "tqdm", lambda texts, **_: islice(texts, max_texts)))
        stack.enter_context(replaced_attribute(AutoTokenizer, "from_pretrained", lambda *_, **__: tokenizer))
        stack.enter_context(replaced_attribute(ConfigurableTask, "download", download_task))
        yield


def _read_copy(url: str, **_: Any) -> Any:
    """Read a file's copy from where `wget --force-directories` stores it."""
    import requests

    parts = urlsplit(url)
    response = requests.Response()
    response.status_code = 200
    response.raw = BytesIO(Path(parts.netloc + parts.path).read_bytes())
    return response
