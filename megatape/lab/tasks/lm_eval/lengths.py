"""lm-eval's RULER and BABILong at a chosen length, in a separate file because lm-eval may not be installed.

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
import wonderwords  # noqa: F401 RULER needs it. Importing it here reports a missing package before a task is loaded.
from lm_eval.api.task import ConfigurableTask
from transformers import AutoTokenizer

from megatape.errors import UserError
from megatape.utils.replaced_attribute import replaced_attribute

# Prefixes of the names of modules.
RULER = "lm_eval.tasks.ruler."
BABILONG = "lm_eval.tasks.babilong."
# RULER's own seed.
SEED = 42
# Number of tokens in the answers of ruler_fwe, the only answers that lm-eval does not count.
ANSWER_TOKENS = 50
# Maximum number of tokens of the example in the prompts of ruler_vt.
EXAMPLE_TOKENS = 500
# Number of texts drawn to find the longest one, and the number of tokens by which others may exceed it.
DRAWS = 20
SLACK_TOKENS = 40
# Tokens that lm-eval reserves for the answers of each task.
VT_ANSWER_TOKENS = 30
CWE_ANSWER_TOKENS = 120
_DOWNLOAD = ConfigurableTask.download


@dataclass(frozen=True)
class Length:
    """A length in tokens of a model. Called with a text, it acts as the tokenizer of RULER's generators.

    Attributes:
        tokens: Length in tokens.
        model: Name of the model.
        tokenizer: Tokenizer of the model.
    """

    tokens: int
    model: str
    tokenizer: Any = field(compare=False)

    def __call__(self, text: str) -> SimpleNamespace:
        """Encode a text, followed by its last line again.

        The last line is the question. lm-eval later adds the beginning of the answer, which repeats the question.
        """
        ids = self.tokenizer(text)["input_ids"]
        last_line = text[text.rfind("\n") + 1 :]
        question = self.tokenizer(last_line)["input_ids"]
        answer = max(question, ids[:ANSWER_TOKENS], key=len)
        return SimpleNamespace(input_ids=[*ids, *answer])

    def load(self, manager: Any, name: str, max_examples: int | None, offline: bool) -> dict[str, Any]:
        """Load a task or group with lm-eval's manager. The names of tasks and groups get the length of the texts.

        Args:
            manager: TaskManager of lm-eval.
            name: Name of the task or group.
            max_examples: Number of texts to write, None for RULER's 500.
            offline: Whether the working directory has everything that lm-eval would download.

        Raises:
            UserError: A task has no lengths, or its shortest text does not fit.
        """
        with ExitStack() as stack:
            stack.enter_context(redirect_stdout(StringIO()))
            stack.enter_context(replaced_attribute(tqdm, "tqdm", lambda texts, **_: islice(texts, max_examples)))
            stack.enter_context(replaced_attribute(AutoTokenizer, "from_pretrained", lambda *_, **__: self))
            stack.enter_context(replaced_attribute(ConfigurableTask, "download", partialmethod(_download, self)))
            if offline:
                nltk_data = str(Path("nltk_data").resolve())
                stack.enter_context(replaced_attribute(nltk.data, "path", [nltk_data, *nltk.data.path]))
                stack.enter_context(replaced_attribute(nltk, "download", lambda *_: False))
                stack.enter_context(replaced_attribute(requests, "get", _read_copy))
            loaded = manager.load([name])
        for task in loaded["tasks"].values():
            task.config.task += f" at {self.tokens}"
        for group in loaded["groups"].values():
            group.name += f" at {self.tokens}"
            for metric in group.aggregate_metric_list:
                metric.metric = "acc"
        return loaded


def forget_texts() -> None:
    """Let lm-eval import RULER's modules again. They keep the tokenizer, essays and number of texts of an earlier load."""
    for name in list(sys.modules):
        if name.startswith(RULER):
            del sys.modules[name]


def _download(task: Any, length: Length, dataset_kwargs: dict[str, Any] | None = None) -> None:
    """Make the texts of a task at a length, in place of lm-eval's ConfigurableTask.download."""
    config = task.config
    module = getattr(task.config.custom_dataset, "__module__", "")
    if module.startswith(RULER):
        _check_room(config.task, sys.modules[module], length)
        config.process_results = partial(_share, config.process_results)
        # ruler_cwe has a generator of its own.
        generator = getattr(sys.modules[module], "RNG", random)
        generator.seed(SEED)
        config.metadata |= {"max_seq_lengths": [length.tokens], "tokenizer": length.model}
    elif module.startswith(BABILONG):
        config.metadata |= {"max_seq_lengths": f"{length.tokens / 1024:g}k"}
    else:
        raise UserError(f"tasks: {config.task} of lm-eval has no lengths: evaluate it by a command without `lengths`")
    random.seed(SEED)
    np.random.seed(SEED)
    _DOWNLOAD(task, dataset_kwargs)


def _share(process: Callable[..., dict[str, float]], document: Any, responses: list[str]) -> dict[str, float]:
    """Return the score of a text, without lm-eval's -1 for other lengths."""
    scores = process(document, responses)
    return {"acc": scores[str(document["max_length"])]}


def _check_room(task: str, module: Any, length: Length) -> None:
    """Raise UserError if the shortest text does not fit, because lm-eval's loops would never end."""

    def longest_draw(*settings: Any, **switches: Any) -> int:
        """Estimate the maximum number of tokens of a text with these settings, with its answer."""
        sizes = []
        for _ in range(DRAWS):
            parts = module.generate_input_output(*settings, **switches)
            text = "\n".join(map(str, parts))
            sizes.append(len(length(text).input_ids))
        return max(sizes) + SLACK_TOKENS

    shortest = 0
    most_tokens = length.tokens
    if task == "ruler_vt":
        # lm-eval fits the example first, and then the text with it.
        shortest = longest_draw(5, 1, 4, is_icl=True) + VT_ANSWER_TOKENS
        if shortest > EXAMPLE_TOKENS:
            most_tokens = EXAMPLE_TOKENS
        else:
            shortest += longest_draw(10, 1, 4) + VT_ANSWER_TOKENS
    elif task == "ruler_cwe":
        shortest = longest_draw(10, length.tokens) + CWE_ANSWER_TOKENS
    elif task == "ruler_fwe":
        shortest = max(200, len(length(module.TEMPLATE).input_ids))
    if shortest > most_tokens:
        raise UserError(
            f"lengths {length.tokens}: {task} of lm-eval has room for {most_tokens} tokens, but its shortest text has "
            f"{shortest} of {length.model}: give more, or leave the task out"
        )


def _read_copy(url: str, **_: Any) -> requests.Response:
    """Read the copy of a file from the place where `wget --force-directories` puts it."""
    parts = urlsplit(url)
    response = requests.Response()
    response.status_code = 200
    response.raw = BytesIO(Path(parts.netloc + parts.path).read_bytes())
    return response
