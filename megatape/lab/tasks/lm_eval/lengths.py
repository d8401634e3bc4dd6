"""lm-eval's RULER and BABILong at chosen text lengths.

lm-eval generates RULER's texts while loading a task. This file passes it the model's tokenizer and local copies of downloads,
and works around three limitations: lm-eval does not count the beginning of the answer, always generates 500 texts, and loops
forever if the shortest text does not fit.
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

# Prefixes of module names.
RULER = "lm_eval.tasks.ruler."
BABILONG = "lm_eval.tasks.babilong."
# RULER's own seed.
SEED = 42
# Number of tokens in answers of ruler_fwe, which lm-eval does not count.
ANSWER_TOKENS = 50
# Maximum number of tokens in the example of ruler_vt.
EXAMPLE_TOKENS = 500
# Number of texts drawn for estimating the maximum length, and a margin in tokens.
DRAWS = 20
SLACK_TOKENS = 40
# Number of answer tokens that lm-eval reserves in each task.
VT_ANSWER_TOKENS = 30
CWE_ANSWER_TOKENS = 120
_DOWNLOAD = ConfigurableTask.download


@dataclass(frozen=True)
class Length:
    """A text length in a model's tokens. Called with a text, it acts as the tokenizer in RULER's generators.

    Attributes:
        tokens: Length in tokens.
        model: Model name.
        tokenizer: The model's tokenizer.
    """

    tokens: int
    model: str
    tokenizer: Any = field(compare=False)

    def __call__(self, text: str) -> SimpleNamespace:
        """Encode a text and repeat its last line, the question, because lm-eval later adds an answer prefix repeating it."""
        ids = self.tokenizer(text)["input_ids"]
        last_line = text[text.rfind("\n") + 1 :]
        question = self.tokenizer(last_line)["input_ids"]
        answer = max(question, ids[:ANSWER_TOKENS], key=len)
        return SimpleNamespace(input_ids=[*ids, *answer])

    def load(self, manager: Any, name: str, max_examples: int | None, offline: bool) -> dict[str, Any]:
        """Load a task or group with lm-eval's manager. The length becomes part of task and group names.

        Args:
            manager: lm-eval's TaskManager.
            name: Task or group name.
            max_examples: Number of texts to generate, None for RULER's 500.
            offline: Whether to read downloads from the working directory.

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
    """Unload RULER's modules, which cache tokenizer, essays and number of texts."""
    for name in list(sys.modules):
        if name.startswith(RULER):
            del sys.modules[name]


def _download(task: Any, length: Length, dataset_kwargs: dict[str, Any] | None = None) -> None:
    """Generate a task's texts at a length. Replaces lm-eval's ConfigurableTask.download."""
    config = task.config
    module = getattr(task.config.custom_dataset, "__module__", "")
    if module.startswith(RULER):
        _check_room(config.task, sys.modules[module], length)
        config.process_results = partial(_share, config.process_results)
        # ruler_cwe has its own random generator.
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
    """Return a text's score, dropping lm-eval's -1 for other lengths."""
    scores = process(document, responses)
    return {"acc": scores[str(document["max_length"])]}


def _check_room(task: str, module: Any, length: Length) -> None:
    """Raise UserError if the shortest text does not fit, instead of letting lm-eval loop forever."""

    def longest_draw(*settings: Any, **switches: Any) -> int:
        """Estimate the maximum text length with these settings, in tokens including the answer."""
        sizes = []
        for _ in range(DRAWS):
            parts = module.generate_input_output(*settings, **switches)
            text = "\n".join(map(str, parts))
            sizes.append(len(length(text).input_ids))
        return max(sizes) + SLACK_TOKENS

    shortest = 0
    limit = length.tokens
    if task == "ruler_vt":
        # lm-eval fits the example first, then the text including it.
        shortest = longest_draw(5, 1, 4, is_icl=True) + VT_ANSWER_TOKENS
        if shortest > EXAMPLE_TOKENS:
            limit = EXAMPLE_TOKENS
        else:
            shortest += longest_draw(10, 1, 4) + VT_ANSWER_TOKENS
    elif task == "ruler_cwe":
        shortest = longest_draw(10, length.tokens) + CWE_ANSWER_TOKENS
    elif task == "ruler_fwe":
        shortest = max(200, len(length(module.TEMPLATE).input_ids))
    if shortest > limit:
        raise UserError(
            f"lengths {length.tokens}: {task} of lm-eval has room for {limit} tokens, but its shortest text has "
            f"{shortest} of {length.model}: give more, or leave the task out"
        )


def _read_copy(url: str, **_: Any) -> requests.Response:
    """Read a file's copy from where `wget --force-directories` stores it."""
    parts = urlsplit(url)
    response = requests.Response()
    response.status_code = 200
    response.raw = BytesIO(Path(parts.netloc + parts.path).read_bytes())
    return response
