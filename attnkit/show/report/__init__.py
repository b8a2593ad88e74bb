"""A report of runs as one web page, or as Markdown with drawings."""

from attnkit.show.report.blocks import Report
from attnkit.show.report.document import MarkdownReport, markdown
from attnkit.show.report.page import page
from attnkit.show.report.sections import report_of

__all__ = ["MarkdownReport", "Report", "markdown", "page", "report_of"]
