"""Number of parameters of the paper's shape."""

from megatape.accounting.whole_model.parameters import count_parameters
from tests.helpers.models.paper import paper


def test_parameters_of_the_paper() -> None:
    """The paper's table has 154.89 and 155.33 x 2^20.

    Its gain is a 12 x 12 matrix, ours a number per head: 12 x (144 - 12) parameters fewer.
    """
    rope = count_parameters(paper("rope"))
    tape = count_parameters(paper("tape"))
    assert f"{rope.total / 2**20:.2f}" == "154.89"
    assert f"{(tape.total + 12 * (144 - 12)) / 2**20:.2f}" == "155.33"
    assert tape.total - rope.total == tape.position == 12 * (12 + 48 * 768 + 2 * 48 * 12)
    assert rope.position == 0
    assert rope.embedding == tape.embedding == 2 * 32000 * 768


def test_parameters_of_the_other_encodings() -> None:
    """The paper's table has 154.90 x 2^20 for FIRE and T5."""
    rope = count_parameters(paper("rope")).total
    for encoding, added in {
        "t5": 12 * 12 * 32,
        "fire": 12 * (32 + 32 + 12 * 32 + 12 + 2),
        "alibi": 0,
        "nope": 0,
        "xpos": 0,
        "randpe": 0,
        "sinusoidal": 0,
        "tape_attention_only": 12 * 12,
        "tape_mlp_only": 12 * (48 * 768 + 2 * 48 * 12),
        "tape_no_rotation_equivariance": 12 * (24 + 48 * 768 + 4 * 48 * 12),
        "tape_vector": 12 * (64 + 48 * 768 + 2 * 48 * 64),
        "tape_vector_no_rotation_equivariance": 12 * (128 + 48 * 768 + 4 * 48 * 64),
        "tape_no_equivariance": 12 * (12 + 48 * 768 + 2 * 48 * 768),
    }.items():
        count = count_parameters(paper(encoding))
        assert count.total - rope == count.position == added, encoding
    for encoding in ("t5", "fire"):
        assert f"{count_parameters(paper(encoding)).total / 2**20:.2f}" == "154.90"
