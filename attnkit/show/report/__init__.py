"""A report of runs as one web page, or as Markdown with drawings."""

from attnkit.show.report.blocks import Report
from attnkit.show.report.sections import report_of
from attnkit.show.report.writers import markdown, page

__all__ = ["Report", "markdown", "page", "report_of"]
