"""Where the models of a suite attend when they answer wrongly, and what TAPE's updates have to do with it.

Only for tasks whose answers repeat an earlier place of the text, the answer's source.

The query is that of the token before an answer, from which the model predicts the answer's first token. Shapes as in
model/transformer.py; A is the number of answers.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megatape.attention.rotation import PositionState
from megatape.checkpoint.reader import load_model
from megatape.data.synthetic.folder import Encoder
from megatape.data.synthetic.task import Answer, SyntheticSample, SyntheticTask
from megatape.errors import UserError, choose_one
from megatape.lab.study.subjects import LayerInputs, probabilities, run
from megatape.lab.study.suite.measure import inapplicable, open_run
from megatape.lab.study.suite.records import answer_places
from megatape.model.block import Block
from megatape.model.transformer import Transformer
from megatape.run_folder import RunFolder
from megatape.utils.files import real_paths
from megatape.utils.tables import markdown

MOST = 3  # places with the most attention that are kept
EXAMPLES = 3
FIRST = "the first's wrong"

Numbered = tuple[int, SyntheticSample, Answer]  # a sample's number, the sample, and one of its answers


class LayerView(NamedTuple):
    """What one layer does at the answers.

    Attributes:
        farther: Share of the query's attention on keys farther than the source, with <s>, [A, H].
        source: Share of the source, [A, H].
        nearer: Share of nearer keys, [A, H].
        places: Places with the largest shares among the inputs, [A, H, MOST].
        weights: Those shares, [A, H, MOST].
        without: Share of the source if this layer read e as it was before any block, [A, H]; None if it does.
        moved: D, the sum of what blocks have added to e: its norm over that of e's initial value, at the query, [A]; None where
            nothing has been added.
    """

    farther: Tensor
    source: Tensor
    nearer: Tensor
    places: Tensor
    weights: Tensor
    without: Tensor | None
    moved: Tensor | None


@dataclass(frozen=True)
class AttentionView:
    """What one model does at the answers.

    Attributes:
        right: Whether each answer is right, bool [A].
        said: Characters that the model gives for each answer.
        right_without: Whether each answer is right if no block adds to e, bool [A]; None if none does.
        layers: Attention and D of each layer.
        gains: Gains of the attention update of each layer; None without it.
    """

    right: Tensor
    said: list[str]
    right_without: Tensor | None
    layers: list[LayerView]
    gains: list[Tensor | None]

    def head(self, layer: int) -> int:
        """That with the largest share of the source, in the mean over answers."""
        return int(self.layers[layer].source.mean(0).argmax())


@torch.no_grad()
def look(model: Transformer, task: SyntheticTask, samples: list[SyntheticSample], length: int, seed: int) -> AttentionView:
    """Look at samples with a float32 model on the CPU.

    length, seed: of the positions that an encoding draws, those that the suite scores its models with.
    """
    encoder = Encoder(task)
    positions = torch.as_tensor(model.encoding.positions(random_offset=False).evaluation(length, seed))[None]
    unmoved = deepcopy(model)
    for block in unmoved.blocks:
        assert isinstance(block, Block)
        block.position = None
    right = []
    said = []
    without = []
    views = []
    for sample in samples:
        ids = torch.tensor(encoder.example(sample).ids)
        arguments = ids[None, :-1], positions[:, : len(ids) - 1]
        logits, layers = run(model, *arguments)
        # After <s>, the place of a token in the text is that of the input before it.
        given = logits[0].argmax(-1)
        given_without = unmoved(*arguments)[0].argmax(-1)
        for places in answer_places(task, sample):
            own = slice(places.start, places.stop)
            right.append(torch.equal(given[own], ids[1:][own]))
            without.append(torch.equal(given_without[own], ids[1:][own]))
            said.append("".join(encoder.tokenizer.decode([token]) for token in given[own].tolist()))
        queries = torch.tensor([answer.begin for answer in sample.answers])
        sources = queries + 1 - torch.tensor([answer.key for answer in sample.answers])
        views.append([_view(layer, queries, sources, layers[0].positions) for layer in layers])
    return AttentionView(
        torch.tensor(right),
        said,
        torch.tensor(without) if model.encoding.carries_state else None,
        [LayerView(*map(_joined, zip(*of_layer, strict=True))) for of_layer in zip(*views, strict=True)],
        [getattr(block.position, "gain", None) for block in model.blocks],
    )


def _view(layer: LayerInputs, queries: Tensor, sources: Tensor, start: PositionState) -> LayerView:
    """start: e before any block, that of the first layer itself."""
    rows = probabilities(layer)[0][:, queries].transpose(0, 1)  # [A, H, N]
    upto = rows.cumsum(-1)
    here = torch.arange(len(queries))
    source = rows[here, :, sources]
    farther = upto[here, :, sources] - source
    most = rows.topk(min(MOST, rows.shape[-1]))
    without = moved = None
    delta = layer.positions.delta
    if delta is not None and layer.positions is not start:
        without = probabilities(replace(layer, positions=start))[0][:, queries, sources].T
        added = delta if start.delta is None else delta - start.delta
        e = start.tensor(delta.shape[2])[0]
        moved = (added[0].flatten(1).norm(dim=-1) / e.flatten(1).norm(dim=-1))[queries]
    return LayerView(farther, source, 1 - source - farther, most.indices, most.values, without, moved)


def _joined(parts: tuple[Any, ...]) -> Any:
    """Of all samples; None if a layer has none of it."""
    return None if parts[0] is None else torch.cat(parts)


def failures(folders: Sequence[Path], split: str, count: int) -> Iterator[str]:
    """Yields what the models of the runs do on the first `count` samples of a split.

    It looks at their right answers, at their wrong ones, and at those that the first model has wrong.

    Raises UserError or OSError if a folder is not a complete run of a suite, the runs have different tasks, the task's answers
    have no source, or an encoding cannot do the split.
    """
    opened = [open_run(RunFolder(folder)) for folder in real_paths(folders)]
    task = opened[0][1]
    for folder, (config, other, _) in zip(folders, opened, strict=True):
        if other.definition != task.definition:
            raise UserError(
                f"{folder} has the task {_named(other)}, {folders[0]} {_named(task)}: give runs of one task and size"
            )
        if split not in task.tests:
            raise UserError(f"split: {task.name} has no split {split!r}: {choose_one(split, task.tests)}")
        if reason := inapplicable(task, split, config.model.encoding):
            raise UserError(f"{folder}: {split} is {reason}")
    if not task.copies:
        raise UserError(f"{task.name}: its answers do not repeat one place of the text, so there is none to look for")

    labels = [f"{config.model.encoding}, seed {config.training.seed}" for config, _, _ in opened]
    if len(set(labels)) < len(labels):
        labels = [str(folder) for folder in folders]
    samples = list(task.samples(split, count))
    views = {}
    for label, (config, _, checkpoint) in zip(labels, opened, strict=True):
        views[label] = look(load_model(checkpoint), task, samples, task.tokens(split) - 1, config.training.seed)
    answers = [(number, sample, answer) for number, sample in enumerate(samples) for answer in sample.answers]
    yield f"{_named(task)}, {count} samples of {split}; the first model is {labels[0]}"
    yield _answers(views, torch.tensor([answer.key for _, _, answer in answers]))
    yield _attention(views)
    yield from _updates(views)
    yield from _examples(views, answers)


def _answers(views: dict[str, AttentionView], keys: Tensor) -> str:
    rows = []
    for label, found in views.items():
        right, wrong, firsts = _groups(views, found)
        every = torch.ones_like(right)
        without = "" if found.right_without is None else _percent(found.right_without, every)
        shares = _percent(right, every), without, _percent(right, firsts)
        rows.append([f"`{label}`", f"{len(every):,}", f"{int(wrong.sum()):,}", *shares, _mean(keys, right), _mean(keys, wrong)])
    header = ["", "answers", "wrong", "right, %", "without D, %", f"of {FIRST}, %", "distance: right", "wrong"]
    return "Answers, and their mean distance from the source\n\n" + markdown(header, rows)


def _attention(views: dict[str, AttentionView]) -> str:
    rows = []
    for label, found in views.items():
        for layer, shares in enumerate(found.layers):
            head = found.head(layer)
            groups = _groups(views, found)
            parts = (shares.source, shares.nearer, shares.farther)
            rows.append(_place(label, layer, head) + [_percent(part[:, head], group) for part in parts for group in groups])
    columns = [column for part in ("source", "nearer", "farther") for column in (f"{part}: right", "wrong", FIRST)]
    title = "Shares of attention in %, of the head that attends most to the source: on the source, on nearer and farther keys"
    return f"{title}\n\n" + markdown(["", "layer", "head", *columns], rows)


def _updates(views: dict[str, AttentionView]) -> Iterator[str]:
    rows = []
    for label, found in views.items():
        for layer, view in enumerate(found.layers):
            if view.moved is None or view.without is None:
                continue
            head = found.head(layer)
            gains = found.gains[layer - 1]
            groups = _groups(views, found)[:2]
            span = "" if gains is None else f"{gains.min().item():+.2f} to {gains.max().item():+.2f}"
            parts = (view.moved, view.source[:, head], view.without[:, head])
            rows.append([*_place(label, layer, head), span, *(_percent(part, group) for part in parts for group in groups)])
    if rows:
        columns = [column for part in ("D", "source", "source without D") for column in (f"{part}: right", "wrong")]
        title = (
            "D, what earlier blocks have added to e, in % of e's initial norm at the query, and the share of the source with "
            "and without D in this layer; gains of the layer before"
        )
        yield f"{title}\n\n" + markdown(["", "layer", "head", "gains", *columns], rows)


def _examples(views: dict[str, AttentionView], answers: list[Numbered]) -> Iterator[str]:
    rows = []
    for index in (~next(iter(views.values())).right).nonzero().flatten().tolist()[:EXAMPLES]:
        number, sample, answer = answers[index]
        for label, found in views.items():
            layer = max(range(len(found.layers)), key=lambda layer: float(found.layers[layer].source.mean(0).max()))
            head = found.head(layer)
            shares = found.layers[layer]
            most = zip(shares.places[index, head].tolist(), shares.weights[index, head].tolist(), strict=True)
            shown = [
                f"`{sample.text[max(0, place - 2) : place] if place else '<s>'}` {answer.begin + 1 - place}: {100 * share:.0f}%"
                for place, share in most
            ]
            asked = f"sample {number}, character {answer.begin}, distance {answer.key}"
            right = sample.text[answer.begin : answer.end]
            rows.append([asked, *_place(label, layer, head), f"`{right}`", f"`{found.said[index]}`", ", ".join(shown)])
    if rows:
        title = (
            "The first wrong answers of the first model: where the head attends most, as the character there with the one "
            "before it, its distance from the answer, and its share"
        )
        yield f"{title}\n\n" + markdown(["", "", "layer", "head", "right", "said", "most attention"], rows)


def _groups(views: dict[str, AttentionView], found: AttentionView) -> tuple[Tensor, Tensor, Tensor]:
    """Which answers are right, which are wrong, and which the first model has wrong, bool [A]."""
    return found.right, ~found.right, ~next(iter(views.values())).right


def _place(label: str, layer: int, head: int) -> list[str]:
    return [f"`{label}`", str(layer + 1), str(head + 1)]


def _percent(values: Tensor, of: Tensor) -> str:
    return _mean(100 * values.float(), of)


def _mean(values: Tensor, of: Tensor) -> str:
    """The mean of the chosen ones."""
    return f"{float(values[of].float().mean()):.1f}" if of.any() else ""


def _named(task: SyntheticTask) -> str:
    return f"{task.name}, size {task.size}"
