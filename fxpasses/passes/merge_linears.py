"""Multiply once where one tensor is multiplied with several weights, or products are added.

    x @ a.T, x @ b.T + c  ->  split(x @ cat([a, b]).T + cat([0, c]))
    x @ a.T + y @ b.T     ->  cat([x, y]) @ cat([a, b], 1).T

Linear layers, products with constant matrices, and, of one tensor, convolutions of one geometry.
Each result of a split is a slice of the wide one; who could tell gets a copy of its own.
"""

import math
import operator
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar, Final

import torch
from torch.fx import GraphModule, Node

from fxpasses.analysis.constants import is_ordinary
from fxpasses.analysis.layouts import looks_at_slice
from fxpasses.core import Condition, Editor, Facts, GraphPass, Numerics, Refusal, Step, is_replaced
from fxpasses.ops import Op
from fxpasses.views import Activation, Binary, Cat, ConstantProduct, Conv, Reshape, rows_of
from fxpasses.views.constant_products import joined_bias, joined_weight, summed_bias

# What things cost, in nanoseconds on a processor with AVX-512, measured with torch 2.14: a call of
# `addmm`, of a convolution by oneDNN (before any arithmetic), of `relu` and the like; and how many
# bytes go by in one, of a call that writes 4.8 MB of fresh memory in 0.44 ms.
NS_PER_LINEAR: Final = 2_500
NS_PER_CONV: Final = 35_000
NS_PER_CALL: Final = 1_300
BYTES_PER_NS: Final = 11


class Kept(Enum):
    """What the readers of one result are given."""

    SLICE = auto()
    """A part of the wide result."""
    OUT_OF_PLACE = auto()
    """A part, which the activation that alone reads it does not write any more."""
    COPY = auto()
    """Memory of its own."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What becomes of the result of one product."""

    product: ConstantProduct
    kept: Kept
    views: tuple[Node, ...] = ()
    """Calls of `view` that a slice might not stand."""


@dataclass(frozen=True, slots=True)
class Site:
    """Products that may become one, in order: of one value, or two that are summed up."""

    products: tuple[ConstantProduct, ...]
    total: Node | None = None
    """The sum of the two."""

    @property
    def parameter_bytes(self) -> int:
        tensors = (tensor for product in self.products for tensor in product.tensors.values())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def is_trained(self, facts: Facts) -> bool:
        tensors = (tensor for product in self.products for tensor in product.tensors.values())
        return facts.training and any(tensor.requires_grad for tensor in tensors)


def parameters_are_plain_tensors(site: Site, _: Facts) -> str | None:
    for product in site.products:
        for name, tensor in product.tensors.items():
            if not is_ordinary(tensor):
                return f"the {name} of {product.node.name} is a tensor of a special kind"
    return None


def nothing_writes_the_parameters(site: Site, facts: Facts) -> str | None:
    for product in site.products:
        for name, tensor in product.tensors.items():
            if facts.is_written(tensor):
                return f"the {name} of {product.node.name} is written in the graph"
    return None


def nothing_writes_between(site: Site, facts: Facts) -> str | None:
    """All read a value as it is for the first; products of a sum read theirs last of all."""
    first, last = site.products[0], site.products[-1].node
    if site.total is None:
        spans = [(first, last)]
    else:
        spans = [(product, site.total) for product in site.products]
    for product, end in spans:
        writer = facts.written_between(product.node, end, product.value)
        if writer is not None:
            return f"{writer.name} may write {product.value} before {end.name}"
    return None


def they_have_the_same_rows(site: Site, _: Facts) -> str | None:
    """A sum broadcasts, a join does not."""
    if site.total is None:
        return None
    one, other = (rows_of(product.value) for product in site.products)
    return None if one is other else "the two inputs could be broadcast against each other"


def only_the_sum_reads_them(site: Site, facts: Facts) -> str | None:
    for product in site.products if site.total is not None else ():
        if list(facts.readers(product.node)) != [site.total]:
            return f"more than the sum reads {product.node.name}"
    return None


def each_weight_keeps_its_gradient(site: Site, facts: Facts) -> str | None:
    """A loss may leave out one result of a split, whose weight then has no gradient; not a term.

    Joined, that gradient would be zeros, by which weight decay and momentum change the weight.
    """
    if site.total is not None or len(site.products) == 1 or not site.is_trained(facts):
        return None
    return "weights are to be trained, and a loss may leave out one of the results"


def it_saves_time(site: Site, facts: Facts) -> str | None:
    """What is called less often must outweigh what is copied."""
    spent, how = _spent_on_split(site, facts) if site.total is None else _spent_on_sum(site, facts)
    if spent is None:
        return "how large the results are is not known"
    is_conv = isinstance(site.products[0].view, Conv)
    saved = (len(site.products) - 1) * (NS_PER_CONV if is_conv else NS_PER_LINEAR)
    return None if spent < saved else f"{how}: about {spent:.0f} ns for {saved}"


