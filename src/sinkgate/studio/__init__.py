"""Floor 8: the studio, a local server that shows records in the pages of ``report.html`` and does live work.

``app.py`` puts it together from one small file per kind of work; each has ``routes(studio)``. ``guard.py`` decides who
may ask, ``records.py`` what can be shown, ``jobs.py`` how much may run at once, ``serve.py`` runs it.
"""

from __future__ import annotations

from sinkgate.studio.app import Studio, create_app

__all__ = ["Studio", "create_app"]
