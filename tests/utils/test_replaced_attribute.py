"""Temporary replacement of attributes."""

import pytest

from megatape.utils.replaced_attribute import replaced_attribute


class Base:
    @classmethod
    def name(cls) -> str:
        return cls.__name__


class Derived(Base):
    pass


@pytest.mark.parametrize("owner", [Base, Derived])
def test_an_attribute_is_restored(owner: type[Base]) -> None:
    before = dict(vars(owner))
    with pytest.raises(KeyError), replaced_attribute(owner, "name", lambda: "other"):
        assert owner.name() == "other"
        raise KeyError
    assert owner.name() == owner.__name__
    assert dict(vars(owner)) == before


def test_a_missing_attribute_is_an_error() -> None:
    """The library may have renamed it."""
    with pytest.raises(AttributeError), replaced_attribute(Base, "label", ""):
        pass