class MergeLinears(GraphPass):
    """Multiply once where one tensor is multiplied with several weights, or products are added.

    Linear layers, products with constant matrices, and convolutions that differ in nothing but
    their channels; any number, of different widths, some with a bias. Weights are joined ahead of
    time. Those of a sum that are to be trained are joined in each step, so that gradients reach
    them, if that costs less than it saves.
    """

    name = "merge_linears"
    numerics = Numerics.ROUNDING
    trains = True
    legal_if = (
        parameters_are_plain_tensors,
        nothing_writes_the_parameters,
        nothing_writes_between,
        they_have_the_same_rows,
        each_weight_keeps_its_gradient,
    )
    worthwhile_if = (only_the_sum_reads_them, it_saves_time)
    remedies: ClassVar[Mapping[Condition[Any], str]] = {
        parameters_are_plain_tensors: "make plain float tensors of them: dequantise, densify, or "
        "take off the tensor subclass",
        nothing_writes_the_parameters: "do not write weights in forward",
        nothing_writes_between: "replace the in-place call by the plain one",
        they_have_the_same_rows: "join the inputs in forward, if they always have the same rows",
        each_weight_keeps_its_gradient: "call model.eval() first, or pass training=False, if the "
        "result is not to be trained",
        only_the_sum_reads_them: "nothing: others need the product",
        it_saves_time: "pass example_inputs, so that sizes are known; else nothing: it would be "
        "slower",
    }

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        for total in list(module.graph.nodes):
            site = None if is_replaced(total) else _summed(total)
            if site is not None:
                yield self.refusal(total, site, facts) or _summing(total, site, facts)
        for products in _alike(module):
            for found in self._groups(products, facts):
                if isinstance(found, Refusal):
                    yield found
                elif len(found.products) > 1:
                    first = found.products[0].node
                    yield self.refusal(first, found, facts, legal_if=()) or _merging(found, facts)

    def _groups(
        self, products: Sequence[ConstantProduct], facts: Facts
    ) -> Iterator[Site | Refusal]:
        """Groups that may become one, and why some may not."""
        group: tuple[ConstantProduct, ...] = ()
        for product in products:
            if refusal := self._illegal(Site((product,)), facts):
                yield refusal
                continue
            refusal = self._illegal(Site((*group, product)), facts)
            if refusal is None:
                group = (*group, product)
                continue
            yield refusal
            yield Site(group)
            group = (product,)
        if group:
            yield Site(group)

    def _illegal(self, site: Site, facts: Facts) -> Refusal | None:
        return self.refusal(site.products[-1].node, site, facts, worthwhile_if=())


# -- the sites


def _summed(total: Node) -> Site | None:
    """A sum of two products of different values."""
    call = Binary.at(total)
    if call is None or call.op is not Op.ADD or call.alpha != 1:
        return None
    one, other = ConstantProduct.at(call.left), ConstantProduct.at(call.right)
    if one is None or other is None or isinstance(one.view, Conv) or one.value is other.value:
        return None
    alike = (one.width, one.kind[1:]) == (other.width, other.kind[1:])
    return Site((one, other), total) if alike else None


def _alike(module: GraphModule) -> Iterator[list[ConstantProduct]]:
    """Products of one value that are of one kind, where there are several."""
    for value in list(module.graph.nodes):
        if len(value.users) < 2 or is_replaced(value):
            continue
        kinds: dict[Hashable, list[ConstantProduct]] = {}
        for user in sorted(user for user in value.users if not is_replaced(user)):
            product = ConstantProduct.at(user)
            if product is not None and product.value is value:
                kinds.setdefault(product.kind, []).append(product)
        yield from (products for products in kinds.values() if len(products) > 1)


# -- what it costs


def _spent_on_split(site: Site, facts: Facts) -> tuple[float | None, str]:
    """On a split, and on copies of results."""
    copied = [one.product for one in _pieces(site, facts) if one.kept is Kept.COPY]
    how = f"{len(copied)} results would have to be copied"
    return _time(1 + len(copied), _bytes_of_results(copied, facts)), how


def _spent_on_sum(site: Site, facts: Facts) -> tuple[float | None, str]:
    """On joining the inputs, beyond what is spent on reading two results and writing a third."""
    shape = facts.example_shape(site.products[0].node)
    if shape is None:
        return None, ""
    first, inner = site.products[0], sum(product.inner for product in site.products)
    moved = math.prod(shape[:-1]) * (2 * inner - 3 * first.width) * first.weight.element_size()
    if not site.is_trained(facts):
        return _time(0, moved), "joining the inputs would cost more than the sum"
    calls = 1 + sum(product.is_flipped for product in site.products)
    how = "its weights, which are trained, would be joined anew in each step"
    return _time(calls, moved + 2 * site.parameter_bytes), how


