"""The data section: what is read, and how it is cut into samples."""

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from megatape.config.section import FixedSamples, Free, Section


class DataConfig(Section):
    """What is read, and how it is cut into samples."""

    path: Free[str] = Field(min_length=1, description="folder that `megatape prepare corpus` wrote (it holds index.json)")
    cache: Free[str] = Field(
        "",
        description="folder on each node's own disk: shards are copied there once per node and read from there; empty: read in place",
    )
    sequence_length: FixedSamples[PositiveInt] = Field(description="N, tokens of a sample")
    samples: FixedSamples[Literal["packed", "documents"]] = Field(
        "packed",
        description="packed cuts the stream of documents every N tokens; documents gives each a padded sample of its own",
    )
    prompt_end: FixedSamples[str | None] = Field(
        None,
        min_length=1,
        description="text of one token, such as `=`: only what follows it in a document is a target, by default all of it is; samples `documents` only",
    )
    mask_documents: FixedSamples[bool] = Field(
        False, description="attention and positions stop at document borders, and no target crosses one"
    )
    random_offset: FixedSamples[bool] = Field(
        True,
        description="add a random offset of 0 .. 2 max_positions to a training sample's positions (`rope` and the `tape` family)",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.samples == "documents" and self.mask_documents:
            raise ValueError(
                "mask_documents true has no meaning with samples documents, where no sample holds two: remove it, or set samples to "
                "packed"
            )
        if self.samples == "packed" and self.prompt_end is not None:
            raise ValueError(
                f"prompt_end {self.prompt_end!r} needs samples documents, where every sample begins with a prompt; samples is packed: "
                "change it, or remove prompt_end"
            )
        return self
