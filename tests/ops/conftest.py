"""The slow runs in processes of their own begin with the session and are asked for when their tests come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    import test_triton

    wanted = {
        name for item in session.items for name in getattr(item, "fixturenames", ()) if "test_triton" in item.nodeid
    }
    if test_triton.ops.missing() or session.config.option.collectonly:
        return
    for fixture, mode in (("interpreted", "interpreted"), ("on_no_card", "compiled")):
        if fixture in wanted:
            test_triton.start(mode)


@pytest.fixture(scope="session", autouse=True)
def stop_what_was_started() -> Iterator[None]:
    yield
    import test_triton

    for process, output in test_triton.RUNNING.values():
        process.kill()
        process.wait()
        output.cleanup()