def _time(calls: int, moved: int | None) -> float | None:
    return None if moved is None else calls * NS_PER_CALL + moved / BYTES_PER_NS


def _bytes_of_results(products: Sequence[ConstantProduct], facts: Facts) -> int | None:
    """None where that is not known."""
    shapes = [facts.example_shape(product.node) for product in products]
    if any(shape is None for shape in shapes):
        return None
    sizes = (math.prod(shape) for shape in shapes if shape is not None)
    return sum(s * p.weight.element_size() for s, p in zip(sizes, products, strict=True))


def _pieces(site: Site, facts: Facts) -> list[Piece]:
    return [_piece(product, facts) for product in site.products]


def _piece(product: ConstantProduct, facts: Facts) -> Piece:
    looks = looks_at_slice(product.node, facts)
    if looks.telling is None:
        return Piece(product, Kept.SLICE, looks.views)
    activation = Activation.at(looks.telling)
    if activation is None or not activation.is_in_place:
        return Piece(product, Kept.COPY)
    alone = list(facts.readers(product.node)) == [activation.node]
    return Piece(product, Kept.OUT_OF_PLACE if alone else Kept.COPY)


# -- the rewrite


def _summing(total: Node, site: Site, facts: Facts) -> Step:
    in_graph = site.is_trained(facts)
    why = "a sum of products is one product of joins"
    return Step(total, why, lambda edit: _sum(edit, total, site.products, in_graph=in_graph))


def _sum(edit: Editor, total: Node, products: Sequence[ConstantProduct], *, in_graph: bool) -> None:
    weight = joined_weight(edit, products, in_graph=in_graph, axis=1)
    bias = summed_bias(edit, products, in_graph=in_graph)
    joins = [_join_of(product.value) for product in products]
    parts = [[p.value] if j is None else j.tensors for p, j in zip(products, joins, strict=True)]
    value = edit.call_function(torch.cat, [one for several in parts for one in several], -1)
    made = products[0].with_tensors(edit, weight, bias, value)
    joined = [join.node for join in joins if join is not None]
    edit.replace(total, made, absorbing=[*(product.node for product in products), *joined])


def _join_of(value: Node) -> Cat | None:
    """What joins a value from others for its one reader alone."""
    join = Cat.at(value) if len(value.users) == 1 else None
    is_join = join is not None and join.op is Op.CAT and join.dim == -1
    return join if join is not None and is_join and isinstance(join.tensors, list) else None


def _merging(site: Site, facts: Facts) -> Step:
    first = site.products[0]
    why = f"{len(site.products)} products of {first.value} become one"
    pieces = _pieces(site, facts)
    return Step(first.node, why, lambda edit: _merge(edit, pieces))


def _merge(edit: Editor, pieces: Sequence[Piece]) -> None:
    products = [piece.product for piece in pieces]
    weight = joined_weight(edit, products)
    bias = joined_bias(edit, products)
    first = products[0]
    wide = first.with_tensors(edit, weight, bias, first.value)
    parts = edit.call_method("split", wide, [product.width for product in products], first.axis)
    for number, piece in enumerate(pieces):
        part = edit.call_function(operator.getitem, parts, number)
        _hand_out(edit, piece, part)


def _hand_out(edit: Editor, piece: Piece, part: Node) -> None:
    node = piece.product.node
    if piece.kept is Kept.COPY:
        with edit.before(node):
            # The result of a convolution need not be laid out in the order of its axes.
            is_conv = isinstance(piece.product.view, Conv)
            layout = torch.preserve_format if is_conv else torch.contiguous_format
            part = edit.call_method("clone", part, memory_format=layout)
    edit.replace(node, part)
    if piece.kept is Kept.OUT_OF_PLACE:
        _write_elsewhere(edit, part)
    for view in map(Reshape.at, piece.views):
        assert view is not None, "a rewire changes no op"
        with edit.before(view.node):
            size = view.size if isinstance(view.size, (tuple, list)) else (view.size,)
            edit.replace(view.node, edit.call_method("reshape", view.input, *size))


def _write_elsewhere(edit: Editor, part: Node) -> None:
    for activation in filter(None, map(Activation.at, list(part.users))):
        with edit.before(activation.node):
            made = activation.out_of_place(edit)
        assert made is not None, "what has the setting can be given another"
        edit.replace(activation.node, made)
