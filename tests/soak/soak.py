"""A soak: rounds until the time is over, each compared with an undisturbed run."""

import json
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from megatape.run_folder import RunFolder
from tests.helpers.runs.small_run import prepare_words, small_config
from tests.soak.disk import small_disk
from tests.soak.disturbed_run import DisturbedRun
from tests.soak.journal import Journal
from tests.soak.launch import Failure, ForkedStart
from tests.soak.schedule import Round, rounds
from tests.soak.verdict import compare

STEPS = 64


def _muon(config: dict[str, Any]) -> None:
    config["optimizer"]["kind"] = "muon"


def _ema(config: dict[str, Any]) -> None:
    config["optimizer"]["ema_decay"] = 0.9


def _mixture(config: dict[str, Any]) -> None:
    """Use the same text twice, once with half the weight of the other."""
    path = config["data"].pop("path")
    config["data"]["mixture"] = {"often": {"path": path, "weight": 2}, "rare": {"path": path, "weight": 1}}


def _masks(config: dict[str, Any]) -> None:
    config["data"]["mask_documents"] = True


FEATURES: dict[str, Callable[[dict[str, Any]], None]] = {"muon": _muon, "ema": _ema, "mixture": _mixture, "masks": _masks}


def soak(seconds: float, seed: int, output: Path, first: int = 1) -> None:
    """Disturb runs until the time is over, and finish the last one.

    Args:
        seconds: Time for disturbing runs.
        seed: Seed for drawing rounds.
        output: New folder for the journal, the logs, and an unfinished run's directory.
        first: Number of the first round.

    Raises:
        Failure: A disturbed run differs from the undisturbed one. The journal has every exception, and no process of a run
            is left.
    """
    # A shell lets its background jobs ignore SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    output.mkdir(parents=True, exist_ok=True)
    (output / "words").mkdir()
    data = prepare_words(output / "words")
    journal = Journal(output / "journal.jsonl")
    with small_disk(output / "disk") as disk:
        journal.write(event="soak", seed=seed, seconds=seconds, disk=disk.name)
        for plan in islice(rounds(seed), first - 1, None):
            folder = output / "disk" / f"run-{plan.number}"
            config = output / f"config-{plan.number}.json"
            config.write_text(json.dumps(_config(plan, data, folder)))
            try:
                undisturbed = _undisturbed(plan, data, output)
                facts: dict[str, Any] = {"stage": plan.stage, "background": plan.background, "layout": str(plan.layout)}
                facts["features"] = plan.features
                journal.write(event="round", round=plan.number, resizes=plan.resizes, **facts)
                began = time.monotonic()
                run = DisturbedRun(plan, config, RunFolder(folder), output / f"logs-{plan.number}", disk, journal)
                run.finish(began + seconds)
                full = any("full disk" in fault.kind for fault in plan.faults)
                differences = compare(RunFolder(folder), undisturbed, fixed=not plan.resizes, all_views=not full)
            except BaseException as error:
                text = "".join(traceback.format_exception_only(error)).splitlines()[0]
                journal.write(event="failure", kind=type(error).__name__, text=text)
                # The folder is on the small disk, unmounted at the end.
                if folder.exists():
                    shutil.copytree(folder, output / folder.name, symlinks=True)
                raise
            journal.write(event="equal", round=plan.number, differences=differences)
            shutil.rmtree(folder)
            # Undisturbed runs do not count, because they take long on a busy machine.
            seconds -= time.monotonic() - began
            if seconds <= 0:
                return


def _config(plan: Round, data: Path, folder: Path) -> dict[str, Any]:
    config = small_config(data, folder)
    # The sixth step is left out.
    config["training"] |= {"steps": STEPS, "micro_batch_size": 2, "skip_samples": [[40, 47]]}
    config["zero"] = {"stage": plan.stage}
    config["parallel"] = plan.layout.settings
    for feature in plan.features:
        FEATURES[feature](config)
    config["checkpoint"] = {"interval": 4, "background": plan.background}
    config["evaluation"]["interval"] = 16
    return config


def _undisturbed(plan: Round, data: Path, output: Path) -> RunFolder:
    """Return the undisturbed run for a round, shared by rounds with the same configuration and ranks."""
    folder = RunFolder(output / "-".join(["undisturbed", str(plan.layout), str(plan.stage), *plan.features]))
    if not folder.directory.exists():
        config = folder.directory.with_suffix(".json")
        config.write_text(json.dumps(_config(plan, data, folder.directory)))
        start = ForkedStart(["--config", str(config)], plan.layout.num_ranks, folder.directory.with_suffix(".logs"))
        start.wait_for_end()
        if any(start.statuses()):
            raise Failure(f"the undisturbed run ended with {start.statuses()}\n{start.logs()}")
    return folder
