"""lm-eval's RULER and BABILong at a chosen length, in a file of its own since lm-eval may not be installed.

lm-eval writes RULER's texts when it loads a task. This file gives it the model's tokenizer and copies of what it would
download, and repairs three things: lm-eval does not count the beginning of the answer, it always writes 500 texts, and some of
its loops never end if the shortest text does not fit.
"""

import random
import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, field
from functools import partial, partialmethod
from io import BytesIO, StringIO
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import nltk
import numpy as np
import requests
import tqdm
import wonderwords  # noqa: F401 RULER's words: a missing package is known before a task is loaded
from lm_eval.api.task import ConfigurableTask
from transformers import AutoTokenizer

from megatape.errors import UserError
from megatape.utils.replacing import replaced

# beginnings of the names of their modules
RULER = "lm_eval.tasks.ruler."
BABILONG = "lm_eval.tasks.babilong."
SEED = 42  # RULER's own
ANSWER = 50  # tokens of ruler_fwe's answers, the only ones that lm-eval leaves out when it counts
EXAMPLE = 500  # the most tokens of the example in ruler_vt's prompts
# texts that are drawn for the largest, and tokens by which others may exceed it
DRAWS = 20
SLACK = 40
_DOWNLOAD = ConfigurableTask.download


@dataclass(frozen=True)
class Length:
    """A length, and the model whose tokens it counts. Called with a text, it is the tokenizer of RULER's generators.

    Attributes:
        tokens: The length.
        model: Name of the model.
        tokenizer: The model's.
    """

    tokens: int
    model: str
    tokenizer: Any = field(compare=False)

    def __call__(self, text: str) -> SimpleNamespace:
        """The ids of a text, and those of its last line again.

        The last line is the question, and the beginning of the answer, which lm-eval adds to a text later, repeats it.
        """
        ids = self.tokenizer(text)["input_ids"]
        question = self.tokenizer(text[text.rfind("\n") + 1 :])["input_ids"]
        return SimpleNamespace(input_ids=[*ids, *max(question, ids[:ANSWER], key=len)])

    def load(self, manager: Any, name: str, max_examples: int | None, offline: bool) -> dict[str, Any]:
        """What lm-eval's manager loads, with the length of the texts in the names of tasks and groups.

        Args:
            manager: TaskManager of lm-eval.
            name: Of a task or group.
            max_examples: Texts to write (default: RULER's 500).
            offline: Whether the working directory has all that lm-eval would download.

        Raises:
            UserError: A task has no lengths, or its shortest text does not fit.
        """
        with ExitStack() as stack:
            stack.enter_context(redirect_stdout(StringIO()))
            stack.enter_context(replaced(tqdm, "tqdm", lambda texts, **_: islice(texts, max_examples)))
            stack.enter_context(replaced(AutoTokenizer, "from_pretrained", lambda *_, **__: self))
            stack.enter_context(replaced(ConfigurableTask, "download", partialmethod(_download, self)))
            if offline:
                stack.enter_context(replaced(nltk.data, "path", [str(Path("nltk_data").resolve()), *nltk.data.path]))
                stack.enter_context(replaced(nltk, "download", lambda *_: False))
                stack.enter_context(replaced(requests, "get", _read_copy))
            loaded = manager.load([name])
        for task in loaded["tasks"].values():
            task.config.task += f" at {self.tokens}"
        for group in loaded["groups"].values():
            group.name += f" at {self.tokens}"
            for metric in group.aggregate_metric_list:
                metric.metric = "acc"
        return loaded


def forget_texts() -> None:
    """Let lm-eval import RULER's modules again, which keep a tokenizer, essays and the number of texts of an earlier load."""
    for name in [name for name in sys.modules if name.startswith(RULER)]:
        del sys.modules[name]


def _download(task: Any, length: Length, dataset_kwargs: dict[str, Any] | None = None) -> None:
    config = task.config
    module = getattr(task.config.custom_dataset, "__module__", "")
    if module.startswith(RULER):
        _check_room(config.task, sys.modules[module], length)
        config.process_results = partial(_share, config.process_results)
        getattr(sys.modules[module], "RNG", random).seed(SEED)  # of ruler_cwe
        config.metadata |= {"max_seq_lengths": [length.tokens], "tokenizer": length.model}
    elif module.startswith(BABILONG):
        config.metadata |= {"max_seq_lengths": f"{length.tokens / 1024:g}k"}
    else:
        raise UserError(f"tasks: {config.task} of lm-eval has no lengths: evaluate it by a command without `lengths`")
    random.seed(SEED)
    np.random.seed(SEED)
    _DOWNLOAD(task, dataset_kwargs)


def _share(process: Callable[..., dict[str, float]], document: Any, responses: list[str]) -> dict[str, float]:
    """The score of a text, without lm-eval's -1 for other lengths."""
    return {"acc": process(document, responses)[str(document["max_length"])]}


def _check_room(task: str, module: Any, length: Length) -> None:
    """Raise UserError where lm-eval's loops would never end, because the shortest text does not fit."""

    def most(*settings: Any, **switches: Any) -> int:
        """Tokens of a text of these settings with its answer."""
        draws = (module.generate_input_output(*settings, **switches) for _ in range(DRAWS))
        return SLACK + max(len(length("\n".join(map(str, parts))).input_ids) for parts in draws)

    shortest = 0
    most_tokens = length.tokens
    if task == "ruler_vt" and (shortest := most(5, 1, 4, is_icl=True) + 30) > EXAMPLE:
        most_tokens = EXAMPLE
    elif task == "ruler_vt":
        shortest += most(10, 1, 4) + 30
    elif task == "ruler_cwe":
        shortest = most(10, length.tokens) + 120
    elif task == "ruler_fwe":
        shortest = max(200, len(length(module.TEMPLATE).input_ids))
    if shortest > most_tokens:
        raise UserError(
            f"lengths {length.tokens}: {task} of lm-eval has room for {most_tokens} tokens, but its shortest text has "
            f"{shortest} of {length.model}: give more, or leave the task out"
        )


def _read_copy(url: str, **_: Any) -> requests.Response:
    """The copy of a file, where `wget --force-directories` puts it."""
    parts = urlsplit(url)
    response = requests.Response()
    response.status_code = 200
    response.raw = BytesIO(Path(parts.netloc + parts.path).read_bytes())
    return response
