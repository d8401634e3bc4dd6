"""Traits that several position encodings share, for their entries in megatape/registry.py."""

from dataclasses import replace

from megatape.entries import EncodingTraits

# Traits of encodings that rotate each token independently.
ROTATION = EncodingTraits(rotates=True, divides_heads=True, whole_samples="", by_layer=True, reads_scores=False)

# Traits of encodings whose state starts as the angles of RoPE, and of those that also update it.
ANGLES = replace(ROTATION, layer_state="angles")
UPDATED_ANGLES = replace(ANGLES, updates_state=True)
WIDE_ANGLES = replace(UPDATED_ANGLES, layer_state="wide angles")

# Traits of encodings that turn each token's channels independently, without pairs.
POLAR = EncodingTraits(divides_heads=True, whole_samples="", by_layer=True, layer_state="polar angles", reads_scores=False)

# Traits of encodings that layers do not apply.
NO_LAYER = EncodingTraits(divides_heads=True, whole_samples="", by_layer=False, reads_scores=False)

# Traits of encodings that bias scores by distance.
BIAS = EncodingTraits(
    divides_heads=True,
    whole_samples="the ring of ranks computes no bias on scores",
    by_layer=True,
    layer_state="",
    reads_scores=False,
)

# Traits of encodings that accumulate sums or products of content along the sequence.
SUM = EncodingTraits(
    divides_heads=True,
    whole_samples="the ranks do not exchange what it sums up along the sequence",
    by_layer=True,
    layer_state="",
    reads_scores=False,
)
SUM_OF_SCORES = replace(SUM, reads_scores=True)
ROTATION_BY_SUM = replace(SUM, rotates=True)
ROTATION_BY_CONVOLUTION = replace(ROTATION, whole_samples="the ranks do not exchange the tokens that its convolution reads")
SELECTIVE = replace(ROTATION_BY_SUM, sliced=True)
