"""Layers of a model, with the parameters of vLLM's. Those that are sharded have the part of this thread's rank."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.helpers.vllm.ranks import CURRENT


class _Sharded(nn.Module):
    """Linear layer with a shard of a matrix."""

    def __init__(self, rows: int, columns: int, bias: bool) -> None:
        super().__init__()
        self.rank = CURRENT.rank
        self.num_ranks = CURRENT.ranks.size
        self.weight = nn.Parameter(torch.empty(rows, columns))
        self._let_load(self.weight)
        self.bias: nn.Parameter | None = None
        if bias:
            self.bias = nn.Parameter(torch.empty(rows))
            self._let_load(self.bias)

    def _let_load(self, parameter: nn.Parameter) -> None:
        """Set the attribute by which vLLM's models load a shard of a weight."""
        parameter.weight_loader = self.load  # type: ignore[attr-defined]

    def load(self, parameter: nn.Parameter, weight: Tensor, shard: Any = None) -> None:
        raise NotImplementedError


class QKVParallelLinear(_Sharded):
    def __init__(
        self,
        hidden_size: int,
        head_size: int,
        total_num_heads: int,
        total_num_kv_heads: int | None = None,
        bias: bool = True,
        quant_config: Any = None,
        prefix: str = "",
    ) -> None:
        num_kv_heads = total_num_kv_heads or total_num_heads
        num_ranks = CURRENT.ranks.size
        query_rows = total_num_heads // num_ranks * head_size
        key_rows = num_kv_heads // num_ranks * head_size
        super().__init__(query_rows + 2 * key_rows, hidden_size, bias)
        self.rows = {
            "q": slice(0, query_rows),
            "k": slice(query_rows, query_rows + key_rows),
            "v": slice(query_rows + key_rows, None),
        }

    def load(self, parameter: nn.Parameter, weight: Tensor, shard: Any = None) -> None:
        parameter.data[self.rows[shard]] = weight.chunk(self.num_ranks)[self.rank]

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return F.linear(x, self.weight, self.bias), None


class MergedColumnParallelLinear(_Sharded):
    def __init__(
        self, input_size: int, output_sizes: list[int], bias: bool = True, quant_config: Any = None, prefix: str = ""
    ) -> None:
        num_ranks = CURRENT.ranks.size
        super().__init__(sum(output_sizes) // num_ranks, input_size, bias)

    def load(self, parameter: nn.Parameter, weight: Tensor, shard: Any = None) -> None:
        parameter.data.chunk(2)[shard].copy_(weight.chunk(self.num_ranks)[self.rank])

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return F.linear(x, self.weight, self.bias), None


class RowParallelLinear(_Sharded):
    def __init__(
        self, input_size: int, output_size: int, bias: bool = True, quant_config: Any = None, prefix: str = ""
    ) -> None:
        super().__init__(output_size, input_size // CURRENT.ranks.size, bias)

    def load(self, parameter: nn.Parameter, weight: Tensor, shard: Any = None) -> None:
        if weight.ndim == 2:
            weight = weight.chunk(self.num_ranks, dim=1)[self.rank]
        parameter.data.copy_(weight)

    def forward(self, input_: Tensor) -> tuple[Tensor, None]:
        parts = CURRENT.ranks.exchange(CURRENT.rank, F.linear(input_, self.weight))
        output = torch.stack(parts).sum(0)
        if self.bias is not None:
            output = output + self.bias
        return output, None


class VocabParallelEmbedding(nn.Embedding):
    def __init__(self, num_embeddings: int, embedding_dim: int, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__(num_embeddings, embedding_dim)


class ParallelLMHead(VocabParallelEmbedding):
    def tie_weights(self, embed_tokens: VocabParallelEmbedding) -> "ParallelLMHead":
        self.weight = embed_tokens.weight
        return self


class LogitsProcessor(nn.Module):
    def __init__(self, vocab_size: int, soft_cap: float | None = None) -> None:
        super().__init__()
        self.soft_cap = soft_cap

    def forward(self, lm_head: ParallelLMHead, hidden_states: Tensor) -> Tensor:
        logits = F.linear(hidden_states, lm_head.weight)
        if self.soft_cap is not None:
            logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
        return logits


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class SiluAndMul(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
