"""The sieve through which a body goes before it is read: what would change the answer is refused, hints are named, and
what is unknown is taken out. It walks the parsed JSON along the models of the body, each object once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from octavo.dialects.field_table import Dropping, FieldTable, asks_nothing
from octavo.dialects.ignored import Ignored
from octavo.terms.fields import MAX_MEMBERS

Where = tuple[str | int, ...]


@dataclass(frozen=True)
class _Place:
    """Contents of a field: one of these objects, or a list of them."""

    path: str
    is_hint: bool
    objects: tuple[_Object, ...]
    dropped: Callable[[Any], str | None] | None

    def object_of(self, value: dict[str, Any]) -> _Object | None:
        kind = value.get("type")
        return next((found for found in self.objects if found.is_of(kind)), None)


@dataclass(frozen=True)
class _Object:
    """Members of a model, None for those that need no look. `kinds`: values that its `type` may have, empty for any."""

    path: str
    kinds: tuple[Any, ...]
    members: dict[str, _Place | None] = field(repr=False)

    def is_of(self, kind: Any) -> bool:
        return kind is None or not self.kinds or kind in self.kinds


def sift(table: FieldTable, body: Any, ignored: Ignored, *, strict: bool) -> None:
    """Name the hints of a body, and take out of it what its models do not know; `strict` leaves that to them. Raises
    InvalidRequest for a field that would change the answer."""
    if isinstance(body, dict):
        _Sieve(table, ignored, strict).object(body, _shape(table), ())


@dataclass(frozen=True)
class _Sieve:
    table: FieldTable
    ignored: Ignored
    strict: bool

    def object(self, value: dict[str, Any], shape: _Object, where: Where) -> None:
        if len(value) > MAX_MEMBERS:
            return  # refused as a whole when it is read
        members, gone = shape.members, []
        for name, item in value.items():
            if name in members:
                place = members[name]
                if place is not None:
                    self._known(place, item, (*where, name))
            elif self._is_dropped(f"{shape.path}{name}", item, (*where, name)):
                gone.append(name)
        for name in gone:
            del value[name]

    def _known(self, place: _Place, item: Any, where: Where) -> None:
        if place.is_hint and not asks_nothing(item):
            self.ignored.add(place.path)
        if isinstance(item, dict):
            self._inner(place, item, where)
        elif isinstance(item, list) and (place.objects or place.dropped):
            if place.dropped is not None and not self.strict and len(item) <= MAX_MEMBERS:
                item[:] = [one for one in item if not self._is_item_dropped(place, one)]
            for number, one in enumerate(item):
                if isinstance(one, dict):
                    self._inner(place, one, (*where, number))

    def _inner(self, place: _Place, value: dict[str, Any], where: Where) -> None:
        shape = place.object_of(value)
        if shape is not None:
            self.object(value, shape, where)

    def _is_dropped(self, path: str, item: Any, where: Where) -> bool:
        refusal = self.table.refused.get(path)
        if refusal is not None:
            if not refusal.takes(item):
                raise refusal.error(".".join(str(part)[:100] for part in where))
            return True
        if self.strict and path not in self.table.hints:
            return False
        if item is not None and item != [] and item != {}:
            self.ignored.add(path)
        return True

    def _is_item_dropped(self, place: _Place, item: Any) -> bool:
        name = place.dropped(item) if place.dropped is not None else None
        if name is None:
            return False
        self.ignored.add(f"{place.path}.{name}")
        return True


def _shape(table: FieldTable) -> _Object:
    return _object(table.body, "", table.hints)


@cache
def _object(model: type[BaseModel], prefix: str, hints: frozenset[str]) -> _Object:
    members = {}
    for name, known in model.model_fields.items():
        name = known.alias or name
        path = f"{prefix}{name}"
        inner = [*_found(known.annotation), *(each for each in known.metadata if isinstance(each, Dropping))]
        objects = tuple(_object(each, f"{path}.", hints) for each in inner if isinstance(each, type))
        dropped = next((each.name for each in inner if isinstance(each, Dropping)), None)
        place = _Place(path, path in hints, objects, dropped)
        members[name] = place if place.is_hint or objects or dropped else None
    kind = model.model_fields.get("type")
    return _Object(prefix, () if kind is None else tuple(_literals(kind.annotation)), members)


def _literals(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from _literals(part)


def _found(annotation: Any) -> Iterator[type[BaseModel] | Dropping]:
    """Models and lists to drop from, wherever they stand in a type."""
    if isinstance(annotation, Dropping) or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        yield annotation
    else:
        for part in get_args(annotation):
            yield from _found(part)
