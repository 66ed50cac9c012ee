"""What a run did, for people and for programs."""

from fxpasses.page.report import Report, plan, report

__all__ = ["Report", "plan", "report"]
