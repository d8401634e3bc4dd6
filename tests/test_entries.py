"""Entries of the registry claim nothing by default, and name existing parts."""

from pkgutil import resolve_name
from typing import Any

import pytest

from megatape import registry
from megatape.config import families_with
from megatape.entries import ConfigurableEntry, EncodingTraits, Entry, FamilyEntry, OptimizerEntry
from megatape.lab.tasks.registry import TASKS
from tests.helpers.runs.raw_config import parse

TABLES: dict[str, dict[str, Any]] = {
    name: table
    for name, table in vars(registry).items()
    if name.isupper() and not name.startswith("_") and isinstance(table, dict)
}
TABLES["TASKS"] = TASKS


def test_a_family_claims_nothing_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """An architecture that states nothing is not chosen, even for the plainest model."""
    monkeypatch.setitem(registry.FAMILIES, "own", FamilyEntry("own:Own", "claims nothing"))
    assert "own" not in families_with(parse(model__encoding="rope").model)


def test_an_encoding_claims_nothing_by_default() -> None:
    traits = EncodingTraits()
    claimed = [name for name in ("divides_heads", "by_layer", "rotates", "scalable", "shiftable") if getattr(traits, name)]
    assert claimed == []
    assert traits.whole_samples
    assert traits.reads_scores


@pytest.mark.parametrize("table", TABLES)
def test_parts_exist(table: str) -> None:
    """Each target and each section can be imported, except those that need a package of an extra."""
    for name, entry in TABLES[table].items():
        if not isinstance(entry, Entry):
            assert resolve_name(entry), name
            continue
        if not entry.is_built_in:
            continue  # added by another test
        try:
            assert entry.load() is not None, name
        except ModuleNotFoundError as error:
            assert not f"{error.name}.".startswith("megatape."), name
        if isinstance(entry, ConfigurableEntry):
            assert entry.load_options().model_fields, name


def test_an_optimizer_without_matrix_state_is_named() -> None:
    entry = OptimizerEntry("own:Own", "has none", "megatape.config:OptimizerConfig")
    with pytest.raises(ValueError, match="own:Own updates whole matrices, but has no `matrix_state`"):
        entry.matrix_shapes((4, 4))
