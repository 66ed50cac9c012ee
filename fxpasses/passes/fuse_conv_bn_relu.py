"""Put one unit in the place of a convolution or linear layer and what follows it.

    relu(batch_norm(conv(x)) + y)  ->  unit(x, y)

Norms are folded as `fuse_conv_bn` folds them, which moves the outputs by rounding; a unit computes
what its parts did, bit by bit, until a target lowers it to one kernel.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

from torch.fx import GraphModule, Node
from torch.nn import Parameter

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
from fxpasses.folding import norms
from fxpasses.folding.norms import NormSite
from fxpasses.ops import Op, op_of, parts_of
from fxpasses.targets import target_named
from fxpasses.views import (
    Activation,
    Binary,
    Conv,
    Linear,
    Weighted,
    may_start_a_unit,
    options_of_unit,
    parameters_in_place,
    reads_only_metadata,
    seen_through,
    unit_of,
)


@dataclass(frozen=True)
class Site:
    """A layer, maybe a sum with a residual, and an activation."""

    layer: Weighted
    activation: Activation
    options: Mapping[str, Any]
    """Of the activation."""
    parts: tuple[Node, ...]
    """From the layer to what the activation reads: what hands values on lies in between."""
    add: Binary | None = None
    residual: Node | None = None
    holds: bool = False
    """Whether the unit can have the parameters, since nothing else uses the layer's module."""

    @property
    def summed(self) -> tuple[Node, ...]:
        """The parts that come before the sum; all of them where there is none."""
        return self.parts if self.add is None else self.parts[: self.parts.index(self.add.node)]

    def others(self, node: Node) -> list[Node]:
        """What reads a part and is none."""
        return [user for user in node.users if user not in {*self.parts, self.activation.node}]

    def comes_after(self, node: Node) -> bool:
        return self.activation.node < node


# -- what must hold


def operands_stay_as_they_are(site: Site, facts: Facts) -> str | None:
    """The unit runs where the activation did, later than the layer."""
    end = site.activation.node
    tensors = ((name, site.layer.tensor(name)) for name in ("weight", "bias"))
    for name, tensor in tensors:
        if tensor is not None and facts.is_written(tensor):
            return f"the {name} is written in the graph"
    read = [(site.layer.node, operand) for operand in site.layer.node.all_input_nodes]
    if site.add is not None and site.residual is not None:
        read.append((site.add.node, site.residual))
    for reader, value in read:
        if writer := facts.written_between(reader, end, value):
            return f"{writer.name} may write {value.name} before {end.name}"
    for part, following in pairwise((*site.parts, end)):
        if writer := facts.written_between(part, following, part):
            return f"{writer.name} may write {part.name} before {following.name}"
    return None


def no_write_is_seen(site: Site, facts: Facts) -> str | None:
    """An in-place call leaves its result where others may look for it."""
    for call in (site.activation, *([] if site.add is None else [site.add])):
        for written in facts.effects(call.node).writes:
            if written not in site.parts:
                return f"{call.node.name} leaves its result in {written.name}"
    handed_on = _hold_the_result(site, facts)
    for part in _written(site, facts):
        for reader in facts.readers(part):
            is_late = part in handed_on and site.comes_after(reader)
            if reader in site.others(part) and not is_late:
                return f"{reader.name} reads {part.name}, which is written"
    return None


def target_has_such_a_kernel(site: Site, facts: Facts) -> str | None:
    target = target_named(facts.target)
    adds, activation = site.add is not None, site.activation.op
    if target.fuses(site.layer.op, activation, site.options, adds=adds):
        return None
    added = " and a residual" if adds else ""
    return f"no kernel for {target.name} joins {activation}{added} to {site.layer.op}"


def residual_is_like_the_output(site: Site, facts: Facts) -> str | None:
    """Kernels do not broadcast, and compute in one dtype. The unit in plain torch does both."""
    if site.residual is None:
        return None
    for what, of in (("shape", facts.example_shape), ("dtype", facts.dtype)):
        own, other = of(site.layer.node), of(site.residual)
        if own is None or other is None:
            return f"the {what} of {site.residual.name} is not known"
        if own != other:
            return f"{site.residual.name} has the {what} {other}, the layer's output {own}"
    return None


