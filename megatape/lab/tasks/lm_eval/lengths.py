"""lm-eval's RULER and BABILong at chosen text lengths.

lm-eval generates RULER's texts while loading a task. This file makes up for three limitations: lm-eval does not count the
beginning of the answer, always generates 500 texts, and loops forever if the shortest text does not fit. replacements.py says
which parts of lm-eval and its libraries are replaced for that.
"""

import random
import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from types import SimpleNamespace
from typing import Any

# RULER's modules need these packages. Importing them here reports a missing one before a task is loaded.
import nltk  # noqa: F401
import numpy as np
import requests  # noqa: F401
import wonderwords  # noqa: F401
from lm_eval.api.task import ConfigurableTask

from megatape.errors import UserError, flag
from megatape.lab.tasks.lm_eval.replacements import downloads_in_working_directory, generated_texts

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
            stack.enter_context(generated_texts(self, max_examples, partial(_download, self)))
            if offline:
                stack.enter_context(downloads_in_working_directory())
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


def _download(length: Length, task: Any, dataset_kwargs: dict[str, Any] | None) -> None:
    """Generate a task's texts at a length, in place of lm-eval's ConfigurableTask.download."""
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
        raise UserError(
            f"{flag('tasks')}: {config.task} of lm-eval has no lengths: evaluate it by a command without {flag('lengths')}"
        )
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
            f"{flag('lengths')} {length.tokens}: {task} of lm-eval has room for {limit} tokens, but its shortest text has "
            f"{shortest} of {length.model}: give more, or leave the task out"
        )
