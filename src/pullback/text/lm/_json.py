"""JSON that can be compared, JSON that a model wrote, and the schemas that it is read by."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pullback.errors import ArgumentError, ArgumentTypeError, ReplyError
from pullback.internal._extras import require
from pullback.internal._text import shortened
from pullback.tape._layout import below

__all__ = [
    "canonical", "check_schema", "digest_of", "json_schema", "parse_json", "parse_object",
    "past_thoughts", "read_answer",
]  # fmt: skip


T = TypeVar("T")

SEARCHED = 20_000  # characters, for JSON among words
NESTED = 100  # levels; Python's stack ends at some hundreds of them


def canonical(value: Any) -> str:
    """The one JSON text of a value: ASCII, keys sorted, no spaces, no NaN; equal in any process."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of(value: Any) -> str:
    """SHA-256 of the one JSON text of a value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


_THOUGHT = re.compile(r"\s*<(think|thinking|thought|reasoning)>(?:.*?</\1>)?", re.DOTALL)


def past_thoughts(read: Callable[[str], T], answer: str) -> T:
    """What an answer says, read behind what its model has thought aloud before it.

    A server that does not take that out leaves it there; some have put its first tag into the
    prompt, so that the last stands alone. A draft in it is no answer. No answer, and so no quote in
    one, begins with such a tag; one that has a last tag alone is read as it is, if it can be.
    """
    said = answer.removeprefix("\ufeff")
    thought = _THOUGHT.match(said)
    if thought is not None:
        if not thought[0].endswith(f"</{thought[1]}>"):
            raise ReplyError("The model was thinking when its answer ended.",
                             given=repr(shortened(answer, 200)))  # fmt: skip
        return read(said[thought.end() :])
    try:
        return read(said)
    except ReplyError:
        _, end, rest = said.partition("</think>")
        if not end:
            raise
    return read(rest)


def _bare(text: str) -> str:
    """What stands in a Markdown fence, where one is around the whole."""
    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```") and "\n" in bare:
        return bare.split("\n", 1)[1].removesuffix("```").strip()
    return bare


def parse_json(text: str, what: str, kind: type | None = None) -> Any:
    """Read JSON of some kind that a model wrote; a Markdown fence around it is taken off.

    One that is nested deeper than any program would go through is refused.
    """
    try:
        value = json.loads(_bare(text), **_STRICT)
    except (ValueError, RecursionError) as error:
        raise ReplyError(
            f"The model did not write JSON as {what}.",
            given=f"{shortened(text, 200)!r} ({error})", expected="one JSON value",
        ) from None  # fmt: skip
    if kind is not None and not isinstance(value, kind):
        raise ReplyError(f"The model wrote another kind of JSON as {what}.",
                         given=repr(shortened(text, 200)), expected=kind.__name__)  # fmt: skip
    level = [value]
    for _ in range(NESTED):
        level = [entry for each in level for entry in below(each)]
    if level:
        raise ReplyError(f"The model nested JSON too deep as {what}.",
                         given=repr(shortened(text, 200)), expected=f"{NESTED} levels")  # fmt: skip
    return value


def parse_object(
    text: str, what: str, keys: tuple[str, ...], data: Sequence[str] = ()
) -> dict[str, Any]:
    """Read the one JSON object with these keys that a model wrote, alone or among other words.

    One that stands in the data as well is a quote: who only repeats it has said nothing.
    """
    try:
        found = [(parse_json(text, what, kind=dict), _bare(text))]
    except ReplyError:
        objects = _objects(text[:SEARCHED])
        found = [(each, said) for each, said in objects if all(key in each for key in keys)]
        if not found:
            raise
    own = [each for each, said in found if not any(said in given for given in data)]
    if not own:
        raise ReplyError(f"The model only repeats, as {what}, what stands in the data.",
                         given=repr(shortened(text, 200)))  # fmt: skip
    if any(each != own[0] for each in own):
        raise ReplyError(f"The model wrote more than one JSON object as {what}.",
                         given=repr(shortened(text, 200)), expected="one")  # fmt: skip
    return own[0]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object that says each thing once: of two, one may be what a text has put there."""
    found = dict(pairs)
    for name, value in pairs:
        if found[name] != value:
            raise ValueError(f"{name!r} stands there twice")
    return found


def _constant(name: str) -> Any:
    """Refuse NaN and infinities, which Python reads and JSON, and so a journal, does not have."""
    raise ValueError(f"{name} is no number of JSON")


def _number(digits: str) -> float:
    """Refuse what is too large for a float: Python reads it as an infinity."""
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:40]} is beyond all floats")
    return number


_STRICT: Any = {
    "object_pairs_hook": _object, "parse_constant": _constant, "parse_float": _number,
}  # fmt: skip


def _objects(text: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The JSON objects in a text, as they stand there, those inside of others left out."""
    decoder = json.JSONDecoder(**_STRICT)
    place = text.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = place + 1
        else:
            yield value, text[place:end]
        place = text.find("{", end)


def _needed(module: str) -> Any:
    return require(module, extra="text", purpose="Structured output by a JSON schema")


def _validator(schema: dict[str, Any]) -> Any:
    """What reads by a schema, and by those of the standard; none is fetched from elsewhere."""
    known = _needed("jsonschema_specifications").REGISTRY
    return _needed("jsonschema").validators.validator_for(schema)(schema, registry=known)


def _look_up(resource: Any, resolver: Any) -> None:
    """Follow every reference of a schema."""
    if isinstance(resource.contents, Mapping) and "$ref" in resource.contents:
        resolver.lookup(resource.contents["$ref"])
    for part in resource.subresources():
        _look_up(part, resolver.in_subresource(part))


def json_schema(schema: Any) -> dict[str, Any]:
    """The JSON schema of a pydantic model, or the schema itself; what is neither is refused."""
    if isinstance(schema, Mapping):
        return dict(schema)
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        return dict(schema.model_json_schema())
    raise ArgumentTypeError(
        "A schema is a JSON schema or a pydantic model.", given=repr(schema)[:200],
        expected="a dict such as {'type': 'object', ...}, or a subclass of pydantic.BaseModel",
    )  # fmt: skip


def check_schema(schema: Any) -> None:
    """Refuse what is no valid JSON schema or pydantic model, before anything is paid for."""
    whole = json_schema(schema)
    if not isinstance(schema, Mapping):
        return
    referencing, validator = _needed("referencing"), _validator(whole)
    try:
        validator.check_schema(whole)
        root = referencing.Resource.from_contents(
            whole, default_specification=_needed("referencing.jsonschema").DRAFT202012
        )
        _look_up(root, _needed("jsonschema_specifications").REGISTRY.resolver_with_root(root))
    except (_needed("jsonschema").SchemaError, referencing.exceptions.Unresolvable) as error:
        why = getattr(error, "message", f"no schema is there at {getattr(error, 'ref', error)!r}")
        raise ArgumentError("This is no JSON schema.", given=why) from None


def read_answer(text: str, schema: Any) -> Any:
    """An answer that follows its schema: an instance of the pydantic model, or plain JSON."""
    value = past_thoughts(lambda said: parse_json(said, "its answer"), text)
    if isinstance(schema, Mapping):
        errors = _validator(dict(schema)).iter_errors(value)
        error = next(iter(errors), None)
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
