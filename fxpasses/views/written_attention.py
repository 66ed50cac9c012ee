"""Attention as models write it out: a softmax between two products, in all its spellings.

    softmax(scale * query @ key^T + bias) @ value

The walk goes from the last product up to the first. What it meets between them are links; the
first that is neither a scale nor a bias nor a mask is the obstacle. Axes keep the names that the
last product gives them, so an order of axes or of operands plays no part.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final, TypeAlias

from torch.fx import Node

from fxpasses.core import Facts
from fxpasses.ops import ELEMENTWISE, VIEWS, Op, op_of
from fxpasses.views.contractions import Axes, Contraction, Operand, contraction_of
from fxpasses.views.elementwise import Dropout, Softmax
from fxpasses.views.score_links import Bias, Factor, Fill, Link, link_of, unscaled
from fxpasses.views.windows import rejoined, splits_of, window_link

Obstacle: TypeAlias = tuple[Node, str]
"""A call in the way, and what it does there."""

_CROSSED: Final = (
    ELEMENTWISE | VIEWS | {Op.DROPOUT, Op.LINEAR, Op.CONV, Op.BATCH_NORM, Op.CAT, Op.PAD}
)
"""What a search for the softmax or the product looks through, whether it is understood or not."""
_FURTHEST: Final = 8
"""How many calls a search looks up."""


@dataclass(frozen=True)
class Scores:
    """The product of queries and keys, with what stands for them before they were scaled."""

    product: Contraction
    """Its axes are named as in the last product."""
    query: Operand
    key: Operand
    factors: tuple[Factor, ...]
    """What queries and keys were multiplied with."""


@dataclass(frozen=True)
class WrittenAttention:
    """A product with the result of a softmax, and what was found before the softmax."""

    last: Contraction
    """The product with the values."""
    value: Operand
    queries: str
    """The axis that the weights have besides the keys, and the values have not."""
    softmax: Softmax
    weights: tuple[Link, ...]
    """What lies between the softmax and the last product, from the product up."""
    links: tuple[Link, ...]
    """What lies between the first product and the softmax, from the softmax up."""
    scores: Scores | None
    """None where they were not reached."""
    has_scores: bool
    """Whether a product comes before the softmax at all."""
    obstacle: Obstacle | None
    """The first call in the way."""

    @property
    def node(self) -> Node:
        return self.last.node

    @property
    def keys(self) -> str:
        """The axis that the last product sums over."""
        return self.last.summed

    @property
    def features(self) -> str:
        """The axis that the values have besides the keys."""
        (name,) = {self.last.row, self.last.column} - {self.queries}
        return name

    @cached_property
    def axes(self) -> Axes:
        """Of the scores: those of the batch, the queries, the keys.

        Where the scores meet a tensor, the batch is ordered as it is there.
        """
        assert self.scores is not None
        met = [rejoined(link.result.axes) for link in self.links if link.tensor is not None]
        first = [*met, self.scores.product.axes][0]
        batch = (axis for axis in first if axis not in (self.queries, self.keys))
        return (*batch, self.queries, self.keys)

    @cached_property
    def windows(self) -> Mapping[Node, Node]:
        """What meets the scores while their batch is split, and the calls that split it."""
        return {tensor: split.node for tensor, split in splits_of(self.links).items()}

    @cached_property
    def factors(self) -> tuple[Factor, ...]:
        """All that the product of queries and keys is multiplied with."""
        before = () if self.scores is None else self.scores.factors
        found = (link.does for link in self.links)
        return (*(does for does in found if isinstance(does, Factor)), *before)

    @cached_property
    def changes(self) -> tuple[tuple[Bias | Fill, tuple[Factor, ...]], ...]:
        """What is added to the scores or filled in, from the softmax up.

        Each with the factors that it is multiplied with afterwards.
        """
        later: list[Factor] = []
        found: list[tuple[Bias | Fill, tuple[Factor, ...]]] = []
        for link in self.links:
            if isinstance(link.does, Factor):
                later.append(link.does)
            elif link.does is not None:
                found.append((link.does, tuple(later)))
        return tuple(found)

    @cached_property
    def chain(self) -> tuple[Node, ...]:
        """All calls from the first product to the last, which is not among them."""
        up = (*self.weights, self.softmax, *self.links)
        found = [one.node for one in reversed(up)]
        if self.scores is not None and self.scores.product.node not in found:
            found.insert(0, self.scores.product.node)
        return tuple(dict.fromkeys(found))

    @property
    def dropouts(self) -> Iterator[Dropout]:
        """Those that drop something."""
        views = (Dropout.at(node) for node in self.chain)
        return (view for view in views if view is not None and view.is_active)


def written_attention(node: Node, facts: Facts) -> WrittenAttention | None:
    """The attention that ends in `node`, or None: it is no product with what a softmax made."""
    last = contraction_of(node, facts.rank)
    if last is None or last.addend is not None or last.alpha != 1:
        return None
    found: list[WrittenAttention] = []
    for weights, value in ((last.left, last.right), (last.right, last.left)):
        softmax = Softmax.at(_search(weights.node, _is_softmax))
        if softmax is not None:
            found.append(_Walk(facts, last, weights, value).down_to(softmax))
    # Where both have a softmax somewhere above, the weights are what leads to it straight.
    return min(found, key=lambda one: one.obstacle is not None, default=None)


@dataclass(frozen=True, slots=True)
class _Walk:
    facts: Facts
    last: Contraction
    weights: Operand
    value: Operand

    def down_to(self, softmax: Softmax) -> WrittenAttention:
        weights, at, obstacle = self._up(self.weights, lambda node: node is softmax.node)
        obstacle = obstacle or _changed(weights) or self._of_the_axis(softmax, at.axes)
        links: tuple[Link, ...] = ()
        scores = None
        if obstacle is None:
            given = Operand(softmax.input, at.axes)
            links, at, obstacle = self._up(given, _is_product)
        if obstacle is None:
            product = contraction_of(at.node, self.facts.rank)
            links = (*links, *_beside(product, at)) if product else links
            scores, obstacle = self._scores(product, at)
        has_scores = scores is not None or _search(softmax.input, _is_product) is not None
        return WrittenAttention(
            *(self.last, self.value, self._queries, softmax, weights, links),
            *(scores, has_scores, obstacle),
        )

    @property
    def _queries(self) -> str:
        return self.last.row if self.last.row in self.weights.axes else self.last.column

    def _up(
        self, operand: Operand, ends: Callable[[Node], bool]
    ) -> tuple[tuple[Link, ...], Operand, Obstacle | None]:
        """The links from `operand` up to the first node where they end."""
        links: list[Link] = []
        while not ends(operand.node):
            leads = partial(_leads, ends)
            link = link_of(operand, leads) or window_link(operand, leads)
            if link is None:
                node = operand.node
                return (
                    tuple(links),
                    operand,
                    (node, f"{node.name} ({op_of(node) or 'another call'}) lies between"),
                )
            links.append(link)
            operand = link.input
        return tuple(links), operand, None

    def _of_the_axis(self, softmax: Softmax, axes: Axes) -> Obstacle | None:
        node, dim = softmax.node, softmax.dim
        if softmax.op is not Op.SOFTMAX or not isinstance(dim, int):
            return node, f"{node.name} is no softmax over an axis that is told"
        over_keys = axes[dim] == self.last.summed
        return None if over_keys else (node, f"{node.name} is not taken over the keys")

    def _scores(
        self, product: Contraction | None, at: Operand
    ) -> tuple[Scores | None, Obstacle | None]:
        """The first product, whose own axes must be the queries and the keys."""
        keys = self.last.summed
        if product is not None:
            product = product.renamed(at.axes)
        if product is None or {product.row, product.column} != {self._queries, keys}:
            return None, (at.node, f"{at.node.name} is no product of one query with one key")
        pair = (product.left, product.right)
        first, second = pair if keys in product.right.axes else pair[::-1]
        (query, before), (key, too) = self._unscaled(first), self._unscaled(second)
        return Scores(product, query, key, (*before, *too)), None

    def _unscaled(self, operand: Operand) -> tuple[Operand, tuple[Factor, ...]]:
        found, factors = unscaled(operand)
        if self.facts.dtype(found.node) is not self.facts.dtype(operand.node):
            return operand, ()
        if any(self.facts.effects(factor.by).writes for factor in factors):
            return operand, ()  # what it was before is no longer there
        return found, factors


def _changed(weights: tuple[Link, ...]) -> Obstacle | None:
    """What is done to the weights themselves."""
    nodes = (link.node for link in weights if link.does is not None)
    return next(((node, f"{node.name} changes the weights") for node in nodes), None)


def _beside(product: Contraction, at: Operand) -> Iterator[Link]:
    """What `baddbmm` does besides the product, from the softmax up."""
    if isinstance(product.addend, Node) and product.beta != 0:
        yield Link(at, at, Bias(product.addend, product.node, factor=product.beta))
    if product.alpha != 1:
        yield Link(at, at, Factor(product.alpha, product.node))


def _leads(ends: Callable[[Node], bool], node: Node) -> bool:
    """Whether a node is on the way up to where a search ends."""
    return _search(node, ends) is not None


def _is_softmax(node: Node) -> bool:
    return Softmax.at(node) is not None


def _is_product(node: Node) -> bool:
    return op_of(node) in (Op.MATMUL, Op.MM, Op.BMM, Op.BADDBMM, Op.EINSUM)


def _search(start: object, found: Callable[[Node], bool]) -> Node | None:
    """The nearest node, at most so many calls up from `start`, of which `found` says so."""
    front = [start] if isinstance(start, Node) else []
    for _ in range(_FURTHEST):
        hit = next(filter(found, front), None)
        if hit is not None:
            return hit
        above = (i for one in front if op_of(one) in _CROSSED for i in one.all_input_nodes)
        front = list(dict.fromkeys(above))
    return None
