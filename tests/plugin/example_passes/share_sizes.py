"""Read every size of a tensor once.

    a = x.size(0); ...; b = x.size(0)  ->  a, for both

What is computed does not change by a bit.
"""

from collections.abc import Iterator

from torch.fx import GraphModule, Node

from fxpasses.core import Facts, GraphPass, Numerics, Refusal, Step
from fxpasses.ops import Op
from fxpasses.views import View


class ShareSizes(GraphPass):
    """Read every size of a tensor once."""

    name = "share_sizes"
    numerics = Numerics.EXACT
    trains = True

    only_dims: tuple[int, ...] | None = None
    """The dimensions to share the sizes of; all of them if None."""

    def steps(self, module: GraphModule, facts: Facts) -> Iterator[Step | Refusal]:
        seen: dict[tuple[Node, object], Node] = {}
        for node in list(module.graph.nodes):
            size = View.at(node)
            if size is None or size.op is not Op.SIZE or not self._is_meant(size.operand("dim")):
                continue
            first = seen.setdefault((size.input, size.operand("dim")), node)
            if first is node:
                continue
            if writer := facts.written_between(first, node, size.input):
                reason = f"{writer} may have resized {size.input}"
                yield Refusal.at(node, "tensor_is_not_written", reason)
            else:
                yield _reading(first, instead_of=node)

    def _is_meant(self, dim: object) -> bool:
        return self.only_dims is None or dim in self.only_dims


def _reading(first: Node, instead_of: Node) -> Step:
    return Step(instead_of, f"{first} is equal", lambda edit: edit.replace(instead_of, first))