def nothing_else_reads_the_parts(site: Site, facts: Facts) -> str | None:
    handed_on = _hold_the_result(site, facts)
    for part in site.parts:
        if part in handed_on:
            continue
        for reader in site.others(part):
            if not _may_ask_the_unit(site, part, reader):
                return f"{reader.name} reads {part.name} too"
    return None


def _written(site: Site, facts: Facts) -> tuple[Node, ...]:
    """The parts that lie in memory that the sum or the activation writes."""
    adds_in_place = site.add is not None and _writes(site.add, facts)
    if _writes(site.activation, facts):
        return site.parts if adds_in_place else _hold_the_result(site, facts)
    return site.summed if adds_in_place else ()


def _hold_the_result(site: Site, facts: Facts) -> tuple[Node, ...]:
    """The parts that are the same tensor as what the activation returns, since it writes them."""
    if not _writes(site.activation, facts):
        return ()
    if site.add is None or _writes(site.add, facts):
        return site.parts
    return site.parts[len(site.summed) :]


def _writes(call: Binary | Activation, facts: Facts) -> bool:
    return bool(facts.effects(call.node).writes)


def _may_ask_the_unit(site: Site, part: Node, reader: Node) -> bool:
    """Whether a reader asks for the size, or the like, of what is as large as the result."""
    is_as_large = site.add is None or part not in site.summed
    return is_as_large and site.comes_after(reader) and reads_only_metadata(reader, part)


LEGAL_IF: tuple[Condition[Site], ...] = (operands_stay_as_they_are, no_write_is_seen)
WORTHWHILE_IF: tuple[Condition[Site], ...] = (
    target_has_such_a_kernel,
    residual_is_like_the_output,
    nothing_else_reads_the_parts,
)


class FuseConvBnRelu(GraphPass):
    """Put units in the place of layers with the norms, sums and activations that follow them.

    A unit is one module, and computes a convolution or linear layer, the sum with a residual, if
    there is one, and an activation: those that the target, or any target, has one kernel for. It
    takes the place of the layer, whose parameters keep their names unless a norm was folded into
    them. Norms that `fuse_conv_bn` would leave alone stay.
    """

    name = "fuse_conv_bn_relu"
    numerics = Numerics.ROUNDING
    trains = True
    legal_if: ClassVar[tuple[Condition[Any], ...]] = (*norms.LEGAL_IF, *LEGAL_IF)
    worthwhile_if: ClassVar[tuple[Condition[Any], ...]] = (*norms.WORTHWHILE_IF, *WORTHWHILE_IF)
    remedies: ClassVar[Mapping[Condition[Any], str]] = {
        **norms.REMEDIES,
        operands_stay_as_they_are: "take the in-place call between the layer and the activation "
        "away",
        no_write_is_seen: "replace the in-place call by the plain one",
        target_has_such_a_kernel: "nothing: the two run one after the other; relu is what every "
        "target has a kernel for",
        residual_is_like_the_output: "pass example_inputs, so that the shapes are known; what is "
        "broadcast stays a sum of its own",
        nothing_else_reads_the_parts: "nothing: others need the value as it was before the "
        "activation",
    }

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        for node in _left(module):
            if (norm := norms.norm_site_at(node)) is not None:
                refused = self._refusal(node, norm, facts, norms.LEGAL_IF, norms.WORTHWHILE_IF)
                yield refused or Step(node, norms.why_fold(norm), partial(norms.fold_norm, norm))
        uses = _uses(module)
        for node in _left(module):
            if (site := _site_at(node, uses, facts)) is not None:
                refused = self._refusal(node, site, facts, LEGAL_IF, WORTHWHILE_IF)
                yield refused or Step(node, _why(site), partial(_fuse, site, facts))

    def _refusal(
        self,
        node: Node,
        site: NormSite | Site,
        facts: Facts,
        legal_if: Iterable[Condition[Any]],
        worthwhile_if: Iterable[Condition[Any]],
    ) -> Refusal | None:
        """By those of the conditions that are about sites of this kind."""
        legal = [one for one in self.legal_if if one in legal_if]
        worthwhile = [one for one in self.worthwhile_if if one in worthwhile_if]
        return self.refusal(node, site, facts, legal_if=legal, worthwhile_if=worthwhile)


