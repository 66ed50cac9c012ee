"""Which rewrite, or which pass, is at fault."""

from collections.abc import Collection, Iterator, Sequence

from fxpasses.core import Program
from fxpasses.verify.raised import ProgramError
from fxpasses.verify.sites import PassRun, Site
from fxpasses.verify.told import silent_rewrites
from fxpasses.verify.verdict import Blame


def blames_of(
    passes: Sequence[PassRun],
    sites: Sequence[Site],
    *,
    programs: Sequence[Program],
    whole_failed: bool,
    raised: ProgramError | None = None,
) -> list[Blame]:
    """The rewrites that fail at their site; or the one at fault as a whole; or nothing.

    That is the one whose node `raised`, or the one pass with changes that no site has verified.
    `programs` are those that the rewrites are compared with.
    """
    found: dict[str, Blame] = {}
    for site in sites:
        if site.failure:
            applied = site.applied
            blame = Blame(applied.id, site.pass_name, applied.node, applied.source, site.failure)
            found.setdefault(applied.id, blame)
    if found or not whole_failed:
        return list(found.values())
    if raised is not None and (made := list(_makers(passes, raised))):
        return made
    suspects = list(_suspects(passes, sites, silent_rewrites(passes, programs)))
    return suspects if len(suspects) == 1 else []


def _makers(passes: Sequence[PassRun], raised: ProgramError) -> Iterator[Blame]:
    """The rewrite that made the node that raised."""
    if raised.node is None or raised.path is None:
        return
    for one in passes:
        for applied in one.applied.get(raised.path, ()):
            if raised.node.name in applied.created:
                message = f"the result raises {raised}"
                yield Blame(applied.id, one.record.name, applied.node, applied.source, message)


def _suspects(
    passes: Sequence[PassRun], sites: Sequence[Site], silent: Collection[str]
) -> Iterator[Blame]:
    """Passes with changes that no site has verified, and that may show in values."""
    verified = {site.applied.id for site in sites if site.reached and not site.failure}
    message = "the result is wrong as a whole, and only this pass did what no site verifies"
    changed = [one for one in passes if one.record.status != "unchanged"]
    for one in changed:
        made = [applied for several in one.applied.values() for applied in several]
        open_ones = [
            applied
            for applied in made
            if applied.id not in silent or (applied.replacements and applied.id not in verified)
        ]
        if len(open_ones) == 1:
            applied = open_ones[0]
            yield Blame(applied.id, one.record.name, applied.node, applied.source, message)
        elif open_ones or not made:
            yield Blame("", one.record.name, "", None, message)


def unverified(sites: Sequence[Site]) -> list[str]:
    """Rewrites that could not be verified at their site, and why."""
    reasons = (
        f"{site.applied.id}: {site.unverified}"
        for site in sites
        if not site.reached and not site.failure
    )
    return list(dict.fromkeys(reasons))


def fill_record(passes: Sequence[PassRun], sites: Sequence[Site]) -> None:
    """Write into the record of each rewrite how it was verified."""
    by_id: dict[str, list[Site]] = {}
    for site in sites:
        by_id.setdefault(site.applied.id, []).append(site)
    for one in passes:
        for rewrite in one.record.rewrites:
            mine = by_id.get(rewrite.id)
            if mine is None:
                rewrite.verified = "whole"
                continue
            strictest = max(mine, key=lambda site: site.strictness)
            rewrite.error, rewrite.bound = strictest.error, strictest.bound
            rewrite.verified = _how(mine)


def _how(sites: Sequence[Site]) -> str:
    for site in sites:
        if site.failure:
            return f"no: {site.failure}"
    for site in sites:
        if not site.reached:
            return f"no: {site.unverified}"
    return "site"
