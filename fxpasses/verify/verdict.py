"""What verification found out."""

from dataclasses import dataclass, field

from fxpasses.core.record import CheckRecord, VerificationRecord
from fxpasses.errors import VerificationError


@dataclass(frozen=True, slots=True)
class Blame:
    """A rewrite, or a whole pass (`id` is "" then), that makes the result wrong."""

    id: str
    pass_name: str
    node: str
    source: str | None
    message: str

    def __str__(self) -> str:
        rewrite = f" in {self.id}" if self.id else ""
        node = f" at {self.node}" if self.node else ""
        source = f" ({self.source})" if self.source else ""
        return f"{self.pass_name}{rewrite}{node}{source}: {self.message}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an optimised model computes what the original does, and how that was checked."""

    ok: bool
    """False only where something is wrong. Where nothing could be compared it is true, and
    `record.ok` is None."""
    record: VerificationRecord
    blame: list[Blame] = field(default_factory=list[Blame])

    @property
    def rule(self) -> str:
        """The rules that were applied, in words."""
        return self.record.rule

    @property
    def worst(self) -> CheckRecord | None:
        """The check that used up most of its bound."""
        return max(self.record.checks, key=_strictness, default=None)

    @property
    def outputs(self) -> list[CheckRecord]:
        """The checks that compared outputs."""
        return [check for check in self.record.checks if check.where.startswith("outputs")]

    @property
    def failures(self) -> list[CheckRecord]:
        return [check for check in self.record.checks if not check.ok]

    def raise_if_failed(self) -> None:
        """Return if nothing is wrong.

        Raises:
            VerificationError: naming pass, rewrite, node and source line where they are known,
                and else what differs by how much.
        """
        if self.ok:
            return
        found = [str(blame) for blame in self.blame]
        # What fails at a site is told by its blame.
        if not any(one.name in ("site", "fold") for one in self.failures):
            found += [_text(one) for one in self.failures]
        few = found[:5]
        if len(found) > len(few):
            few.append(f"... and {len(found) - len(few)} more")
        raise VerificationError(
            "the optimised model does not compute what the original computes: " + "; ".join(few),
            self.blame,
        )


def _strictness(check: CheckRecord) -> tuple[bool, float]:
    if not check.error:
        return (not check.ok, 0.0)
    return (not check.ok, check.error / check.bound if check.bound else float("inf"))


def _text(check: CheckRecord) -> str:
    where = f" at {check.where}" if check.where else ""
    against = f" (against {check.against})" if check.against else ""
    return f"{check.name}{where} on the probe {check.probe!r}: {check.message}{against}"
