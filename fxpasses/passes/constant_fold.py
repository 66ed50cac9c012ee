"""Compute ahead of time what is the same in every call.

    mul(x, softmax(exp(w)))  ->  mul(x, c)

Floats are computed in float64 and rounded once, so outputs move by rounding only; integers and
what is only moved about come out exactly as before.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Final

from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses.analysis.aliasing import storage_key
from fxpasses.analysis.constant_value import ConstantValue
from fxpasses.analysis.constants import Constants, is_ordinary
from fxpasses.core import (
    Condition,
    Editor,
    Facts,
    GraphPass,
    Numerics,
    Refusal,
    Step,
    attribute,
    is_replaced,
)
from fxpasses.ops import Op, op_of

GROWTH: Final = "constant_fold_growth"
"""In the metadata of a folded constant: the bytes that it added to the model."""

_NOT_FOR_TRAINING: Final = (
    "call model.eval() first, or pass training=False, if the result is not to be trained"
)
_UNDEFINED: Final = frozenset({Op.EMPTY, Op.EMPTY_LIKE, Op.NEW_EMPTY})


def calls_are_all_alike(site: ConstantValue, facts: Facts) -> str | None:
    if any(op_of(step.node) in _UNDEFINED for step in site.recipe.steps):
        return "it reads memory that nothing was written to"
    return None if site.is_constant else facts.effects(site.node).told


def sources_are_never_written(site: ConstantValue, facts: Facts) -> str | None:
    written = any(facts.is_written(tensor) for tensor in site.recipe.sources)
    return "the graph writes a tensor that it is made of" if written else None


def no_source_is_trained(site: ConstantValue, facts: Facts) -> str | None:
    trained = facts.training and any(t.requires_grad for t in site.recipe.sources)
    return "a weight that it is made of is to be trained" if trained else None


def result_is_never_written(site: ConstantValue, facts: Facts) -> str | None:
    writer = facts.written_between(site.node, site.node.graph.output_node(), site.node)
    return f"{writer.name} may write it" if writer else None


def nothing_else_writes_on_the_way(site: ConstantValue, facts: Facts) -> str | None:
    repeated = [step.node for step in site.recipe.steps if step.op != "get_attr"]
    for value in repeated[:-1]:
        writer = facts.written_between(value, site.node, value)
        if writer is not None and writer not in repeated:
            return f"{writer.name} may write {value.name}, which it is made of"
    return None


def result_stays_inside(site: ConstantValue, facts: Facts) -> str | None:
    """Who gets a result may write it, and must not find what was written in the next one."""
    handed_out = facts.may_alias(site.node.graph.output_node(), site.node)
    return "the model returns it" if handed_out else None


def shape_is_known_ahead(site: ConstantValue, _: Facts) -> str | None:
    return "its shape or type hangs on data" if site.fakes is None else None


def result_follows_the_model(site: ConstantValue, _: Facts) -> str | None:
    if site.state and not site.is_cast_with_the_model:
        return f"it would not stay {site.fake.dtype} if the model were cast"
    if site.state and not site.moves_with_the_model:
        return f"it would leave {site.fake.device} if the model were moved"
    return None


def nothing_is_rounded_on_purpose(site: ConstantValue, _: Facts) -> str | None:
    step = site.narrowing
    return f"{step.name} rounds to a narrower dtype" if step else None


def value_does_not_hang_on_rounding(site: ConstantValue, _: Facts) -> str | None:
    return None if site.survives_rounding() else "its value hangs on a rounding"


_JUDGED_LAST: Final = frozenset({value_does_not_hang_on_rounding})
"""These compute the value."""


class ConstantFold(GraphPass):
    """Compute ahead of time what is the same in every call.

    What follows from parameters and buffers becomes a buffer, saved if one of them is; it moves
    and is cast with the model. What follows from numbers alone, such as `arange(4)`, becomes a
    plain attribute, which stays where and what it is, as the call's result did. Values for which
    neither is right are not folded: `ones(4) * w` stays float32 when the model is halved.

    Random draws, what has effects, what the graph writes or returns, and weights that are to be
    trained are left alone.
    """

    name = "constant_fold"
    numerics = Numerics.ROUNDING
    trains = True
    legal_if: ClassVar[tuple[Condition[Any], ...]] = (
        calls_are_all_alike,
        sources_are_never_written,
        no_source_is_trained,
        result_is_never_written,
        nothing_else_writes_on_the_way,
        result_stays_inside,
        shape_is_known_ahead,
        result_follows_the_model,
        nothing_is_rounded_on_purpose,
        value_does_not_hang_on_rounding,
    )
    remedies: ClassVar[Mapping[Condition[Any], str]] = {
        calls_are_all_alike: "nothing: it has to run in every call; what it draws or writes "
        "could be made once, in __init__",
        sources_are_never_written: "write to a tensor of its own instead of to one it is made of",
        no_source_is_trained: _NOT_FOR_TRAINING,
        result_is_never_written: "write to a copy: replace the in-place call by the plain one",
        nothing_else_writes_on_the_way: "replace the in-place call by the plain one",
        result_stays_inside: "nothing: whoever gets the result may write it; or return a clone",
        shape_is_known_ahead: "give it a size that does not hang on data",
        result_follows_the_model: "name no dtype and no device where it is made: use "
        "torch.zeros_like(weight) and the like, or a buffer",
        nothing_is_rounded_on_purpose: "compute it in one dtype, or once, as a buffer",
        value_does_not_hang_on_rounding: "compute it once, in __init__, and keep it as a buffer",
    }

    largest_bytes: int = 1 << 20
    """By how much all folded constants of one graph may make the model grow, in bytes.

    A constant's bytes count, less those of the tensors that nothing else in the graph reads.
    """

    def __post_init__(self) -> None:
        if self.largest_bytes < 0:
            raise ValueError(f"largest_bytes is {self.largest_bytes}: pass 0 or more")

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        search = _Search(self, module, facts)
        for site, growth in search.sites_within(self.largest_bytes):
            if search.refuses(site, computing=True):
                continue
            why = f"{len(site.recipe.steps)} nodes that are the same in every call"
            yield Step(site.node, why, partial(_fold, site, growth))
        yield from search.refusals.values()


class _Search:
    """Finds the sites of one graph: constant calls that something not constant reads."""

    def __init__(self, graph_pass: ConstantFold, module: GraphModule, facts: Facts) -> None:
        self._pass = graph_pass
        self._graph = module.graph
        self._module = module
        self._facts = facts
        self._constants = Constants(module, facts)
        self._saved: dict[int, bool] = {}
        for key, saved in _state(module):
            self._saved[key] = saved or self._saved.get(key, False)
        self._judged: dict[Node, ConstantValue | None] = {}
        self.refusals: dict[Node, Refusal] = {}

    def sites_within(self, bound: int) -> list[tuple[ConstantValue, int]]:
        """The sites to fold, in order, each with the bytes that it adds; in all at most `bound`.

        What adds most is left out first; what it reads may then be a site of its own.
        """
        added = (node.meta.get(GROWTH, 0) for node in self._graph.nodes if node.op == "get_attr")
        room = bound - sum(added)
        while True:
            sites, needed = self._frontier(room)
            growths = self._growths(sites, needed)
            if not sites or sum(growths) <= room:
                return list(zip(sites, growths, strict=True))
            growth, site = max(zip(growths, sites, strict=True), key=lambda pair: pair[0])
            self._leave(site, f"it would add {growth} bytes to the model, of {room} allowed")

    def refuses(self, site: ConstantValue, *, computing: bool) -> bool:
        """Whether a condition does not hold, of those that compute the value or of the others."""
        asked = [c for c in self._pass.legal_if if (c in _JUDGED_LAST) is computing]
        refusal = self._pass.refusal(site.node, site, self._facts, legal_if=asked)
        if refusal is not None:
            self.refusals[site.node] = refusal
        return refusal is not None

    def _leave(self, site: ConstantValue, reason: str) -> None:
        self._judged[site.node] = None
        remedy = "raise largest_bytes, if the model may grow by that much"
        self.refusals[site.node] = Refusal.at(
            site.node, "model_stays_small", reason, legal=True, remedy=remedy
        )

    def _frontier(self, room: int) -> tuple[list[ConstantValue], set[Node]]:
        """The sites in order, and every node whose value is needed once they are folded."""
        needed: set[Node] = set()
        sites: list[ConstantValue] = []
        for node in reversed(self._graph.nodes):
            is_site = node in self._constants.closed and node in needed and not is_replaced(node)
            if node in self._constants and node not in needed:
                continue
            site = self._site(node, room) if is_site else None
            if site is None:
                needed.update(node.all_input_nodes)
            else:
                sites.append(site)
        return sites[::-1], needed

    def _site(self, node: Node, room: int) -> ConstantValue | None:
        if node not in self._judged:
            is_constant = node in self._constants
            site = ConstantValue(self._constants.recipe(node), self._saved, is_constant)
            self._judged[node] = site if self._may_be_folded(site, room) else None
        return self._judged[node]

    def _may_be_folded(self, site: ConstantValue, room: int) -> bool:
        if site.is_constant and site.fakes is not None and not site.is_new_tensor:
            return False
        if self.refuses(site, computing=False):
            return False
        if site.most_bytes > room + sum(site.source_bytes.values()):
            self._leave(site, f"it takes {site.most_bytes} bytes to compute, of {room} allowed")
            return False
        return True

    def _growths(self, sites: Iterable[ConstantValue], needed: set[Node]) -> list[int]:
        """What each site adds, less the sources that nothing reads any more."""
        kept = self._storages_read(needed)
        growths: list[int] = []
        for site in sites:
            freed = {key: size for key, size in site.source_bytes.items() if key not in kept}
            kept |= freed.keys()
            growths.append(site.bytes - sum(freed.values()))
        return growths

    def _storages_read(self, needed: set[Node]) -> set[int]:
        """The memory that stays in use; all of it where unused tensors are not removed."""
        if self._facts.training or not self._facts.owns_state:
            return {storage_key(t) for _, t in _tensors(self._module)}
        kept: set[int] = set()
        for node in self._graph.nodes:
            read = node in needed or node not in self._constants
            if read and node.op in ("get_attr", "call_module"):
                value = attribute(self._module, str(node.target))
                held = [value] if isinstance(value, Tensor) else [t for _, t in _tensors(value)]
                kept.update(map(storage_key, filter(is_ordinary, held)))
        return kept


def _fold(site: ConstantValue, growth: int, edit: Editor) -> None:
    recipe = site.recipe
    fold = edit.fold(
        recipe.made_wide,
        *recipe.sources,
        dtype=site.fake.dtype,
        trained=recipe.trained_sources(),
    )
    value = edit.buffer(fold, persistent=site.is_saved) if site.state else fold.value
    new = edit.constant(value, f"folded_{site.node.name}")
    absorbed = _read_by_nothing_else(site)
    edit.replace(site.node, new, absorbing=absorbed)
    new.meta[GROWTH] = growth + sum(node.meta.get(GROWTH, 0) for node in absorbed)


def _read_by_nothing_else(site: ConstantValue) -> list[Node]:
    """The nodes on the way that are not needed once the site is folded."""
    gone = {site.node}
    for step in reversed(site.recipe.steps[:-1]):
        if all(user in gone or is_replaced(user) for user in step.node.users):
            gone.add(step.node)
    return [step.node for step in site.recipe.steps if step.node in gone - {site.node}]


def _state(module: nn.Module) -> Iterator[tuple[int, bool]]:
    """Parameters and buffers by identity, and whether a `state_dict` holds them."""
    for owner in module.modules():
        unsaved = owner._non_persistent_buffers_set  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch has no public name
        for name, buffer in owner.named_buffers(recurse=False):
            yield id(buffer), name not in unsaved
        for parameter in owner.parameters(recurse=False):
            yield id(parameter), True


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
