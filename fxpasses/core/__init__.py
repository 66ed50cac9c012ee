"""The core of a pass: transactions, rewrites, facts, programs."""

from fxpasses.core.applied import Applied, Region, Replacement, cut_region
from fxpasses.core.editor import Editor
from fxpasses.core.facts import Effects, Facts
from fxpasses.core.fold import (
    Fold,
    Folds,
    Formula,
    Watch,
    integers_widened,
    memory_of,
    rounds_integers,
    widened,
)
from fxpasses.core.history import History, Stage
from fxpasses.core.nodes import add_node
from fxpasses.core.pipeline import ForeignPass, Group, Item, check_order, foreign
from fxpasses.core.program import Program
from fxpasses.core.record import Record
from fxpasses.core.rewrite import (
    Condition,
    Gate,
    GraphPass,
    Label,
    Numerics,
    PassResult,
    Refusal,
    Rewrite,
    Step,
    carry_out,
)
from fxpasses.core.values import (
    MODULE_STACK,
    ORIGIN,
    REPLACED,
    SOURCE,
    STANDS_FOR,
    VALUE,
    Known,
    Source,
    TensorInfo,
    is_replaced,
    source_of,
)
from fxpasses.ops import attribute

__all__ = [
    "MODULE_STACK",
    "ORIGIN",
    "REPLACED",
    "SOURCE",
    "STANDS_FOR",
    "VALUE",
    "Applied",
    "Condition",
    "Editor",
    "Effects",
    "Facts",
    "Fold",
    "Folds",
    "ForeignPass",
    "Formula",
    "Gate",
    "GraphPass",
    "Group",
    "History",
    "Item",
    "Known",
    "Label",
    "Numerics",
    "PassResult",
    "Program",
    "Record",
    "Refusal",
    "Region",
    "Replacement",
    "Rewrite",
    "Source",
    "Stage",
    "Step",
    "TensorInfo",
    "Watch",
    "add_node",
    "attribute",
    "carry_out",
    "check_order",
    "cut_region",
    "foreign",
    "integers_widened",
    "is_replaced",
    "memory_of",
    "rounds_integers",
    "source_of",
    "widened",
]
