"""The op vocabulary: the one place that knows which calls mean the same op."""

from fxpasses.ops.modules import computes_as, computing_names, is_plain
from fxpasses.ops.op import Op
from fxpasses.ops.purity import (
    NN_CLASSES,
    PURE_METHODS,
    RAISES_MARK,
    SILENT_WRITERS,
    TRUSTED_NAMESPACES,
    is_pure,
    is_raising,
)
from fxpasses.ops.schemas import (  # fmt: skip
    Parameter,
    Schema,
    schemas_named,
    schemas_of_function,
    schemas_of_method,
)
from fxpasses.ops.signatures import (
    arguments_of,
    bind,
    bind_schema,
    choose,
    forward_arguments,
    with_arguments,
)
from fxpasses.ops.spelling import Spellings, spell
from fxpasses.ops.tables import VOCABULARY
from fxpasses.ops.vocabulary import index_by, module_of, op_of, op_of_function, op_of_module

__all__ = [
    "NN_CLASSES",
    "PURE_METHODS",
    "RAISES_MARK",
    "SILENT_WRITERS",
    "TRUSTED_NAMESPACES",
    "VOCABULARY",
    "Op",
    "Parameter",
    "Schema",
    "Spellings",
    "arguments_of",
    "bind",
    "bind_schema",
    "choose",
    "computes_as",
    "computing_names",
    "forward_arguments",
    "index_by",
    "is_plain",
    "is_pure",
    "is_raising",
    "module_of",
    "op_of",
    "op_of_function",
    "op_of_module",
    "schemas_named",
    "schemas_of_function",
    "schemas_of_method",
    "spell",
    "with_arguments",
]
