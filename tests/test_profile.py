"""What a store remembers of how it is used."""

from typing import Any

import pytest

from softkv.asking.profile import Profile, Temperature
from softkv.embedders import Identity, find
from softkv.errors import KindError, NotExpressible, StoreDamaged, TemperatureError
from softkv.storage import ValueKind


def test_a_profile_comes_back_from_its_settings() -> None:
    """Everything it holds is JSON, and what others keep there is left alone."""
    embedder = Identity.of(find("static"))
    full = Profile(
        ValueKind.LABEL, "cosine", embedder, Temperature(0.07, "rule", 12), "projection-1", {"other": [1, None]}
    )
    assert Profile.of(full.settings()) == full
    assert Profile.of({}) == Profile()
    assert Profile().settings() == {}


@pytest.mark.parametrize(
    "settings",
    [
        {"value": "colour"}, {"value": 3}, {"compatibility": "taste"}, {"compatibility": 3}, {"embedder": {}},
        {"embedder": "static"}, {"temperature": 0.5}, {"temperature": {"value": 0, "origin": "rule", "items": 1}},
        {"temperature": {"value": 1.0, "origin": "guess", "items": 1}}, {"temperature": {"value": 1.0}},
        {"temperature": {"value": 1.0, "origin": "rule", "items": "many"}}, {"temperature": {"a": 1}},
    ],
)  # fmt: skip
def test_settings_that_no_store_wrote_are_damage(settings: dict[str, Any]) -> None:
    """No default takes their place in silence: another temperature would be another answer."""
    with pytest.raises(StoreDamaged, match="softkv check"):
        Profile.of(settings)


@pytest.mark.parametrize(
    ("temperature", "items", "suits"),
    [
        (Temperature(1.0, "rule", 10), 10, True), (Temperature(1.0, "rule", 10), 39, True),
        (Temperature(1.0, "rule", 10), 40, False), (Temperature(1.0, "rule", 10), 2, False),
        (Temperature(1.0, "rule", 10), 3, True), (Temperature(1.0, "given", 10), 10**6, True),
        (Temperature(1.0, "tuned", 10), 1, True), (Temperature(1.0, "rule", 0), 1, False),
    ],
)  # fmt: skip
def test_a_temperature_by_rule_is_outgrown(temperature: Temperature, items: int, suits: bool) -> None:
    """A store that is four times as large outgrows it, or a quarter; one that a person chose never is outgrown."""
    assert temperature.suits(items) is suits


def test_wishes_fill_what_is_not_decided() -> None:
    """They may not contradict what is, unless nothing was stored by it yet."""
    wished = Profile().wishing(value="label", compatibility="dot", temperature=0.5, items=0)
    assert wished == Profile(ValueKind.LABEL, "dot", None, Temperature(0.5, "given", 0))
    assert wished.wishing(value=None, compatibility=None, temperature=None, items=9) == wished
    assert wished.wishing(value="label", compatibility="cosine", temperature=None, items=0).compatibility == "cosine"
    with pytest.raises(KindError):
        wished.wishing(value="text", compatibility=None, temperature=None, items=0)
    with pytest.raises(NotExpressible):
        wished.wishing(value=None, compatibility="cosine", temperature=None, items=1)
    with pytest.raises(TemperatureError):
        wished.wishing(value=None, compatibility=None, temperature=float("inf"), items=1)
    with pytest.raises(NotExpressible, match="each lookup"):
        Profile().wishing(value=None, compatibility="bilinear", temperature=None, items=0)
