"""CoPE: gates sum up to each key's position, interpolating between the embeddings of whole positions."""

import torch
from torch import Tensor

from megatape.lab.study.attention.layer_inputs import LayerInputs
from tests.encodings.definitions.heads import Head, heads_of, weights_of


def cope_scores(head: Head, embedding: Tensor) -> Tensor:
    """Return a head's scores.

    Args:
        head: Head.
        embedding: Position embeddings, [R, P], divided by sqrt R if q . E is.
    """
    products = head.products()
    last_position = torch.tensor(embedding.shape[1] - 1.0)
    scores = products.clone()
    for i, j in head.pairs:
        gates = sum(torch.sigmoid(products[i, m]) for m in range(j, i + 1))
        position = min(gates, last_position)
        below = int(position.floor())
        above = int(position.ceil())
        share = position - position.floor()
        scores[i, j] += (1 - share) * (head.q[i] @ embedding[:, below]) + share * (head.q[i] @ embedding[:, above])
    return scores


def expected_scores(layer: LayerInputs, encoding: str) -> list[Tensor]:
    embedding = weights_of(layer)["bias.embedding"]
    if encoding.endswith("_scaled"):
        embedding = embedding * 8**-0.5
    return [cope_scores(head, embedding) for head in heads_of(layer)]
