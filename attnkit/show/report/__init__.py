"""A report of runs as a web page, or as Markdown with figures."""

from attnkit.show.report.sections import report_of
from attnkit.show.report.writers import Report, markdown, page

__all__ = ["Report", "markdown", "page", "report_of"]
