"""Compute one result of a region."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.utils._pytree import tree_map_only

from fxpasses.analysis.effects import effects_of
from fxpasses.core import Folds, Region
from fxpasses.verify.float64 import float64, unaffected
from fxpasses.verify.runner import call, lifetimes
from fxpasses.verify.state import randomness_restored, tensors_below, untouched
from fxpasses.verify.structures import tensors_of
from fxpasses.verify.trail import Trail


def needed(region: Region, index: int) -> tuple[Node, ...]:
    """The nodes of a region that its result at `index` follows from, in order, and it last."""
    output = next(node for node in reversed(region.graph.nodes) if node.op == "output")
    wanted: Node = output.args[0][index]
    found: set[Node] = set()
    stack = [wanted]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    found.discard(wanted)
    return (*sorted(found), wanted)


def borders_read(region: Region, index: int) -> tuple[str, ...]:
    """The captured nodes that the result at `index` follows from."""
    read = set(needed(region, index))
    placeholders = [node for node in region.graph.nodes if node.op == "placeholder"]
    pairs = zip(placeholders, region.inputs, strict=True)
    return tuple(name for placeholder, name in pairs if placeholder in read)


def only_computes(region: Region, index: int) -> bool:
    """Whether all that the result at `index` follows from is sure to do nothing else."""
    return all(effects_of(node).none for node in needed(owned(region), index))


class _Holder(nn.Module):
    """Holds what the targets of a region name."""


def owned(region: Region) -> Region:
    """The region, whose nodes can be asked from now on what they compute."""
    if region.graph.owning_module is None:
        holder: Any = _Holder()
        for target, value in region.attributes.items():
            _put(holder, target, value)
        region.graph.owning_module = holder
    return region


def _put(holder: _Holder, target: str, value: Any) -> None:
    *path, name = target.split(".")
    for step in path:
        place = vars(holder).setdefault(step, _Holder())
        if not isinstance(place, _Holder):  # Of a module that is there itself it is a part.
            return
        holder = place
    vars(holder)[name] = value


def run_region(region: Region, index: int, borders: Sequence[Any]) -> Any:
    """The result at `index`, from the values of `borders_read`, as the ops find their dtypes."""
    nodes = needed(region, index)
    given = iter(borders)
    placeholders = [node for node in region.graph.nodes if node.op == "placeholder"]
    values = {node: next(given) for node in placeholders if node in set(nodes)}
    dying = lifetimes(nodes, {})
    for node in nodes:
        if node.op != "placeholder":
            values[node] = call(node, values.__getitem__, region.attributes.__getitem__)
        if node is nodes[-1]:
            break
        for dead in dying.get(node, ()):
            del values[dead]
    return values[nodes[-1]]


def in_float64(  # noqa: PLR0913  all but three have defaults
    region: Region,
    index: int,
    borders: Sequence[Any],
    folds: Folds | None,
    *,
    own: torch.dtype = torch.float32,
    noise: float = 0.0,
    trail: Trail | None = None,
    seed: Callable[[], None] | None = None,
    is_pure: bool = False,
) -> Any:
    """The result at `index` in float64, folds unrounded; nothing it reads is written.

    `seed` sets the generators first; they are put back afterwards. Where `is_pure`, the region is
    known to only compute.
    """
    needs_none = is_pure and not noise
    protected = () if needs_none else [*tensors_of(list(borders)), *tensors_read(region)]
    with (
        nullcontext() if is_pure else randomness_restored(),
        float64(folds, protected=protected, own=own, noise=noise, trail=trail) as seen,
    ):
        if seed is not None and not is_pure:
            seed()
        if noise:
            borders = [seen.reads(border) for border in borders]
        return seen.reads(run_region(region, index, borders))


def in_own_dtypes(
    region: Region,
    index: int,
    borders: Sequence[Any],
    seed: Callable[[], None] | None = None,
    *,
    is_pure: bool = False,
) -> Any:
    """The result at `index` as the ops find their dtypes; only the borders may be written.

    Modes that are active do not see it. `seed` and `is_pure` are as for `in_float64`.
    """
    if is_pure:
        with unaffected(), torch.no_grad():
            return run_region(region, index, borders)
    modules = [value for value in region.attributes.values() if isinstance(value, nn.Module)]
    with randomness_restored(), unaffected(), untouched(modules, parameters_too=True):
        held = tree_map_only(Tensor, _copied, dict(region.attributes))
        if seed is not None:
            seed()
        return run_region(replace(region, attributes=held), index, borders)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def tensors_read(region: Region) -> list[Tensor]:
    """The tensors that the attributes of a region hold."""
    found: list[Tensor] = []
    for value in region.attributes.values():
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, nn.Module):
            found.extend(tensors_below([value]).values())
    return found
