"""Collects what one verification finds."""

from dataclasses import dataclass, field

from fxpasses.core.record import CheckRecord, VerificationRecord
from fxpasses.verify.compare import Difference
from fxpasses.verify.trail import Key


@dataclass(slots=True, eq=False)
class Findings:
    """The record under way."""

    record: VerificationRecord = field(default_factory=VerificationRecord)
    against: str = ""
    """What everything is compared with, where that is not the original."""

    def add(
        self,
        name: str,
        probe: str,
        *,
        error: float | None = None,
        bound: float | None = None,
        where: str = "",
        message: str = "",
        ok: bool | None = None,
    ) -> bool:
        """Keep a check. It failed if there is a message, unless `ok` says otherwise."""
        passed = not message if ok is None else ok
        check = CheckRecord(name, probe, passed, error, bound, where, message, self.against)
        self.record.checks.append(check)
        return passed

    def judge(
        self, name: str, probe: str, key: Key, found: Difference, bound: float, unit: str
    ) -> bool:
        """Keep a comparison of values against its bound."""
        message = ""
        if found.in_kind:
            message = found.message
        elif not found.error <= bound:
            message = f"{unit} {found.error:.1e} is above the bound {bound:.1e}"
        error = None if found.in_kind else found.error
        place = where(key) + found.where
        return self.add(name, probe, error=error, bound=bound, where=place, message=message)

    def note(self, text: str) -> None:
        if text not in self.record.notes:
            self.record.notes.append(text)

    @property
    def failed(self) -> bool:
        return any(not check.ok for check in self.record.checks)

    @property
    def passes_failed(self) -> bool:
        """Whether anything failed that a pass can be at fault for: not the capture itself."""
        return any(not check.ok and check.name != "capture" for check in self.record.checks)


def where(key: Key) -> str:
    """A place on a trail in words."""
    match key:
        case ("outputs", *_):
            return "outputs"
        case (str(path), int(call), str(node), *rest):
            times = f", call {call}" if call > 1 else ""
            op = f" ({rest[0]})" if rest and isinstance(rest[0], str) else ""
            return f"{path or 'the model'}/{node}{op}{times}"
        case ("outside", str(op), int(number)):
            return f"{op}, number {number + 1}, in code that runs as it is"
        case _:
            return " ".join(str(part) for part in key)
