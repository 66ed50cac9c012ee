"""What a profile says: the costliest nodes, the modules, and what is not finite."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from fxpasses.debug.costs import ModuleCost, NodeCost, NonFinite
from fxpasses.page.cut import cut, more
from fxpasses.page.numbers import amount, duration, place, share, size
from fxpasses.page.outline import Block, Column, Line, Page, Row, Section, Table, Tone

if TYPE_CHECKING:
    from fxpasses.debug.profiling import Profile

_NODES_SHOWN: Final = 15
_MODULES_SHOWN: Final = 12
_NONFINITE_SHOWN: Final = 3
_DEPTH_SHOWN: Final = 2
_NODES: Final = (
    Column("node"),
    Column("computes"),
    Column("value", spared=2),
    Column("time", is_number=True),
    Column("share", is_number=True),
    Column("FLOPs", is_number=True),
    Column("output", is_number=True, spared=1),
    Column("held", is_number=True, spared=3),
    Column("calls", is_number=True, spared=4),
    Column("module", spared=5),
)
_MODULES: Final = (
    Column("module"),
    Column("nodes", is_number=True, spared=1),
    Column("time", is_number=True),
    Column("share", is_number=True),
    Column("FLOPs", is_number=True),
    Column("output", is_number=True, spared=2),
    Column("held", is_number=True, spared=3),
)


def page_of(profile: "Profile", *, details: bool) -> Page:
    """One screen of it by default; with `details` all nodes in the order of the forward."""
    total = profile.total_seconds
    title = (
        f"{profile.model}: {duration(total)} in the nodes of one forward on {profile.device}, "
        f"{amount(profile.total_flops)} FLOPs, at most {size(profile.held_bytes)} of activations"
    )
    sections = [
        Section("nodes", tuple(_nodes(profile.nodes, total, details=details))),
        Section("modules", tuple(_modules(profile.modules, total, details=details))),
        Section("finite", tuple(_finite(profile.nonfinite, details=details))),
        Section("notes", tuple(map(Line, profile.notes))),
    ]
    return Page.of(title, sections)


def _nodes(nodes: Sequence[NodeCost], total: float, *, details: bool) -> Iterator[Block]:
    ranked = nodes if details else sorted(nodes, key=lambda cost: -cost.seconds)
    shown, rest = cut(ranked, _NODES_SHOWN, details=details)
    yield Table(_NODES, tuple(_node(one, total) for one in shown)).used()
    left = total - sum(one.seconds for one in shown)
    for text in more(rest, "nodes"):
        yield Line(f"{text}, {duration(max(left, 0.0))} in all", tone=Tone.QUIET)


def _node(cost: NodeCost, total: float) -> Row:
    return Row(
        (
            cost.full_name,
            cost.node.computes,
            cost.node.value,
            duration(cost.seconds),
            share(_of(cost.seconds, total)),
            amount(cost.flops) if cost.flops else "",
            size(cost.output_bytes),
            size(cost.held_bytes),
            str(cost.calls) if cost.calls > 1 else "",
            cost.node.module,
        )
    )


def _modules(modules: Sequence[ModuleCost], total: float, *, details: bool) -> Iterator[Block]:
    upper = [one for one in modules if details or one.path.count(".") < _DEPTH_SHOWN]
    ranked = upper if details else sorted(upper, key=lambda cost: -cost.seconds)
    shown, rest = cut(ranked, _MODULES_SHOWN, details=details)
    if shown:
        yield Table(_MODULES, tuple(_module(one, total) for one in shown)).used()
    yield from (Line(text, tone=Tone.QUIET) for text in more(rest, "modules"))


def _module(cost: ModuleCost, total: float) -> Row:
    return Row(
        (
            cost.path,
            f"{cost.nodes:,}",
            duration(cost.seconds),
            share(_of(cost.seconds, total)),
            amount(cost.flops) if cost.flops else "",
            size(cost.output_bytes),
            size(cost.held_bytes),
        )
    )


def _of(part: float, total: float) -> float:
    return part / total if total > 0 else 0.0


def _finite(found: Sequence[NonFinite] | None, *, details: bool) -> Iterator[Line]:
    if found is None:
        return
    if not found:
        yield Line("every value is finite", tone=Tone.GOOD)
    shown, rest = cut(found, _NONFINITE_SHOWN, details=details)
    for number, one in enumerate(shown):
        first = "first: " if number == 0 else "then: "
        kinds = [(one.nan, "NaN"), (one.inf, "Inf")]
        what = " and ".join(f"{many:,} {kind}" for many, kind in kinds if many)
        operands = one.largest_operand
        of = "" if operands is None else f", of values up to {operands:.3g}"
        where = f"{one.node.module or '(the model)'} [{place(one.node.source)}]"
        text = f"{first}{one.full_name} ({one.node.computes}) makes {what}{of}"
        yield Line(text, (Line(where, tone=Tone.QUIET),), Tone.BAD)
    yield from (Line(text, tone=Tone.QUIET) for text in more(rest, "nodes"))
