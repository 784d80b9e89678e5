"""What a web server's log tells."""

from traffic.lines import Entry, parse_line
from traffic.report import Report

__all__ = ["Entry", "Report", "parse_line"]
