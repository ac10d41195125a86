"""``python -m sinkgate``."""

from sinkgate.cli import main

raise SystemExit(main())
