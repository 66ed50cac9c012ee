"""Compute attention that is written out in one call.

    matmul(softmax(matmul(q, k.mT) * scale + bias, -1), v)  ->  scaled_dot_product_attention(...)

The scores are never held in memory as a whole where torch has a fused kernel. Outputs move by
rounding only: a row of scores that a mask hides whole still comes out as it did, as NaN where it
was filled with -inf and as the mean of the values where it was filled with a finite number.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf, prod
from typing import ClassVar, Final

import torch
from torch.fx import Node

from fxpasses.analysis.layouts import reader_of_layout
from fxpasses.analysis.magnitudes import beginning_of_rows, largest_magnitude
from fxpasses.core import Condition, Editor, Facts, Numerics, Rewrite, is_replaced
from fxpasses.views import (
    Bias,
    Factor,
    Fill,
    Surroundings,
    WrittenAttention,
    fused,
    is_alike_for_keys,
    misfit_of_windows,
    negated,
    rejoined,
    written_attention,
)

_HIDING: Final = -1e9
"""A fill as low as this lies below every score that a model means."""
_HALVES: Final = frozenset({torch.float16, torch.bfloat16})
_KERNEL_RANK: Final = 4


@dataclass(frozen=True, slots=True)
class Site:
    """An attention that is written out, and what its rewrite has to know of the graph."""

    found: WrittenAttention
    around: Surroundings | None
    """None where the scores were not reached."""

    @property
    def node(self) -> Node:
        return self.found.node

    @property
    def biases(self) -> tuple[tuple[Bias, tuple[Factor, ...]], ...]:
        return tuple((one, later) for one, later in self.found.changes if isinstance(one, Bias))

    @property
    def fills(self) -> tuple[tuple[Fill, tuple[Factor, ...]], ...]:
        return tuple((one, later) for one, later in self.found.changes if isinstance(one, Fill))

    @property
    def fill(self) -> float | None:
        """What hidden scores are when the softmax sees them, if that is one number."""
        values = {_when_seen(fill, later) for fill, later in self.fills}
        return values.pop() if len(values) == 1 else None


def _when_seen(fill: Fill, later: tuple[Factor, ...]) -> float | None:
    factors = [factor.constant for factor in later]
    known = [factor for factor in factors if factor is not None and factor > 0]
    return fill.value * prod(known) if len(known) == len(factors) else None


# -- what must hold


def scores_are_only_scaled_and_masked(site: Site, _: Facts) -> str | None:
    found = site.found
    if not found.has_scores:
        return f"no product of queries and keys comes before {found.softmax.node.name}"
    return None if found.obstacle is None else found.obstacle[1]


def nothing_is_dropped(site: Site, _: Facts) -> str | None:
    dropout = next(site.found.dropouts, None)
    return None if dropout is None else f"{dropout.node.name} drops weights at random"


def dtypes_agree(site: Site, facts: Facts) -> str | None:
    """One dtype for all; half precision may go through float32, as the fused kernels do."""
    scores = site.found.scores
    assert scores is not None, "asked of what has no obstacle"
    dtype = facts.dtype(scores.query.node)
    if dtype is None or not dtype.is_floating_point:
        return f"the queries are {dtype or 'of a dtype that is not known'}"
    for node in (scores.key.node, site.found.value.node, site.node):
        if facts.dtype(node) is not dtype:
            return f"{node.name} is {facts.dtype(node)}, the queries are {dtype}"
    allowed = {dtype, torch.float32} if dtype in _HALVES else {dtype}
    other = next((n for n in site.found.chain if facts.dtype(n) not in allowed), None)
    if other is not None:
        return f"{other.name} computes {facts.dtype(other)}, not {dtype}"
    return _wider_bias(site, dtype, facts)


def _wider_bias(site: Site, dtype: torch.dtype, facts: Facts) -> str | None:
    """Kernels and autocast round it to the dtype of the queries, where -inf may come of it."""
    for bias, _ in site.biases:
        given = facts.dtype(bias.node)
        if given is None or (given.is_floating_point and given.itemsize > dtype.itemsize):
            return f"{bias.node.name} is {given}, the queries are {dtype}"
    return None


def tensors_meet_the_scores_alike(site: Site, facts: Facts) -> str | None:
    """What the scores meet must have their axes: batch, queries, keys, or fewer of the last.

    Or one more, where their batch is split into groups of windows.
    """
    axes = site.found.axes
    for link in site.found.links:
        tensor = link.tensor
        if tensor is None:
            continue
        rank, is_of_windows = facts.rank(tensor), tensor in site.found.windows
        if rank is None or rank > len(axes) + is_of_windows:
            return f"{tensor.name} may have more axes than the scores"
        if is_of_windows and isinstance(link.does, Factor):
            return f"{tensor.name} scales the scores of each window in another way"
        if rejoined(link.result.axes) != axes:
            return f"{tensor.name} meets the scores in another order of axes"
    return None


def windows_are_those_of_the_scores(site: Site, facts: Facts) -> str | None:
    return misfit_of_windows(site.found.links, site.node, facts)


def factors_are_the_same_for_all_keys(site: Site, facts: Facts) -> str | None:
    """Then the queries can be multiplied with them."""
    for factor in site.found.factors:
        if not factor.is_number and not is_alike_for_keys(factor.value, facts):
            return f"{factor.value.name} may scale the scores of each key in another way"
    return None


def fills_hide_their_scores(site: Site, facts: Facts) -> str | None:
    if not site.fills:
        return None
    if site.fill is None:
        return "masks fill the scores with several numbers, or with one that is not known"
    if any(facts.dtype(fill.mask) is not torch.bool for fill, _ in site.fills):
        return "a mask is not known to be of true and false"
    dtype = facts.dtype(site.fills[0][0].by)
    lowest = torch.finfo(dtype).min if dtype is not None and dtype.is_floating_point else -inf
    if site.fill != -inf and not lowest <= site.fill <= max(_HIDING, lowest):
        return f"{site.fill:g} hides a score only where others are not as low"
    return None


def what_is_added_leaves_fills_alone(site: Site, facts: Facts) -> str | None:
    """A filled score that is added to is another, and what is added may be as low as a fill."""
    if not site.fills or not site.biases or _largest_sum(site, facts) < inf:
        is_filled_last = [isinstance(change, Fill) for change, _ in site.found.changes]
        if site.fill == -inf or is_filled_last == sorted(is_filled_last, reverse=True):
            return None
        return f"{site.biases[0][0].node.name} is added to what a mask has filled"
    first = site.found.changes[0][0]
    if site.fill == -inf and isinstance(first, Fill) and len(site.fills) == 1:
        return None
    return f"{site.biases[0][0].node.name} may be as low as what a mask fills in"


def hidden_rows_have_no_gradients(site: Site, facts: Facts) -> str | None:
    assert site.around is not None
    if facts.training and site.around.hides_rows:
        return "a mask may hide all keys from a query, whose gradients would be others"
    return None


def nothing_writes_in_between(site: Site, facts: Facts) -> str | None:
    for value, reader in _reads(site):
        writer = facts.written_between(reader, site.node, value)
        if writer is not None:
            return f"{writer.name} may write {value.name} before {site.node.name}"
    return None


def only_scores_are_written(site: Site, facts: Facts) -> str | None:
    """In place, what goes from call to call may be written, and nothing else."""
    chain = (*site.found.chain, site.node)
    for before, node in zip((None, *chain), chain, strict=False):
        for written in facts.effects(node).writes:
            if written is not before:
                return f"{node.name} writes {written.name}"
            if list(_others(written, node)):
                return f"{node.name} writes {written.name}, which is read elsewhere"
    return None


def nothing_else_reads_the_scores(site: Site, _: Facts) -> str | None:
    """What is read elsewhere is computed all the same."""
    chain = (*site.found.chain, site.node)
    for node, reader in pairwise(chain):
        other = next(_others(node, reader), None)
        if other is not None:
            what = "weights" if node in _from_the_softmax(site) else "scores"
            return f"{other.name} reads the {what} too"
    return None


def a_kernel_takes_the_axes(site: Site, _: Facts) -> str | None:
    rank = len(site.found.axes)
    return f"no fused kernel takes {rank} axes" if rank > _KERNEL_RANK else None


def _from_the_softmax(site: Site) -> tuple[Node, ...]:
    chain = site.found.chain
    return chain[chain.index(site.found.softmax.node) :]


def _others(node: Node, reader: Node) -> Iterator[Node]:
    return (user for user in node.users if user is not reader and not is_replaced(user))


def _reads(site: Site) -> Iterator[tuple[Node, Node]]:
    """What the call will read, each with the node that reads it now."""
    found = site.found
    assert found.scores is not None
    scaled = [factor.by for factor in found.scores.factors]
    first = min((*scaled, found.scores.product.node))
    yield found.scores.query.node, first
    yield found.scores.key.node, first
    for factor in found.factors:
        if isinstance(factor.value, Node):
            yield factor.value, factor.by
    for change, _ in found.changes:
        if isinstance(change, Bias):
            yield change.node, change.by
        else:
            yield change.mask, change.by
            if (kept := negated(change.mask)) is not None:
                yield kept, change.mask


def _largest_sum(site: Site, facts: Facts) -> float:
    """A bound on all that is added to the scores together."""
    found = 0.0
    for bias, later in site.biases:
        factors = [abs(f.constant) if f.constant is not None else inf for f in later]
        weight = largest_magnitude(bias.factor, facts, until=bias.by) * prod(factors)
        found += largest_magnitude(bias.node, facts, until=bias.by) * weight
    dtype = facts.dtype(site.node)
    return found if dtype is not None and found <= torch.finfo(dtype).max else inf


def _may_hide_rows(site: Site, facts: Facts) -> bool:
    """Whether some query may be left without a key, as far as can be told."""
    if len(site.found.changes) == 1:
        change, later = site.found.changes[0]
        tensor = change.mask if isinstance(change, Fill) else change.node
        first = beginning_of_rows(tensor, facts, until=change.by)
        if first is not None and isinstance(change, Fill):
            return bool(first) is not change.keeps
        if first is not None and abs(first) < inf and not later:
            return False
    return bool(site.fills) or _largest_sum(site, facts) == inf


def _surroundings(site: Site, facts: Facts) -> Surroundings:
    dtype = facts.dtype(site.node)
    tensors = [link.tensor for link in site.found.links if link.tensor is not None]
    added = [bias.node for bias, _ in site.biases]
    return Surroundings(
        hides_rows=_may_hide_rows(site, facts),
        is_dense=reader_of_layout(site.node, facts) is not None,
        ranks={
            node: rank - (node in site.found.windows)
            for node in tensors
            if (rank := facts.rank(node)) is not None
        },
        casts={node: dtype for node in added if dtype and facts.dtype(node) is not dtype},
    )


class FuseAttention(Rewrite[Site]):
    """Compute attention that is written out (product, scale, mask, softmax, product) in one call.

    Rows that a mask hides whole come out as before, by a few nodes more where there may be any.
    """

    name = "fuse_attention"
    numerics = Numerics.ROUNDING
    trains = True
    legal_if = (
        scores_are_only_scaled_and_masked,
        nothing_is_dropped,
        dtypes_agree,
        tensors_meet_the_scores_alike,
        windows_are_those_of_the_scores,
        factors_are_the_same_for_all_keys,
        fills_hide_their_scores,
        what_is_added_leaves_fills_alone,
        hidden_rows_have_no_gradients,
        only_scores_are_written,
        nothing_writes_in_between,
    )
    worthwhile_if = (nothing_else_reads_the_scores, a_kernel_takes_the_axes)
    remedies: ClassVar[Mapping[Condition[Site], str]] = {
        scores_are_only_scaled_and_masked: (
            "do it to the queries, the keys or the result, if it can be done there"
        ),
        nothing_is_dropped: "call model.eval() first, or set its probability to 0",
        dtypes_agree: "cast queries, keys, values and what is added to one dtype",
        tensors_meet_the_scores_alike: (
            "give it the axes of the scores: batch, heads, queries, keys"
        ),
        windows_are_those_of_the_scores: (
            "give the mask the shape [1, windows, 1 or heads, queries, keys], and reshape by "
            "numbers, or by sizes of the input"
        ),
        factors_are_the_same_for_all_keys: "scale the keys themselves",
        fills_hide_their_scores: "fill with -inf, or with torch.finfo(dtype).min",
        what_is_added_leaves_fills_alone: "mask after everything else is added, with -inf",
        hidden_rows_have_no_gradients: (
            "add a mask that is made in the forward, with torch.finfo(dtype).min"
        ),
        nothing_writes_in_between: "write it after the attention, or write a copy",
        only_scores_are_written: "use the form that does not write in place",
        nothing_else_reads_the_scores: "do not return the weights where nobody needs them",
        a_kernel_takes_the_axes: "flatten the axes of the batch into one",
    }

    def match(self, node: Node, facts: Facts) -> Site | None:
        found = written_attention(node, facts)
        if found is None:
            return None
        site = Site(found, None)
        return site if found.scores is None else Site(found, _surroundings(site, facts))

    def rewrite(self, site: Site, edit: Editor) -> None:
        assert site.around is not None
        edit.replace(site.node, fused(site.found, site.around, edit), absorbing=site.found.chain)
