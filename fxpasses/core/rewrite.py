"""What a pass is: it finds sites, says why not, or replaces them."""

import inspect
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum, auto
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast, dataclass_transform

from torch.fx import GraphModule, Node

from fxpasses.core.applied import Applied
from fxpasses.core.editor import Editor
from fxpasses.core.facts import Facts
from fxpasses.core.values import is_replaced, source_of
from fxpasses.errors import BudgetError, PassError

SiteT = TypeVar("SiteT")
SiteT_contra = TypeVar("SiteT_contra", contravariant=True)


class Numerics(StrEnum):
    """How far a pass may move the outputs. The verifier takes its tolerance from this."""

    EXACT = auto()
    """Bit-equal."""
    ROUNDING = auto()
    """The same function, with other roundings."""
    PRECISION = auto()
    """Computed in a lower precision, by request."""
    MEANING = auto()
    """Another function, by request: an activation swapped, weights pruned."""


class Condition(Protocol[SiteT_contra]):
    """What must hold at a site: returns the reason why it does not, or None.

    Its name says what holds, and is what reports and tests call the refusal.
    """

    __name__: str

    def __call__(self, site: SiteT_contra, facts: Facts, /) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one site was left as it was."""

    node: str
    condition: str
    """The name of the condition that does not hold."""
    reason: str
    """A clause that names the thing at fault."""
    legal: bool = False
    """Whether the rewrite would have been right, and only not worth it."""
    source: str | None = None
    """`file:line` of the model's code."""
    path: str = ""
    """The module whose graph the node is in; "" is the whole model."""
    remedy: str = ""
    """What whoever owns the model can do about it: a clause in the imperative, or nothing."""

    @classmethod
    def at(
        cls, node: Node, condition: str, reason: str, *, legal: bool = False, remedy: str = ""
    ) -> "Refusal":
        source = source_of(node)
        where = None if source is None else str(source)
        return cls(node.name, condition, reason, legal, where, remedy=remedy)


@dataclass(frozen=True, slots=True)
class Step:
    """One rewrite that a pass proposes: where, why, and how."""

    at: Node
    why: str
    do: Callable[[Editor], None]


