"""The report as one JSON document; ``schema.json`` beside this file is its JSON Schema."""

import inspect
import json
import math
from dataclasses import replace
from typing import Any, Dict

import msgspec
from ddp_doctor.model import Report
from ddp_doctor.report import Options


def render(report: Report, options: Options) -> str:
    """Keys stand in the order of ``model.Report``; ASCII alone, so that it passes any terminal; never NaN.

    ``document.report_from`` reads it back as an equal Report.
    """
    return (
        json.dumps(
            _writable(msgspec.to_builtins(replace(report, verdicts=tuple(report.verdicts)))), indent=2, allow_nan=False
        )
        + "\n"
    )


def schema() -> Dict[str, Any]:
    """The JSON Schema of the document, made from the types in ``model``; the same whatever msgspec and Python make it."""
    made = _settled(msgspec.json.schema(Report))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "ddp-doctor report", **made}


def _settled(schema: Any) -> Any:
    """Without what versions of msgspec and Python write differently: empty defaults, indentation of docstrings."""
    if isinstance(schema, list):
        return [_settled(each) for each in schema]
    if not isinstance(schema, dict):
        return inspect.cleandoc(schema) if isinstance(schema, str) else schema
    return {key: _settled(each) for key, each in schema.items() if not (key == "default" and each in ({}, []))}


def _writable(value: Any) -> Any:
    """Plain data without what JSON cannot hold: NaN and infinity become null, lone surrogates escapes."""
    if isinstance(value, dict):
        return {_writable(key): _writable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_writable(each) for each in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return None if isinstance(value, float) and not math.isfinite(value) else value