def _left(module: GraphModule) -> Iterator[Node]:
    """The nodes that there are now, but for those that are replaced on the way."""
    return (node for node in list(module.graph.nodes) if not is_replaced(node))


def _uses(module: GraphModule) -> Counter[int]:
    """How many nodes call each module, or read a tensor out of it."""
    uses = Counter[int]()
    for node in _left(module):
        if node.op == "call_module":
            uses.update(map(id, parts_of(attribute(module, str(node.target)))))
        elif node.op == "get_attr":
            path = str(node.target).rpartition(".")[0]
            uses[id(attribute(module, path) if path else module)] += 1
    return uses


# -- finding


def _site_at(node: Node, uses: Mapping[int, int], facts: Facts) -> Site | None:
    activation = Activation.at(node)
    options = None if activation is None else options_of_unit(activation)
    if activation is None or options is None:
        return None
    found, passing = seen_through(activation.input, Conv, Linear, Binary)
    if found is None or not _hand_on_the_very_tensor(passing):
        return None
    if not isinstance(found, Binary):
        parts = (found.node, *passing)
        holds = _can_hold(found, uses, facts)
        is_site = may_start_a_unit(found, facts)
        return Site(found, activation, options, parts, holds=holds) if is_site else None
    sums = [
        Site(layer, activation, options, parts, found, residual, _can_hold(layer, uses, facts))
        for layer, parts, residual in _summed(found, passing)
        if may_start_a_unit(layer, facts)
    ]
    conditions = (no_write_is_seen, nothing_else_reads_the_parts)
    fitting = (one for one in sums if not any(c(one, facts) for c in conditions))
    return next(fitting, sums[0] if sums else None)


def _summed(add: Binary, passing: tuple[Node, ...]) -> Iterator[tuple[Weighted, Any, Node]]:
    """Each operand of the sum that is a layer, with the parts from there, and the other operand."""
    if add.op is not Op.ADD or add.alpha != 1:
        return
    for own, other in ((add.left, add.right), (add.right, add.left)):
        layer, before = seen_through(own, Conv, Linear)
        if layer is None or not _hand_on_the_very_tensor(before):
            continue
        parts = (layer.node, *before, add.node, *passing)
        if isinstance(other, Node) and other not in parts:
            yield layer, parts, other


def _hand_on_the_very_tensor(passing: Iterable[Node]) -> bool:
    return all(op_of(node) is not Op.CONTIGUOUS for node in passing)


def _can_hold(layer: Weighted, uses: Mapping[int, int], facts: Facts) -> bool:
    if layer.module is None or not facts.owns_state or layer.arguments.get("weight") is not None:
        return False
    parent, _, name = str(layer.node.target).rpartition(".")
    owner = attribute(facts.module, parent) if parent else facts.module
    if name not in dict(owner.named_children()):  # only its place tells the parameters' names
        return False
    weight, bias = layer.tensor("weight"), layer.tensor("bias")
    are_parameters = isinstance(weight, Parameter) and isinstance(bias, Parameter | None)
    return are_parameters and uses[id(layer.module)] == 1


# -- putting the unit there


def _why(site: Site) -> str:
    parts = [site.layer.op, *(["add"] if site.add is not None else []), site.activation.op]
    return f"{', '.join(parts)} are one unit"


def _fuse(site: Site, facts: Facts, edit: Editor) -> None:
    activation, layer = site.activation.node, site.layer
    # They are asked before anything moves.
    handed_on = _hold_the_result(site, facts)
    moving = {
        part: [
            reader
            for reader in site.others(part)
            if part in handed_on or _may_ask_the_unit(site, part, reader)
        ]
        for part in site.parts
    }
    unit = unit_of(
        *(layer, site.activation, site.options), adds=site.add is not None, holds=site.holds
    )
    unit.train(edit.module.training)
    operands = [layer.input, *([] if site.residual is None else [site.residual])]
    given = {} if site.holds else parameters_in_place(layer, edit)
    path = str(layer.node.target) if layer.module is not None else layer.op
    near = f"{path.replace('.', '_')}_{site.activation.op}"
    call = edit.call_module(unit, near, *operands, **given)
    edit.replace(activation, call, absorbing=site.parts)
    for part, readers in moving.items():
        for reader in readers:
            edit.rewire(reader, part, call)
    if site.holds:
        edit.settle(call, path)
