"""If an outside encoding's registry entry makes a wrong claim, the run refuses it before the first step."""

from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.config import parse_config
from megatape.distributed.topology import SINGLE_PROCESS
from megatape.training.startup.engine.split_sequence_check import check_split_sequences
from tests.helpers.processes.workers import run_workers

CONTEXT = {"parallel.cp": 2, "training.micro_batch_size": 2}
SEQUENCE = {"parallel.sp": 2, "training.micro_batch_size": 2}
CASES: dict[str, tuple[dict[str, int], str]] = {
    "accumulated": (CONTEXT, ""),
    "sloped": (SEQUENCE, ""),
    "begins_anew": (CONTEXT, "its outputs are off by"),
    "no_backward": (CONTEXT, "its gradients differ"),
    "first_heads": (SEQUENCE, "its outputs are off by"),
    "all_heads": (SEQUENCE, "the encoding fails (RuntimeError"),
}


def test_wrong_claims(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Two correct encodings train. For a wrong one, the error names the encoding, the claim and the setting."""
    raw_config["run"]["directory"] = str(tmp_path)
    raw_config["training"]["steps"] = 1
    cases = [
        {"name": encoding, "set": {"model.encoding": encoding, "data.mask_documents": False} | settings}
        for encoding, (settings, _) in CASES.items()
    ]
    payload = {"config": raw_config, "cases": cases}
    for results in run_workers("tests.helpers.models.accumulated:train", 2, payload, tmp_path / "workers"):
        for (encoding, (settings, failure)), result in zip(CASES.items(), results, strict=True):
            error = result.get("error", "")
            if not failure:
                assert not error
                continue
            setting = next(iter(settings))
            claim = {"parallel.cp": 'whole_samples=""', "parallel.sp": "divides_heads=True"}[setting]
            assert error.startswith(f"UserError: encoding {encoding} does not support {setting} 2, though"), error
            assert claim in error
            assert failure in error
            assert f"Set {setting} to 1 and remove the claim" in error
    assert not any((tmp_path / encoding / "metrics.jsonl").exists() for encoding, (_, failure) in CASES.items() if failure)


@pytest.mark.parametrize("encoding", ["fox", "tape"])
def test_our_own_are_not_checked(encoding: str, raw_config: dict[str, Any]) -> None:
    """Tests hold their claims, so a run spends no time on them: it does not even look at the mesh."""
    raw_config["model"]["encoding"] = encoding
    raw_config["parallel"] = {"sp": 2}
    config = parse_config(raw_config, "test")
    check_split_sequences(config.model, config.data, {}, SINGLE_PROCESS, torch.device("cpu"))
