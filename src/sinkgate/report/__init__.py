"""The offline report: one self-contained HTML page that shows a diagnosis, and the sources of that page."""
