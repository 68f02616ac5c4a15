"""The settings of a store: the kind of its values, how it compares, its embedder, its temperature.

Kept as JSON, and changed only by commits. Settings of other names are left as they are. Does not load embedders or
compute temperatures.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from softkv.embedders import Identity
from softkv.errors import InputError, KindError, NotExpressible, StoreDamaged, TemperatureError
from softkv.kinds import ValueKind
from softkv.maths.compatibility import COMPATIBILITIES

GROWN = 4  # a temperature by rule is found again once there are so many times as many items, or as few
REAL = (int, float, np.integer, np.floating)


@dataclass(frozen=True, slots=True)
class Temperature:
    """A temperature, where it comes from, how many items there were then, and the lowest mass of any of them."""

    value: float
    origin: str  # "rule", "given", "tuned" or "learned"
    items: int
    floor: float | None = None  # the lowest log mass of the items that were left out and asked
    held: float | None = None  # the share of items that took no part in tuning (held_out.py)
    last: int | None = None  # the highest number of an item without a key at that time

    def suits(self, items: int) -> bool:
        """Whether it is still right for so many items; one chosen by a person always is."""
        return self.origin != "rule" or (self.items <= items * GROWN and items < self.items * GROWN)

    def floor_among(self, items: int) -> float | None:
        """The floor for so many items: with fewer items the mass is assumed to be smaller in proportion.

        Items that were added do not raise the floor, since they may lie elsewhere.
        """
        return None if self.floor is None else self.floor + min(0.0, math.log(items / self.items))


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings of a store. None means not decided yet."""

    value: ValueKind | None = None
    compatibility: str | None = None
    embedder: Identity | None = None
    temperature: Temperature | None = None
    projection: str | None = None  # the name of the file of what was learned (learned.py)
    others: Mapping[str, Any] = field(default_factory=dict)  # settings of other names

    @property
    def chosen_temperature(self) -> Temperature | None:
        """The temperature a person or `tune` chose, without its floor, which depends on the items."""
        if self.temperature is None or self.temperature.origin == "rule":
            return None
        return replace(self.temperature, floor=None)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Profile":
        """The profile in the settings of a store."""
        given = {name: settings[name] for name in _KEPT if settings.get(name) is not None}
        others = {name: one for name, one in settings.items() if name not in _KEPT}
        try:
            return cls(**{name: _KEPT[name][0](one) for name, one in given.items()}, others=others)
        except (InputError, TypeError, ValueError) as error:
            raise StoreDamaged(f"the settings of the store cannot be read ({error}). Run `softkv check`.") from error

    def settings(self) -> dict[str, Any]:
        """The profile as JSON."""
        known = {name: getattr(self, name) for name in _KEPT}
        return {**self.others, **{name: _KEPT[name][1](one) for name, one in known.items() if one is not None}}

    def wishing(
        self, *, value: str | None, compatibility: str | None, temperature: float | None, items: int
    ) -> "Profile":
        """The profile with the options of `open`; an error if they contradict what is decided already."""
        kind = None if value is None else checked_kind(value)
        if kind is not None and self.value is not None and kind is not self.value:
            raise KindError(
                f"this store holds values of kind {self.value.value!r}, not {value!r}. "
                "Open it without value=, or make another store."
            )
        wanted = None if compatibility is None else checked_compatibility(compatibility)
        if wanted is not None and self.compatibility not in (None, wanted) and items:
            raise NotExpressible(
                f"this store compares by {self.compatibility!r}, not {wanted!r}. Open it without compatibility=, and "
                f"pass compatibility={wanted!r} to a lookup to compare otherwise once."
            )
        chosen = self.temperature
        if temperature is not None:
            chosen = Temperature(checked_temperature(temperature), "given", items)
        return replace(self, value=kind or self.value, compatibility=wanted or self.compatibility, temperature=chosen)


def checked_kind(given: str) -> ValueKind:
    """A kind of value by its name."""
    try:
        return ValueKind(given)
    except ValueError:
        names = ", ".join(kind.value for kind in ValueKind)
        raise KindError(f"expected a kind of value ({names}), got {given!r}. Check the spelling.") from None


def checked_compatibility(given: object) -> str:
    """The name of a compatibility that a store can remember."""
    if isinstance(given, str) and given in COMPATIBILITIES:
        return given
    raise NotExpressible(
        f"a store compares by one of {', '.join(COMPATIBILITIES)}, got {given!r}. Check the spelling; matrices and "
        "functions are passed to each lookup."
    )


def checked_temperature(given: object) -> float:
    """A temperature that a store can remember."""
    if isinstance(given, REAL) and not isinstance(given, bool) and 0 < given < float("inf"):
        with suppress(OverflowError):  # of a whole number beyond all floats
            return float(given)
    raise TemperatureError(f"expected a temperature above 0, got {given!r}. For the best key alone, ask `nearest`.")


def _name(given: object) -> str:
    if not isinstance(given, str):
        raise InputError(f"the projection is named {given!r}")
    return given


def _temperature(told: Mapping[str, Any]) -> Temperature:
    found = Temperature(**told)
    held = found.held is None or (isinstance(found.held, float) and 0 <= found.held < 1)
    held = held and isinstance(found.last, int | None)
    sound = held and found.origin in ("rule", "given", "tuned") and isinstance(found.items, int)
    if not sound or not is_floor(found.floor, found.items):
        raise ValueError("temperature")
    return replace(found, value=checked_temperature(found.value))


def _told(temperature: Temperature) -> dict[str, Any]:
    return {name: one for name, one in asdict(temperature).items() if one is not None}


def is_floor(given: object, items: object) -> bool:
    """Whether this can be the lowest log mass of so many items, or none."""
    return given is None or (isinstance(given, float) and math.isfinite(given) and isinstance(items, int) and items > 0)


# Each of the settings that are ours, as it is read and as it is written.
_KEPT: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "value": (ValueKind, lambda kind: kind.value),
    "compatibility": (checked_compatibility, str),
    "embedder": (Identity.from_json, Identity.to_json),
    "temperature": (_temperature, _told),
    "projection": (_name, str),
}
