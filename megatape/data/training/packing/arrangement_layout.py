"""File layout of arrangements shared by the ranks of a node.

spans        each span's first token and number of inputs, sample after sample; zero padding to a whole chunk
samples      number of spans before each sample and in all, int64; zero padding to a whole chunk
checksums    one per chunk in both sections, as in data/shards/layout.py
summary      JSON object, see ArrangementSummary
end          the summary's size in bytes and its XXH3, int64 each
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from megatape.data.counts import Count

FORMAT = 1
SAMPLE = np.dtype("<i8")
END = np.dtype([("summary_bytes", "<u8"), ("summary_hash", "<u8")])


@dataclass(frozen=True)
class ArrangementSummary:
    """Summary at the end of the file.

    Attributes:
        format: Format version.
        identity: Hash of everything that decides the arrangement.
        num_spans: Number of spans.
        num_inputs: Inputs in all spans.
        shard_samples: Samples per part.
        checksums_hash: XXH3 of the checksums, which are seeded with `identity`.
    """

    format: int
    identity: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    num_spans: Count
    num_inputs: Count
    shard_samples: list[Count]
    checksums_hash: str
