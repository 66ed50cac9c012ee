"""Records are plain data: to JSON and back they stay the same."""

import dataclasses
import json
from typing import Any, get_type_hints

import pytest

from fxpasses.core import Record
from fxpasses.core import record as module
from fxpasses.core.record import CaptureRecord, OpaqueRecord, PassRecord

KINDS = [
    kind
    for kind in vars(module).values()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind)
]


def filled(kind: Any) -> Any:
    """A record with a value in every field."""
    hints = get_type_hints(kind)
    return kind(**{f.name: value_of(hints[f.name], f.name) for f in dataclasses.fields(kind)})


def value_of(hint: Any, name: str) -> Any:
    if name == "version":
        return module.VERSION
    if dataclasses.is_dataclass(hint):
        return filled(hint)
    text = str(hint)
    if text.startswith("list["):
        return [value_of(hint.__args__[0], name)]
    if text.startswith("dict["):
        return {"key": value_of(hint.__args__[1], name)}
    if hint is Any:
        return [1, 2.5, "text", None, True, {"nested": "x"}]
    simple = {"bool": True, "int": 3, "float": 0.1, "str": name}
    return next(value for part, value in simple.items() if part in text)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_of_every_record_survives(kind: type) -> None:
    record = filled(kind)
    data = json.loads(json.dumps(dataclasses.asdict(record)))
    assert module._read(kind, data) == record


def test_a_record_round_trips_through_json() -> None:
    record = filled(Record)
    assert Record.from_dict(json.loads(json.dumps(record.as_dict()))) == record


def test_an_empty_record_round_trips() -> None:
    record = Record("model", "dce")
    assert Record.from_dict(json.loads(json.dumps(record.as_dict()))) == record


def test_a_record_of_another_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="version 99"):
        Record.from_dict({**Record("m", "p").as_dict(), "version": 99})


def test_a_field_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="Record has no field hello"):
        Record.from_dict({**Record("m", "p").as_dict(), "hello": 1})


def test_defaults_are_not_shared() -> None:
    CaptureRecord().opaque.append(OpaqueRecord("a", "b", "c", "d", None))
    assert CaptureRecord().opaque == []
    PassRecord(1, "p", {}, "exact").rewrites.clear()
