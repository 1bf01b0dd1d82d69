"""Structs that two sides share: by the order of their fields in a frame, by their names for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema
    from pydantic_core.core_schema import SerializationInfo


class Record:
    """Mixed into structs that are also fields of pydantic models, which dump them as dictionaries."""

    __slots__ = ()
    __struct_fields__: ClassVar[tuple[str, ...]]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema  # here: an engine's process has structs and no pydantic

        unpacked = core_schema.no_info_plain_validator_function(lambda value: msgspec.convert(value, cls))
        return core_schema.union_schema(
            [core_schema.is_instance_schema(cls), unpacked],
            mode="left_to_right",
            serialization=core_schema.plain_serializer_function_ser_schema(_dumped, info_arg=True),
        )


def _dumped(value: Record, info: SerializationInfo) -> dict[str, Any]:
    return {name: item for name, item in as_dict(value).items() if item is not None or not info.exclude_none}


def as_dict(value: Any) -> Any:
    """A record by the names of its fields, and so the records in it."""
    if isinstance(value, Record):
        return {name: as_dict(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        return tuple(as_dict(item) for item in value)
    return value
