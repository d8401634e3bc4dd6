"""Our models with lm-eval's interface: log-likelihoods of texts, and greedy continuations."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from lm_eval.api.group import Group
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import has_bos_prefix, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from megatape.errors import UserError, flag
from megatape.lab.tasks.engine.lengths import equal_lengths
from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline

# Maximum number of tokens in a forward pass. Its logits are [4096, V].
LOGIT_TOKENS = 2**12


class _Generation(NamedTuple):
    """A request for a greedy text.

    Attributes:
        number: Request index.
        prompt: Prompt ids.
        num_tokens: Maximum number of tokens to generate.
        until: Strings ending the text.
    """

    number: int
    prompt: list[int]
    num_tokens: int
    until: list[str]


class LmEvalModel(TemplateLM):
    """An evaluation model with lm-eval's interface. Texts begin like training documents, and nothing is padded.

    Contexts that do not fit are cut on the left, as in lm-eval's class for transformers.

    Attributes:
        predicts_begin: Whether the log-likelihood of a whole text includes predicting the beginning token after itself, as in
            lm-eval's class for transformers. Training never predicts this token.
    """

    def __init__(self, model: EvaluationModel, predicts_begin: bool = True) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = model.tokenizer
        self.predicts_begin = predicts_begin

    @property
    def eot_token_id(self) -> int:
        """Id ending documents."""
        return int(self.model.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """Id before a text without context: the beginning token, or else the token ending documents."""
        bos = self.model.tokenizer.bos_token_id
        if bos is None:
            return self.eot_token_id
        return int(bos)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Encode a text, adding the model's beginning token unless `add_special_tokens` is False."""
        adds_begin = add_special_tokens is not False
        return list(self.model.tokenizer(string, add_special_tokens=adds_begin)["input_ids"])

    def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Compute log-likelihoods of continuations, without TemplateLM's progress bar."""
        return list(super().loglikelihood(requests, disable_tqdm=True))

    @torch.no_grad()
    def _loglikelihood_tokens(self, requests: Iterable[Any], **kwargs: Any) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether it is the greedy one.

        Requests with equal inputs, such as one-token answers to a question, share a forward pass.
        """
        max_positions = self.model.max_positions
        by_input: dict[tuple[int, ...], list[tuple[int, list[int]]]] = {}
        number = -1
        for number, (_, context, continuation) in enumerate(requests):
            if len(continuation) > max_positions:
                raise UserError(
                    f"lm-eval asks for a continuation of {len(continuation)} tokens, but {self.model.name} has "
                    f"{max_positions} positions (model.max_positions): choose another task"
                )
            tokens = [*context, *continuation][-max_positions - 1 :]
            inputs = tuple(tokens[:-1])
            by_input.setdefault(inputs, []).append((number, continuation))

        answers = [(0.0, True)] * (number + 1)
        for batch in equal_lengths(by_input, len, LOGIT_TOKENS):
            logits = self.model.logits(torch.tensor(batch))
            for inputs, row in zip(batch, logits, strict=True):
                for number, continuation in by_input[inputs]:
                    targets = torch.tensor(continuation, device=row.device)
                    scores = row[len(row) - len(targets) :].log_softmax(-1)
                    loglikelihood = scores.gather(-1, targets[:, None]).sum()
                    is_greedy = (scores.argmax(-1) == targets).all()
                    answers[number] = (float(loglikelihood), bool(is_greedy))
        return answers

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> list[float]:
        """Compute log-likelihoods of whole texts in long windows, predicting each token once."""
        prefix = self.tokenizer.decode(self.prefix_token_id)
        sums = []
        for request in requests:
            (text,) = request.args
            adds_begin = self.predicts_begin and not has_bos_prefix(text, prefix)
            ids = self.tok_encode(text, add_special_tokens=adds_begin)
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self.model.max_positions, context_len=1)
            parts = self._loglikelihood_tokens((None, *make_disjoint_window(window)) for window in windows)
            sums.append(sum(loglikelihood for loglikelihood, _ in parts))
        return sums

    def generate_until(self, requests: Any, disable_tqdm: bool = True) -> list[str]:
        """Generate greedy texts, cut before the strings ending them."""
        generations = []
        for number, request in enumerate(requests):
            context, settings = request.args
            options = normalize_gen_kwargs(settings)
            num_tokens = options["max_gen_toks"]
            room = self.model.max_positions - num_tokens
            prompt = self.tok_encode(context)[-room:]
            generations.append(_Generation(number, prompt, num_tokens, options.get("until") or []))

        texts = [""] * len(generations)
        for batch in equal_lengths(generations, lambda generation: len(generation.prompt)):
            prompts = [generation.prompt for generation in batch]
            num_tokens = max(generation.num_tokens for generation in batch)
            answers = self.model.continuations(prompts, num_tokens)
            for generation, ids in zip(batch, answers, strict=True):
                text = self.model.tokenizer.decode(ids[: generation.num_tokens], skip_special_tokens=True)
                texts[generation.number] = postprocess_generated_text(text, generation.until, None)
        return texts


def check_requests(task: str, requests: Iterable[Any], model: ModelOutline, whole: bool) -> None:
    """Check that a model can answer a task.

    Args:
        task: Task name.
        requests: The task's requests.
        model: Outline of the model.
        whole: Whether prompts must fit too, because they must not lose their beginning.

    Raises:
        UserError: The task samples its texts, or needs more positions than the model has.
    """
    with_prompt = " with its prompt" if whole else ""
    for request in requests:
        num_needed = 0
        if request.request_type == "generate_until":
            prompt, settings = request.args
            options = normalize_gen_kwargs(settings)
            if options.get("do_sample"):
                raise UserError(
                    f"{flag('tasks')}: {task} of lm-eval samples its texts, but only greedy texts are supported: leave it out"
                )
            prompt_tokens = 1
            if whole:
                prompt_tokens = len(model.tokenizer(prompt)["input_ids"])
            num_needed = options["max_gen_toks"] + prompt_tokens
        elif request.request_type == "loglikelihood":
            answer = request.args[1]
            # A token has at least one byte, so short answers fit without encoding them.
            if len(answer.encode()) > model.max_positions:
                num_needed = len(model.tokenizer(answer, add_special_tokens=False)["input_ids"])
        if num_needed > model.max_positions:
            raise UserError(
                f"{flag('tasks')}: {task} of lm-eval has an answer that needs {num_needed} positions{with_prompt}, but "
                f"{model.name} has {model.max_positions} (model.max_positions): leave it out"
            )


@dataclass
class NamedTasks(Group):
    """A group aggregating metrics of tasks known by name only."""

    names: list[str] = field(default_factory=list)

    def get_all_tasks(self, recursive: bool = True) -> list[Any]:
        """Return objects with the task names."""
        return [SimpleNamespace(task_name=name) for name in self.names]
