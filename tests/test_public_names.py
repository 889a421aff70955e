"""The public list: every name loads, and nothing on it is a module or a private thing."""

import types

import pytest

import attn_tune


@pytest.mark.parametrize("name", attn_tune.__all__)
def test_every_public_name_loads_and_is_documented(name):
    value = getattr(attn_tune, name)
    assert not isinstance(value, types.ModuleType)
    assert (value.__doc__ or "").strip()
    assert name in dir(attn_tune)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="flash_atention"):
        attn_tune.flash_atention  # noqa: B018
