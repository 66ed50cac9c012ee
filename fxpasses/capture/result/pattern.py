"""What a call must look like for a graph to hold for it, and what differs where it does not.

A graph was recorded for one structure of arguments: for other ranks, dtypes or constants the
module's own code may take another way. A `Pattern` compares the arguments and torch's ambient
state in about a microsecond, and is plain data otherwise.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, cast

from torch import Tensor

from fxpasses.capture.result.ambient import Ambient
from fxpasses.capture.result.forms import (
    OMITTED,
    PLAIN,
    SHARED,
    Aliases,
    Anything,
    Args,
    Constant,
    Difference,
    Form,
    Kwargs,
    Omitted,
    aliases_of,
    compiled_check,
    form_of,
    moved,
    tensors_of,
)

_NOTHING: Final[Mapping[int, Mapping[str, Any]]] = MappingProxyType({})


class Pattern:
    """What a call must look like. Immutable; copies of it are itself.

    Args:
        args: The positional arguments of the example.
        kwargs: Its keyword arguments.
        forward: The function that they were passed to, if it may be given the same arguments in
            another form (by name, by position, defaults spelled out).
        grad_matters: Whether the grad mode is part of the pattern.
        gradients: Whether `requires_grad` of every tensor is part of the pattern.
        asked: What the model has asked of the tensors of the call, by their number in the order
            of `tensors_of`, and the answers.
        aliases_matter: Whether the graph holds only where arguments share memory as in the
            example.
        settings: The settings of torch that are part of the pattern (`ambient.SETTINGS`).
    """

    def __init__(  # noqa: PLR0913  all but two are options by keyword
        self,
        args: Args,
        kwargs: Kwargs,
        *,
        forward: Callable[..., Any] | None = None,
        grad_matters: bool = False,
        gradients: bool = False,
        asked: Mapping[int, Mapping[str, Any]] = _NOTHING,
        aliases_matter: bool = True,
        settings: Collection[str] = (),
    ) -> None:
        tensors = tensors_of((args, dict(kwargs)))
        self._questions = frozenset(q for answers in asked.values() for q in answers)
        given: Sequence[Any] = tensors or args
        answers = {id(given[i]): tuple(sorted(found.items())) for i, found in asked.items()}
        form = partial(form_of, gradients=gradients, asked=answers)
        self._args = tuple(form(value) for value in args)
        self._kwargs = {key: form(value) for key, value in kwargs.items()}
        self._aliases = _expected_aliases(tensors, args) if aliases_matter else None
        devices = dict.fromkeys(("cpu", *(tensor.device.type for tensor in tensors), "cuda"))
        self._ambient = Ambient.now(
            tuple(d for d in devices if d != "meta"), grad_matters=grad_matters, settings=settings
        )
        self._signature = None if forward is None else _plain_signature(forward)
        self._named = self._name_arguments(args, kwargs, form)
        self._compile()

    @classmethod
    def by_names(
        cls,
        forward: Callable[..., Any],
        asked: Mapping[int, Mapping[str, Any]] = _NOTHING,
        settings: Collection[str] = (),
    ) -> "Pattern | None":
        """What a call of `forward` must look like where there is no example.

        Every argument that must be given is a tensor, and no other is given. None where
        `forward` takes any number of arguments.
        """
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = list(inspect.signature(forward).parameters.values())
        if inspect.isfunction(forward):
            parameters = parameters[1:]
        required = [p for p in parameters if p.default is p.empty]
        if any(p.kind not in positional for p in required):
            return None
        given = tuple(Anything() for _ in required)
        return cls(given, {}, forward=forward, asked=asked, settings=settings)

    def _name_arguments(
        self, args: Args, kwargs: Kwargs, form: Callable[[Any], Form]
    ) -> dict[str, Form] | None:
        if self._signature is None:
            return None
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            return None
        named: dict[str, Form] = {}
        for name, parameter in self._signature.parameters.items():
            if name in bound.arguments:
                named[name] = form(bound.arguments[name])
            elif isinstance(parameter.default, (float, *PLAIN)):
                named[name] = Constant(parameter.default)
            else:
                named[name] = Omitted()
        return named

    def _compile(self) -> None:
        self.ambient_fits = self._ambient.compiled()
        self.fits = compiled_check(self._args, self._kwargs, self._aliases or ())
        self._order = tuple(self._kwargs) if self._order_matters() else None

    @property
    def questions(self) -> frozenset[str]:
        """What the model has asked of the tensors that the call gives."""
        return self._questions

    @property
    def has_aliases(self) -> bool:
        """Whether the graph holds only for calls that pass some memory twice."""
        return any(pair != (index, index) for index, pair in enumerate(self._aliases or ()))

    @property
    def settings(self) -> frozenset[str]:
        """The settings of torch that are part of the pattern."""
        return frozenset(name for name, _ in self._ambient.settings)

    @property
    def reads_grad_mode(self) -> bool:
        """Whether the grad mode is part of the pattern."""
        return self._ambient.grad is not None

    def _order_matters(self) -> bool:
        """Whether a forward can tell in which order its keyword arguments are given."""
        if self._signature is None:
            return len(self._kwargs) > 1
        kinds = {parameter.kind for parameter in self._signature.parameters.values()}
        return inspect.Parameter.VAR_KEYWORD in kinds and len(self._kwargs) > 1

    def admits(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether the graph holds for a call in exactly the form of the example."""
        if self._order is not None and self._order != tuple(kwargs):
            return False
        return self.ambient_fits() and self.fits(args, kwargs)

    def normalized(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """The same call in a form that the graph takes, or None where the graph does not hold.

        For calls that `admits` refused: they may only spell their arguments otherwise.
        """
        if self._signature is None or self._named is None or not self.ambient_fits():
            return None
        return None if self._named_difference(args, kwargs) else self._spelled(args, kwargs)

    def _spelled(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        bound = cast("inspect.Signature", self._signature).bind(*args, **kwargs)
        return bound.args, bound.kwargs

    def _named_difference(
        self, args: Args, kwargs: Kwargs, skip: Callable[[Any], bool] | None = None
    ) -> Difference:
        signature, named = self._signature, self._named
        if signature is None or named is None:
            return "the arguments have another form"
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        for name, form in named.items():
            parameter = signature.parameters[name]
            left_out = OMITTED if isinstance(form, Omitted) else parameter.default
            value = bound.arguments.get(name, left_out)
            if skip is not None and skip(value):
                continue
            if found := form.difference(value, name):
                return found
        is_shared = skip is None and self._shares_otherwise(dict(bound.arguments))
        return SHARED if is_shared else None

    def _shares_otherwise(self, arguments: Any) -> bool:
        return self._aliases is not None and aliases_of(tensors_of(arguments)) != self._aliases

    def describe_difference(
        self, args: Args, kwargs: Kwargs, skip: Callable[[Any], bool] | None = None
    ) -> str:
        """In words, how a call differs from what the graph holds for; "" where it does not.

        Arguments for which `skip` holds are taken to fit.
        """
        if found := self._ambient.difference():
            return found
        if self._named is not None:
            return self._named_difference(args, kwargs, skip) or ""
        if len(args) != len(self._args):
            return f"{len(args)} positional arguments instead of {len(self._args)}"
        if list(kwargs) != list(self._kwargs):
            return f"keyword arguments {list(kwargs)} instead of {list(self._kwargs)}"
        names = (*(f"argument {index}" for index in range(len(args))), *kwargs)
        forms = (*self._args, *self._kwargs.values())
        for name, form, value in zip(names, forms, (*args, *kwargs.values()), strict=True):
            is_skipped = skip is not None and skip(value)
            if not is_skipped and (found := form.difference(value, name)):
                return found
        return SHARED if skip is None and self._shares_otherwise((args, dict(kwargs))) else ""

    def resembles(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether the arguments fit one by one: what a compiler can trace of `admits`."""
        if len(args) != len(self._args) or len(kwargs) != len(self._kwargs):
            return False
        for form, value in zip(self._args, args, strict=True):
            if form.difference(value, "") is not None:
                return False
        for key, form in self._kwargs.items():
            if key not in kwargs or form.difference(kwargs[key], "") is not None:
                return False
        return self._ambient.difference() is None

    def on_device(self, old: str, new: str) -> "Pattern":
        """The pattern after the weights have moved from one type of device to another."""
        made = object.__new__(Pattern)
        made.__dict__.update(self.__dict__)
        made._args = tuple(moved(form, old, new) for form in self._args)
        made._kwargs = {key: moved(form, old, new) for key, form in self._kwargs.items()}
        named = self._named
        made._named = named and {key: moved(form, old, new) for key, form in named.items()}
        made._compile()
        return made

    def __copy__(self) -> "Pattern":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Pattern":
        return self

    def __getstate__(self) -> dict[str, Any]:
        compiled = ("ambient_fits", "fits")
        return {key: value for key, value in self.__dict__.items() if key not in compiled}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._compile()


def _expected_aliases(tensors: list[Tensor], args: Args) -> Aliases:
    """Without an example, every argument is a tensor of its own."""
    is_by_names = not tensors and len(args) > 1 and isinstance(args[0], Anything)
    return tuple((i, i) for i in range(len(args))) if is_by_names else aliases_of(tensors)


def _plain_signature(forward: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a forward that cannot see how its arguments were passed, else None."""
    if hasattr(forward, "__wrapped__") or not inspect.isfunction(forward):
        return None
    parameters = list(inspect.signature(forward).parameters.values())[1:]
    plain = [p.replace(annotation=OMITTED, default=_plain_default(p.default)) for p in parameters]
    kinds = {p.kind for p in plain}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        return None
    return inspect.Signature(plain)


class _Default:
    """Stands for a default value that is not plain data: only whether it is left out matters."""


def _plain_default(default: Any) -> Any:
    if default is OMITTED or isinstance(default, (float, *PLAIN)):
        return default
    return _Default()
