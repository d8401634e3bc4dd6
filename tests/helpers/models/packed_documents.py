"""Packed documents: a model must treat each one as if it were alone in its sample."""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from megatape.model.transformer import Transformer
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.small_models import tokens_and_positions


class PackedDocuments(NamedTuple):
    """A sample packing several documents.

    Attributes:
        documents: Tokens in each document, [1, length of the document].
        tokens: Tokens in the sample, [1, N].
        position_ids: Positions, restarting at 0 in each document, [1, N].
        document_starts: Index of the first token of each token's document, [1, N].
    """

    documents: list[Tensor]
    tokens: Tensor
    position_ids: Tensor
    document_starts: Tensor


def pack_documents(borders: list[int]) -> PackedDocuments:
    """Return a sample with random tokens.

    Args:
        borders: Index of the first token of each document, and the number of tokens.
    """
    tokens, _ = tokens_and_positions(batch=1, length=borders[-1])
    documents = []
    position_ids = []
    document_starts = []
    for start, end in itertools.pairwise(borders):
        documents.append(tokens[:, start:end])
        position_ids.append(torch.arange(end - start))
        document_starts.append(torch.full((end - start,), start))
    return PackedDocuments(documents, tokens, torch.cat(position_ids)[None], torch.cat(document_starts)[None])


def logits_of_documents(model: Transformer, sample: PackedDocuments) -> tuple[Tensor, Tensor]:
    """Return logits for the packed sample and for each document alone, both [1, N, V]."""
    packed = model(sample.tokens, sample.position_ids, sample.document_starts)
    alone = [model(document, torch.arange(document.shape[1])[None]) for document in sample.documents]
    return packed, torch.cat(alone, dim=1)


def assert_documents_are_independent(model: Transformer, borders: list[int], weight_names: list[str]) -> None:
    """Assert that packing documents changes neither logits nor some weights' gradients.

    Args:
        model: Model to run.
        borders: Index of the first token of each document, and the number of tokens.
        weight_names: Names of weights to compare.
    """
    packed, alone = logits_of_documents(model, pack_documents(borders))
    assert_close(packed, alone, bounds.LOGITS)
    weights = [model.get_parameter(name) for name in weight_names]
    gradients = torch.autograd.grad(packed.square().sum(), weights)
    expected = torch.autograd.grad(alone.square().sum(), weights)
    for name, gradient, expected_gradient in zip(weight_names, gradients, expected, strict=True):
        assert_close(gradient, expected_gradient, bounds.PACKED_GRADIENTS, what=name)
