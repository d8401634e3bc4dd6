"""A run's starting points."""

from pathlib import Path

from megatape.training.start import Start


def test_a_checkpoint_has_a_folder_only_if_the_user_named_one() -> None:
    starts = {"new": Start(), "newest": Start("auto"), "named": Start("runs/a/checkpoints/step-00000004")}
    assert {name: start.resumes for name, start in starts.items()} == {"new": False, "newest": True, "named": True}
    folders = {name: start.checkpoint for name, start in starts.items()}
    assert folders == {"new": None, "newest": None, "named": Path("runs/a/checkpoints/step-00000004")}


def test_ranks_agree_on_json_values() -> None:
    values = Start("auto", True, Path("base"), 3).shared_values()
    assert values == {"resume": "auto", "allow_changes": True, "base": "base", "profile": 3}
    assert Start().shared_values()["base"] is None
