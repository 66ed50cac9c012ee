"""The builtin `type` as model code sees it during a trace."""

import types
from collections.abc import Callable
from typing import Any


class _Builtin(type):
    """The class of what stands for `type`: alike in all that model code asks of it."""

    type_of: Callable[[Any], type]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs:
            return type(*args, **kwargs)
        found = cls.type_of(args[0])
        return cls if found is type else found

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, type)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type)

    def __getitem__(cls, item: Any) -> types.GenericAlias:
        return types.GenericAlias(type, item)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is type

    def __hash__(cls) -> int:
        return hash(type)


def type_that_answers(type_of: Callable[[Any], type]) -> type:
    """A class like `type`, of which `type(x)` is `type_of(x)`."""
    return _Builtin("type", (type,), {"type_of": staticmethod(type_of)})
