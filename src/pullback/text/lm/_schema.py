"""Structured output: a JSON schema, or a pydantic model, and answers read by it."""

from collections.abc import Mapping
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError, ReplyError
from pullback.internal._extras import require
from pullback.text.lm._json import parse_json

__all__ = ["check_schema", "json_schema", "read_answer"]

Schema = Mapping[str, Any] | type
_PURPOSE = "Structured output by a JSON schema"


def json_schema(schema: Any) -> dict[str, Any]:
    """The JSON schema of a pydantic model, or the schema itself.

    Raises:
        ArgumentTypeError: it is neither.
    """
    if isinstance(schema, Mapping):
        return dict(schema)
    if hasattr(schema, "model_json_schema"):
        return dict(schema.model_json_schema())
    raise ArgumentTypeError(
        "A schema is a JSON schema or a pydantic model.", given=repr(schema)[:200],
        expected="a dict such as {'type': 'object', ...}, or a subclass of pydantic.BaseModel",
    )  # fmt: skip


def check_schema(schema: Any) -> None:
    """Refuse what is no schema, before anything is paid for.

    Raises:
        ArgumentError: a dictionary that is no valid JSON schema, or another type.
    """
    whole = json_schema(schema)
    if isinstance(schema, Mapping):
        jsonschema = require("jsonschema", extra="text", purpose=_PURPOSE)
        kind = jsonschema.validators.validator_for(whole)
        try:
            kind.check_schema(whole)
        except jsonschema.SchemaError as error:
            raise ArgumentError("This is no JSON schema.", given=error.message) from None


def read_answer(text: str, schema: Any) -> Any:
    """An answer read by its schema: an instance of the pydantic model, or plain JSON.

    Raises:
        ReplyError: it is no JSON, or breaks the schema; the message says where.
    """
    value = parse_json(text, "its answer")
    if isinstance(schema, Mapping):
        jsonschema = require("jsonschema", extra="text", purpose=_PURPOSE)
        validator = jsonschema.validators.validator_for(dict(schema))(dict(schema))
        error = next(iter(validator.iter_errors(value)), None)
        if error is None:
            return value
        place, what = error.json_path, error.message
    else:
        try:
            return schema.model_validate(value)
        except ValueError as error:  # pydantic's ValidationError is one
            place, what = schema.__name__, str(error)
    raise ReplyError("The answer of the model breaks its schema.", given=f"{place}: {what}"[:600],
                     expected="an answer that the schema allows")  # fmt: skip