@dataclass(frozen=True, slots=True, eq=False)
class PassResult:
    """What one pass did to one graph."""

    graph_module: GraphModule
    rewrites: tuple[Applied, ...]
    refusals: tuple[Refusal, ...]

    @property
    def modified(self) -> bool:
        """Whether the graph was changed. Derived from what was rewritten, never claimed."""
        return bool(self.rewrites)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class GraphPass(ABC):
    """A pass over one graph, as a sequence of steps.

    Its annotated fields are its options: every subclass is a frozen dataclass. The first line of
    its docstring is what it does.
    """

    name: ClassVar[str]
    numerics: ClassVar[Numerics]
    trains: ClassVar[bool] = False
    """Whether its result may be trained: gradients of what it keeps are equal."""
    saves_memory: ClassVar[bool] = False
    """Whether fewer activations are held at a time afterwards, which is then measured."""
    runs_after: ClassVar[tuple[str, ...]] = ()
    """Passes that, where they are in the pipeline too, must come earlier."""
    legal_if: ClassVar[tuple[Condition[Any], ...]] = ()
    """What must hold, or the result is wrong."""
    worthwhile_if: ClassVar[tuple[Condition[Any], ...]] = ()
    """What must hold, or the result is slower or bigger."""
    remedies: ClassVar[Mapping[Condition[Any], str]] = {}
    """What to do where a condition does not hold: `call model.eval() first`. Reports show it."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)

    @abstractmethod
    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        """The rewrites to make, one by one; each is applied before the next is asked for."""

    def refusal(
        self,
        node: Node,
        site: Any,
        facts: Facts,
        *,
        legal_if: Iterable[Condition[Any]] | None = None,
        worthwhile_if: Iterable[Condition[Any]] | None = None,
    ) -> Refusal | None:
        """The first condition that does not hold at a site, or None: it may be rewritten.

        Args:
            node: where the site is reported.
            site: what the conditions are given.
            facts: of the graph.
            legal_if: some of the conditions, where others are asked at another time.
            worthwhile_if: likewise.
        """
        legal_if = self.legal_if if legal_if is None else legal_if
        worthwhile_if = self.worthwhile_if if worthwhile_if is None else worthwhile_if
        for legal, conditions in ((False, legal_if), (True, worthwhile_if)):
            for condition in conditions:
                if reason := condition(site, facts):
                    remedy = self.remedies.get(condition, "")
                    name = condition.__name__
                    return Refusal.at(node, name, reason, legal=legal, remedy=remedy)
        return None

    @classmethod
    def summary(cls) -> str:
        return (inspect.getdoc(cls) or "").partition("\n")[0]

    def options(self) -> Mapping[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # pyright: ignore[reportArgumentType]  every subclass is a dataclass


class Rewrite(GraphPass, Generic[SiteT]):
    """A local rewrite, applied in one sweep wherever it matches and nothing forbids it."""

    @abstractmethod
    def match(self, node: Node, facts: Facts) -> SiteT | None:
        """The site that ends in `node`, or None where the pattern is not there."""

    @abstractmethod
    def rewrite(self, site: SiteT, edit: Editor) -> None:
        """Replace the site. Called only where every condition holds."""

    def why(self, site: SiteT) -> str:  # noqa: ARG002  for subclasses
        """What the rewrite gains at this site, in a few words."""
        return self.summary()

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        for node in list(module.graph.nodes):
            if is_replaced(node):
                continue
            try:
                proposed = self._proposal(node, facts)
            except Exception as error:
                raise _blamed_on(self.name, node, error) from error
            if proposed is not None:
                yield proposed

    def _proposal(self, node: Node, facts: Facts) -> Step | Refusal | None:
        site = self.match(node, facts)
        if site is None:
            return None
        return self.refusal(node, site, facts) or self._step(node, site)

    def _step(self, node: Node, site: SiteT) -> Step:
        return Step(node, self.why(site), lambda edit: self.rewrite(site, edit))


class Gate:
    """Decides which rewrites may happen: some skipped, only some, or no more than a number."""

    def __init__(
        self,
        *,
        skip: frozenset[str] = frozenset(),
        only: frozenset[str] | None = None,
        stop_after: int | None = None,
    ) -> None:
        self.skip = skip
        self.only = only
        self.stop_after = stop_after
        self.admitted = 0
        self.proposed: set[str] = set()

    def admits(self, identifier: str) -> bool:
        self.proposed.add(identifier)
        if identifier in self.skip or (self.only is not None and identifier not in self.only):
            return False
        if self.stop_after is not None and self.admitted >= self.stop_after:
            return False
        self.admitted += 1
        return True


@dataclass(frozen=True, slots=True)
class Label:
    """Where in a run a pass stands; the ids of its rewrites are made of it."""

    position: int = 1
    path: str = ""
    round: int = 1

    def identifier(self, pass_name: str, node: Node) -> str:
        """Stable from run to run: `1:fuse_conv_bn@backbone.body/bn1`, `#2` in a second round."""
        repeated = f"#{self.round}" if self.round > 1 else ""
        return f"{self.position}:{pass_name}@{self.path}/{node.name}{repeated}"


def retold(error: PassError, message: str) -> PassError:
    """An error of the same kind that says more."""
    return BudgetError(message) if isinstance(error, BudgetError) else PassError(message)


def _blamed_on(what: str, node: Node, error: Exception) -> PassError:
    """What a pass raised, as a PassError that names `what`, node and source line."""
    source = source_of(node)
    where = f"{node.name} ({source})" if source else node.name
    if isinstance(error, PassError):
        return retold(error, f"{what} at {where}: {error}")
    return PassError(f"{what} raised {type(error).__name__} at {where}: {error}")


def carry_out(
    graph_pass: GraphPass,
    facts: Facts,
    edit: Editor,
    *,
    label: Label = Label(),
    gate: Gate | None = None,
    most_steps: int | None = None,
) -> list[Refusal]:
    """Run the steps of a pass on the graph of `edit`, and return what it refused.

    What was done stands in `edit.applied`; nothing is final before the editor commits.

    Raises:
        PassError: chained from whatever the pass raised, naming pass, rewrite and source line.
        BudgetError: the pass proposes more than `most_steps` steps.
    """
    gate = gate or Gate()
    refusals: list[Refusal] = []
    seen: Counter[str] = Counter()
    for number, step in enumerate(_steps(graph_pass, facts, edit, label)):
        if most_steps is not None and number >= most_steps:
            raise BudgetError(f"{graph_pass.name} proposes steps without end: {number} so far")
        if isinstance(step, Refusal):
            refusals.append(replace(step, path=label.path))
            continue
        identifier = label.identifier(graph_pass.name, step.at)
        seen[identifier] += 1
        if seen[identifier] > 1:
            identifier = f"{identifier}.{seen[identifier]}"
        if gate.admits(identifier):
            try:
                with edit.rewrite(identifier, step.at, step.why):
                    step.do(edit)
            except Exception as error:
                raise _blamed_on(identifier, step.at, error) from error
    return refusals


def _steps(
    graph_pass: GraphPass, facts: Facts, edit: Editor, label: Label
) -> Iterator[Step | Refusal]:
    where = f"{graph_pass.name} on the graph of {label.path or 'the model'}"
    try:
        yield from _checked(graph_pass.steps(edit.module, facts), edit, where)
    except PassError:
        raise
    except Exception as error:
        raise PassError(f"{where} raised {type(error).__name__}: {error}") from error


def _checked(steps: Any, edit: Editor, where: str) -> Iterator[Step | Refusal]:
    if not isinstance(steps, Iterable):
        raise PassError(
            f"{where}: steps() returned {steps!r}: let it yield each Step and Refusal, or return a "
            "list of them, an empty one for none"
        )
    for step in cast("Iterable[Any]", steps):
        if not isinstance(step, Step | Refusal):
            raise PassError(f"{where} yields {step!r}, which is neither a Step nor a Refusal")
        if isinstance(step, Step) and step.at.graph is not edit.graph:
            raise PassError(f"{where} proposes a step at {step.at}, a node of another graph")
        yield step
