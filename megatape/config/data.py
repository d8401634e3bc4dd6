"""The data section: what a run reads, and how that is cut into samples."""

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from megatape.config.section import FixedSamples, Local, Section


class DataConfig(Section):
    """What a run reads, and how that is cut into samples."""

    path: Local[str] = Field(
        min_length=1, description="data directory that `megatape prepare` wrote, the folder with index.json"
    )
    cache: Local[str] = Field(
        "",
        description="folder on each node's local disk: each node copies the shards there once and reads the copies; "
        "empty: read from `path`",
    )
    sequence_length: FixedSamples[PositiveInt] = Field(description="N, tokens per sample")
    samples: FixedSamples[Literal["packed", "documents", "examples"]] = Field(
        "packed",
        description="packed cuts the stream of documents every N tokens; documents makes each a padded sample of its own; "
        "examples does so with prompts and answers (docs/finetuning_data.md), of which only the answers are targets, and with "
        "mask_documents puts as many into a sample as fit",
    )
    prompt_end: FixedSamples[str | None] = Field(
        None,
        min_length=1,
        description="text of a single token, such as `=`: only the tokens after it are targets (default: all tokens are); "
        "needs `documents` samples",
    )
    mask_documents: FixedSamples[bool] = Field(
        False, description="stop attention and positions at document boundaries, and let no target cross one"
    )
    random_offset: FixedSamples[bool] = Field(
        True,
        description="add a random offset from 0 .. 2 max_positions to the positions of a training sample "
        "(`rope` and the `tape` family)",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.samples == "documents" and self.mask_documents:
            raise ValueError(
                "mask_documents true has no effect with samples documents, where each sample holds one document: remove it, or "
                "set samples to packed"
            )
        if self.samples != "documents" and self.prompt_end is not None:
            raise ValueError(
                f"prompt_end {self.prompt_end!r} needs samples documents, where every sample begins with a prompt; samples is "
                f"{self.samples}: change it, or remove prompt_end"
            )
        return self
