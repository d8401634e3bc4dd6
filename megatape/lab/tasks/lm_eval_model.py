"""Subclasses of lm-eval's model and group, in a file of their own since lm-eval may not be installed.

The model answers lm-eval's requests: log-likelihoods of texts, and greedy continuations.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from lm_eval.api.group import Group
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import has_bos_prefix, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from megatape.errors import UserError
from megatape.lab.tasks.engine.lengths import equal_lengths
from megatape.lab.tasks.engine.task import EvaluationModel, ModelOutline

LOGIT_TOKENS = 2**12  # of a forward pass, whose logits are [4096, V]


class LmEvalModel(TemplateLM):
    """An evaluation model for lm-eval. Texts begin like documents of training, and nothing is padded.

    A context that does not fit is cut on its left, as lm-eval does for the models of transformers.

    Attributes:
        predicts_begin: Whether the log-likelihood of a whole text has that of a beginning token after itself, as lm-eval's own
            class for these models has it; the training code never predicts this token.
    """

    def __init__(self, model: EvaluationModel, predicts_begin: bool = True) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = model.tokenizer
        self.predicts_begin = predicts_begin

    @property
    def eot_token_id(self) -> int:
        """The end token of documents."""
        return int(self.model.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context: the beginning token, or else the end token of the document before."""
        bos = self.model.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """The tokens of a text, with the beginning token if the model has one, unless `add_special_tokens` is False."""
        return list(self.model.tokenizer(string, add_special_tokens=add_special_tokens is not False)["input_ids"])

    def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Log-likelihoods of (context, continuation), without TemplateLM's progress bar."""
        return list(super().loglikelihood(requests, disable_tqdm=True))

    @torch.no_grad()
    def _loglikelihood_tokens(self, requests: Iterable[Any], **kwargs: Any) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether it is the likeliest one.

        Requests with the same input, such as answers of one token, share a forward pass.

        Args:
            requests: Texts, context ids, continuation ids.
            kwargs: Not used.
        """
        by_input: dict[tuple[int, ...], list[tuple[int, list[int]]]] = {}
        number = -1
        for number, (_, context, continuation) in enumerate(requests):
            if len(continuation) > self.model.max_positions:
                raise UserError(
                    f"lm-eval asks for a continuation of {len(continuation)} tokens, but {self.model.name} has "
                    f"{self.model.max_positions} positions (model.max_positions): choose another task"
                )
            tokens = [*context, *continuation][-self.model.max_positions - 1 :]
            by_input.setdefault(tuple(tokens[:-1]), []).append((number, continuation))
        answers = [(0.0, True)] * (number + 1)
        for batch in equal_lengths(by_input, len, LOGIT_TOKENS):
            logits = self.model.logits(torch.tensor(batch))
            for inputs, row in zip(batch, logits, strict=True):
                for number, continuation in by_input[inputs]:
                    targets = torch.tensor(continuation, device=row.device)
                    scores = row[len(row) - len(targets) :].log_softmax(-1)
                    loglikelihood = scores.gather(-1, targets[:, None]).sum()
                    answers[number] = float(loglikelihood), bool((scores.argmax(-1) == targets).all())
        return answers

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> list[float]:
        """Log-likelihoods of whole texts, in windows of all positions; each token is predicted once."""
        sums = []
        for (text,) in (request.args for request in requests):
            begins = has_bos_prefix(text, self.tokenizer.decode(self.prefix_token_id))
            ids = self.tok_encode(text, add_special_tokens=self.predicts_begin and not begins)
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self.model.max_positions, context_len=1)
            parts = self._loglikelihood_tokens((None, *make_disjoint_window(window)) for window in windows)
            sums.append(sum(loglikelihood for loglikelihood, _ in parts))
        return sums

    def generate_until(self, requests: Any, disable_tqdm: bool = True) -> list[str]:
        """Greedy texts, cut before the strings that end them."""
        prompts = []
        for number, (context, settings) in enumerate(request.args for request in requests):
            options = normalize_gen_kwargs(settings)
            num_tokens = options["max_gen_toks"]
            room = self.model.max_positions - num_tokens
            prompts.append((number, self.tok_encode(context)[-room:], num_tokens, options.get("until") or []))
        texts = [""] * len(prompts)
        for batch in equal_lengths(prompts, lambda one: len(one[1])):
            answers = self.model.continuations(
                [ids for _, ids, _, _ in batch], max(num_tokens for _, _, num_tokens, _ in batch)
            )
            for (number, _, num_tokens, until), ids in zip(batch, answers, strict=True):
                text = self.model.tokenizer.decode(ids[:num_tokens], skip_special_tokens=True)
                texts[number] = postprocess_generated_text(text, until, None)
        return texts


def check_requests(task: str, requests: Iterable[Any], model: ModelOutline, whole: bool) -> None:
    """Raise UserError if a task samples its texts, or needs more positions than the model has.

    whole: The prompts need positions as well as the answers, because none may lose its beginning.
    """
    for request in requests:
        needed = 0
        if request.request_type == "generate_until":
            options = normalize_gen_kwargs(request.args[1])
            needed = options["max_gen_toks"] + (len(model.tokenizer(request.args[0])["input_ids"]) if whole else 1)
            if options.get("do_sample"):
                raise UserError(
                    f"tasks: {task} of lm-eval samples its texts, but only greedy texts are supported: leave it out"
                )
        elif request.request_type == "loglikelihood" and len(request.args[1].encode()) > model.max_positions:
            needed = len(model.tokenizer(request.args[1], add_special_tokens=False)["input_ids"])
        if needed > model.max_positions:
            raise UserError(
                f"tasks: {task} of lm-eval has an answer that needs {needed} positions{' with its prompt' * whole}, but "
                f"{model.name} has {model.max_positions} (model.max_positions): leave it out"
            )


@dataclass
class NamedTasks(Group):
    """A group whose tasks are known by name only, to aggregate their metrics."""

    names: list[str] = field(default_factory=list)

    def get_all_tasks(self, recursive: bool = True) -> list[Any]:
        """Stand-ins of the tasks, with their names."""
        return [SimpleNamespace(task_name=name) for name in self.names]
