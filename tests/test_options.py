"""Bounds of options: declared with the option, checked whenever a value is set."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amgc.features.registry import extractors
from amgc.methods.registry import methods
from amgc.options import Bounds, Checked, merged, option


@dataclass(frozen=True)
class Settings(Checked):
    share: float = option(0.5, "a share", least=0, most=1)
    rate: float | None = option(None, "a rate, or none", above=0)
    sizes: tuple[int, ...] = option((), "sizes", least=1)
    name: str = option("any", "a name without bounds")


@given(st.floats(), st.floats(-2, 2), st.floats(-2, 2))
def test_a_number_is_within_bounds_if_all_comparisons_hold(number: float, low: float, high: float) -> None:
    assert (number in Bounds(least=low, most=high)) == (low <= number <= high)
    assert (number in Bounds(above=low, below=high)) == (low < number < high)
    assert (number in Bounds(least=low)) == (low <= number and math.isfinite(number))
    assert (number in Bounds(above=low)) == (low < number and math.isfinite(number))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"share": 1.5}, "share must be from 0 to 1, not 1.5."),
        ({"share": math.nan}, "share must be from 0 to 1, not nan."),
        ({"rate": 0.0}, "rate must be positive and finite, not 0.0."),
        ({"rate": math.inf}, "rate must be positive and finite, not inf."),
        ({"sizes": (3, 0)}, "sizes must be at least 1, not (3, 0)."),
    ],
)
def test_a_value_out_of_bounds_is_named_wherever_it_is_set(chosen: dict[str, Any], message: str) -> None:
    for make in (lambda: Settings(**chosen), lambda: merged(Settings(), chosen)):
        with pytest.raises(ValueError) as caught:
            make()
        assert str(caught.value) == message


def test_values_within_bounds_and_none_are_accepted() -> None:
    assert Settings(share=0, rate=1e-300, sizes=(1, 2)).rate == 1e-300
    assert Settings(rate=None).rate is None


@pytest.mark.parametrize("entry", [*methods().values(), *extractors().values()], ids=lambda entry: entry.name)
def test_numbers_of_methods_and_extractors_refuse_nan(entry: Any) -> None:
    """Every bound of a registered name is checked, also where its dataclass extends `__post_init__`."""
    bounded = [f.name for f in fields(entry.options) if f.metadata.get("bounds", Bounds()) != Bounds()]
    for name in bounded:
        value = getattr(entry.options, name)
        wrong = (math.nan,) if isinstance(value, tuple) else math.nan
        with pytest.raises(ValueError, match=f"^{name} must be"):
            type(entry.options)(**{name: wrong})
