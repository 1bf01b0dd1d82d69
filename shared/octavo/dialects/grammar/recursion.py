"""Schemas that no finite JSON can obey, because they require themselves. The library's parser runs away with those."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

_OPTIONAL = ("additionalProperties", "items")
_NAMED = ("properties", "patternProperties")
_LISTED = ("prefixItems", "allOf", "anyOf", "oneOf")

Edge = tuple[str, Any, str]
"""A place, as a JSON pointer; the schema that stands or is referred to there; the place of the schema itself."""


def endless_place(root: Any) -> str | None:
    """Where a schema that is reached from `root` requires itself, as a JSON pointer. None: nowhere."""
    schemas, needs = _walked(root)
    waiting = {key: len(groups) for key, groups in needs.items()}
    needed_by: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for key, groups in needs.items():
        for number, group in enumerate(groups):
            for _, child, _ in group:
                needed_by[id(child)].append((key, number))
    met: set[tuple[int, int]] = set()
    finite = deque(key for key, count in waiting.items() if not count)
    while finite:
        for need in needed_by[finite.popleft()]:
            if need not in met:
                met.add(need)
                waiting[need[0]] -= 1
                if not waiting[need[0]]:
                    finite.append(need[0])
    first = next((key for key in schemas if waiting[key]), None)
    return None if first is None else _place_of_cycle(first, needs, met)


def _place_of_cycle(first: int, needs: dict[int, list[list[Edge]]], met: set[tuple[int, int]]) -> str:
    seen, key, place = set[int](), first, "#"
    while key not in seen:
        seen.add(key)
        number = next(number for number in range(len(needs[key])) if (key, number) not in met)
        place, child, _ = needs[key][number][0]
        key = id(child)
    return place


def _walked(root: Any) -> tuple[list[int], dict[int, list[list[Edge]]]]:
    """All schemas that are reached, by their identity, and what a value needs to obey each: of every group one."""
    order: list[int] = []
    needs: dict[int, list[list[Edge]]] = {}
    waiting: deque[Edge] = deque([("#", root, "#")])
    while waiting:
        _, schema, pointer = waiting.popleft()
        if id(schema) in needs:
            continue
        order.append(id(schema))
        needs[id(schema)] = []
        if isinstance(schema, dict):
            needs[id(schema)] = [group for group in _groups(root, pointer, schema) if group]
            waiting.extend(_below(root, pointer, schema))
    return order, needs


def _below(root: Any, pointer: str, schema: dict[str, Any]) -> Iterator[Edge]:
    yield from _referred(root, pointer, schema)
    for key in _NAMED:
        yield from _members(pointer, schema, key)
    for key in _LISTED:
        yield from _listed(pointer, schema, key)
    yield from (_edge(f"{pointer}/{key}", schema[key]) for key in _OPTIONAL if key in schema)


def _groups(root: Any, pointer: str, schema: dict[str, Any]) -> Iterator[list[Edge]]:
    yield from ([edge] for edge in _referred(root, pointer, schema))
    yield from ([edge] for edge in _listed(pointer, schema, "allOf"))
    yield list(_listed(pointer, schema, "anyOf"))
    yield list(_listed(pointer, schema, "oneOf"))
    kinds = schema.get("type")
    if "const" in schema or "enum" in schema:
        return
    if kinds in ("object", ["object"]):
        yield from ([edge] for edge in _required(pointer, schema))
    if kinds in ("array", ["array"]):
        yield from ([edge] for edge in _least_items(pointer, schema))


def _required(pointer: str, schema: dict[str, Any]) -> Iterator[Edge]:
    properties = {edge[0]: edge for edge in _members(pointer, schema, "properties")}
    other = schema.get("additionalProperties")
    names = schema.get("required")
    for name in names if isinstance(names, list) else ():
        place = f"{pointer}/properties/{_step(name)}"
        if place in properties:
            yield properties[place]
        elif isinstance(other, dict) and "patternProperties" not in schema:
            yield _edge(f"{pointer}/additionalProperties", other)


def _least_items(pointer: str, schema: dict[str, Any]) -> Iterator[Edge]:
    least = schema.get("minItems")
    count = least if isinstance(least, int) else 0
    first = list(_listed(pointer, schema, "prefixItems"))[: max(0, count)]
    yield from first
    if count > len(first) and isinstance(schema.get("items"), dict):
        yield _edge(f"{pointer}/items", schema["items"])


def _members(pointer: str, schema: dict[str, Any], key: str) -> Iterator[Edge]:
    if isinstance(found := schema.get(key), dict):
        yield from (_edge(f"{pointer}/{key}/{_step(name)}", member) for name, member in found.items())


def _listed(pointer: str, schema: dict[str, Any], key: str) -> Iterator[Edge]:
    if isinstance(found := schema.get(key), list):
        yield from (_edge(f"{pointer}/{key}/{number}", member) for number, member in enumerate(found))


def _referred(root: Any, pointer: str, schema: dict[str, Any]) -> Iterator[Edge]:
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#"):
        return
    found = root
    for step in unquote(reference.removeprefix("#")).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, dict):
        yield f"{pointer}/$ref", found, reference


def _edge(place: str, schema: Any) -> Edge:
    return place, schema, place


def _step(name: Any) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")
