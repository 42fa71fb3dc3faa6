"""Values with a type and a tag, and the enums that go with them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Any


class TagType(Enum):
    """How a trace analyzer treats an argument."""

    KEY = 0
    VALUE = 1
    IGNORE = 2

    def __int__(self) -> int:
        return self.value


class TagDType(Enum):
    """The type of an argument."""

    INT = 0
    FLOAT = 1
    STRING = 2

    def __int__(self) -> int:
        return self.value


class TagValue:
    """A value of a type: an int, float or str itself, so that it is recorded as that."""

    _tag_type: TagType
    _plain: Any

    def __new__(
        cls, value: Any, dtype: TagDType = TagDType.STRING, tag_type: TagType = TagType.KEY
    ) -> TagValue:
        """Return the value converted to ``dtype``; a value that cannot be raises ValueError."""
        kind = _KINDS[dtype] if cls is TagValue else cls
        made: TagValue = kind._plain.__new__(kind, value)
        made._tag_type = tag_type
        return made

    def value(self) -> tuple[int, int | float | str]:
        """Return the number of the tag, and the plain value."""
        return int(self._tag_type), plain_value(self)


class _TaggedInt(TagValue, int):
    _plain = int


class _TaggedFloat(TagValue, float):
    _plain = float


class _TaggedText(TagValue, str):
    _plain = str


_KINDS: dict[TagDType, type[TagValue]] = {
    TagDType.INT: _TaggedInt,
    TagDType.FLOAT: _TaggedFloat,
    TagDType.STRING: _TaggedText,
}


def plain_value(value: Any) -> Any:
    """Return the value of an argument: given plainly, as a TagValue, or as a pair of a tag and a value."""
    if isinstance(value, TagValue):
        return value._plain(value)
    if type(value) is tuple and len(value) == 2:
        return value[1]
    return value


def plain_values(*groups: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return all arguments of several groups in one."""
    return {key: plain_value(v) for group in groups if group for key, v in group.items()}


class EntityStore(IntEnum):
    """Where an entity is kept."""

    MEMORY = 0
    GPU_MEMORY = 1
    LOCAL_DISK = 2
    PARALLEL_FS = 3
    BURST_BUFFER = 4
    OBJECT_STORE = 5
    DATABASE = 6
    NETWORK = 7
    OTHER = 8


class EntityRole(IntEnum):
    """What entities of a type are for."""

    UNKNOWN = 0
    INPUT = 1
    OUTPUT = 2
    INTERMEDIATE = 3
    PARAMETER = 4
    REFERENCE = 5


class EntityRelation(IntEnum):
    """How an event relates to an entity (below 16), or an entity to another one."""

    USED = 0
    GENERATED = 1
    INVALIDATED = 2
    UPDATED = 3
    DERIVED_FROM = 16
    REVISION_OF = 17
    CONTAINS = 18
    PART_OF = 19
    SPECIALIZATION_OF = 20
    ALTERNATE_OF = 21
    DEPENDS_ON = 22
