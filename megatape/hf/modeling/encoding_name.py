"""The name of this model's position encoding."""

NAME = "tape"
SCALABLE = True  # whether rope_parameters may change its frequencies
