"""What one run did, as plain data: filled by capture, manager and verifier, rendered by `page`."""

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Self, cast, get_args, get_origin, get_type_hints

VERSION = 1
META = "fxpasses"
"""The key in the `meta` of a result under which its record lies, as plain data."""


@dataclass(slots=True)
class OpaqueRecord:
    """A module that runs its own code, and why."""

    path: str
    type: str
    kind: str
    reason: str
    source: str | None
    remedy: str = ""
    """What whoever owns the model can do about it."""


@dataclass(slots=True)
class NoteRecord:
    """Something of the model that its owner should know: nothing is lost by it."""

    kind: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class CaptureRecord:
    """How the model became graphs."""

    sizes: str = "guards"
    example: str = "none"
    """`given`, `inferred: 1x3x224x224:float32`, or `none`."""
    graphs: dict[str, int] = field(default_factory=dict[str, int])
    """Nodes of each captured graph, by module path."""
    opaque: list[OpaqueRecord] = field(default_factory=list[OpaqueRecord])
    calls_covered: float | None = None
    """Share, 0 to 1, of the aten calls of one forward that run from captured graphs."""
    flops_covered: float | None = None
    guards: int = 0
    traces: int = 0
    notes: list[NoteRecord] = field(default_factory=list[NoteRecord])


@dataclass(slots=True)
class RewriteRecord:
    """One rewrite that was made."""

    id: str
    path: str
    node: str
    why: str
    source: str | None
    replaced: list[str]
    created: list[str]
    erased: list[str]
    error: float | None = None
    """Relative L2 difference in float64 at the site, where it was verified there."""
    bound: float | None = None
    verified: str = "no"
    """`site`, `whole`, `no`, or `no: REASON`."""


@dataclass(slots=True)
class RefusalRecord:
    path: str
    node: str
    condition: str
    reason: str
    legal: bool
    source: str | None
    remedy: str = ""
    """What whoever owns the model can do about it; empty where the pass names nothing."""


@dataclass(slots=True)
class PassRecord:
    """One pass of the pipeline, in one round of its group."""

    position: int
    name: str
    options: dict[str, Any]
    numerics: str
    round: int = 1
    status: str = "unchanged"
    """`changed`, `unchanged`, `failed` (rolled back), `undone` (blamed by the verifier)."""
    error: str | None = None
    rewrites: list[RewriteRecord] = field(default_factory=list[RewriteRecord])
    refusals: list[RefusalRecord] = field(default_factory=list[RefusalRecord])
    nodes_before: int = 0
    nodes_after: int = 0
    bytes_folded: int = 0
    bytes_saved: int | None = None
    """By how much the activations that one forward of the example holds at a time have become
    less; None where that was not measured."""
    seconds: float = 0.0


@dataclass(slots=True)
class CheckRecord:
    """One comparison of the verifier."""

    name: str
    """`site`, `fold`, `meaning`, `precision`, `state`, `structure`, `aliasing`, `gradient`, ..."""
    probe: str
    ok: bool
    error: float | None = None
    bound: float | None = None
    where: str = ""
    message: str = ""
    against: str = ""
    """What it was compared with, where that is not the original."""


@dataclass(slots=True)
class PieceRecord:
    """Passes between two that change the meaning by request, or one of those by itself."""

    passes: list[str]
    """`3 swap_relu`, `1 dce (round 2)`."""
    against: str = ""
    """What they were compared with, where that is not the original."""
    ok: bool | None = None
    changes_meaning: bool = False
    difference: float | None = None
    """Relative L2 by which the outputs of the example were changed on purpose; None also where
    they cannot be told apart by a number."""
    forwards: int = 0


@dataclass(slots=True)
class VerificationRecord:
    level: str = "off"
    ok: bool | None = None
    """None: not verified, or not comparable; `notes` say why."""
    rule: str = ""
    checks: list[CheckRecord] = field(default_factory=list[CheckRecord])
    forwards: int = 0
    own_error: float | None = None
    """E0: relative L2 error of the original itself against float64."""
    unverified: list[str] = field(default_factory=list[str])
    """Rewrites that no probe could reach."""
    undone: list[str] = field(default_factory=list[str])
    pieces: list[PieceRecord] = field(default_factory=list[PieceRecord])
    """What was verified against what, where a pass changes the meaning by request."""
    notes: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Record:
    """Everything that is known about one run."""

    model: str
    pipeline: str
    version: int = VERSION
    torch: str = ""
    target: str | None = None
    training: bool = False
    dry_run: bool = False
    capture: CaptureRecord = field(default_factory=CaptureRecord)
    passes: list[PassRecord] = field(default_factory=list[PassRecord])
    verification: VerificationRecord = field(default_factory=VerificationRecord)
    nodes_before: int = 0
    nodes_after: int = 0
    bytes_rewritten: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """By stage: `capture`, `passes`, `verify`."""
    notes: list[str] = field(default_factory=list[str])

    def as_dict(self) -> dict[str, Any]:
        return _plain(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The record that `as_dict` made `data` of.

        Raises:
            ValueError: `data` is of another version, or has fields that do not exist.
        """
        if data.get("version") != VERSION:
            raise ValueError(f"a record of version {data.get('version')}, expected {VERSION}")
        return _read(cls, data)


_ATOMS = frozenset((str, int, float, bool, type(None)))


def _plain(value: Any) -> Any:
    """Records as dictionaries, in containers of their own; `dataclasses.asdict` copies text too."""
    if type(value) in _ATOMS:
        return value
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in cast("dict[Any, Any]", value).items()}
    return value


def _read(kind: Any, data: Any) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        unknown = data.keys() - {f.name for f in fields(kind)}
        if unknown:
            raise ValueError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
        return kind(**{name: _read(hints[name], value) for name, value in data.items()})
    if get_origin(kind) is list:
        return [_read(get_args(kind)[0], item) for item in data]
    return data
