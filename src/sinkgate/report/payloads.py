"""From any record to what its page draws: one function for each kind."""

from __future__ import annotations

from typing import Any

__all__ = ["payload_of"]


def payload_of(record: Any) -> dict[str, Any]:
    """The payload of a record's page, in plain JSON types."""
    from sinkgate.record import Diagnosis

    if isinstance(record, Diagnosis):
        from sinkgate.report.payload import payload

        return payload(record)
    if type(record).__module__ == "sinkgate.interventions.effects":  # whose import needs torch
        from sinkgate.report import effects

        return effects.payload(record)
    from sinkgate.lab.comparison_record import Comparison

    if isinstance(record, Comparison):
        from sinkgate.report.lab_payload import lab_payload

        return lab_payload(record)
    if type(record).__module__ == "sinkgate.planning.record":  # likewise
        from sinkgate.report.plan_payload import plan_payload

        return plan_payload(record)
    from sinkgate.files import jsonable

    found: dict[str, Any] = jsonable(record.to_json())
    return found
