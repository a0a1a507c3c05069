"""What may have been meant where a rule breaks the contract: slips of use, not of mathematics.

Each is an edit of the author's source by its structure: an operation in place made out of place, a
view that needs contiguous memory made one that does not, what calls share kept by each call.
"""

import ast
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pullback.conformance.source._dimensions import from_the_end
from pullback.conformance.source._sources import Source
from pullback.conformance.source._written import Edit, Expression, Written, names_in

__all__ = ["Rules", "out_of_place", "slips"]

_NOT_IN_PLACE = ("requires_grad_", "share_memory_", "retain_grad_")
_ANEW = {"zero_": "torch.zeros_like({0})", "fill_": "torch.full_like({0}, {1})",
         "copy_": "({1}).expand_as({0}).clone()"}  # fmt: skip
_SIGNS: Mapping[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.MatMult: "@",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.Mod: "%", ast.FloorDiv: "//",
}  # fmt: skip
_MADE = ("zeros", "ones", "empty", "full", "tensor", "eye", "linspace", "rand", "randn", "arange")
_DRAWN = ("bernoulli", "multinomial", "normal", "rand", "randint", "randn", "randperm")
_OF_CONTEXT = ("saved_tensors", "saved_variables", "save_for_backward", "needs_input_grad",
               "mark_dirty", "mark_non_differentiable", "set_materialize_grads")  # fmt: skip
_CASTS = ("float", "double", "half", "bfloat16")


@dataclass(frozen=True)
class Rules:
    """The rules of a Function, as they are written."""

    kind: Any  # the Function
    # by what they do: ``back``; ``fill``, what fills the context; ``forward``, if that is another
    sources: Mapping[str, Source]

    @property
    def back(self) -> Written | None:
        return self.sources["back"].rule if "back" in self.sources else None

    @property
    def fill(self) -> Written | None:
        return self.sources["fill"].rule if "fill" in self.sources else None

    @cached_property
    def every(self) -> Sequence[Written]:
        """They, and what they call."""
        rules = [rule for source in self.sources.values() for rule in source.rules]
        return [*{rule.function: rule for rule in rules}.values()]

    def places(self, *kinds: type[ast.AST]) -> Iterator[Expression]:
        """The nodes of some kinds."""
        return (Expression(rule, node) for rule in self.every for node in rule.nodes(*kinds))


def slips(clause: str, rules: Rules) -> Iterator[Edit]:
    """The edits after which a clause may hold."""
    for made in _BY_CLAUSE.get(clause, ()):
        yield from made(rules)


_Made = Callable[[Rules], Iterator[Edit]]
_Texts = Callable[[Written, Any], Iterator[str]]


def _each(texts: _Texts) -> _Made:
    """The edits of one node, of what each may have been meant for."""
    return lambda rules: ({e: text} for e in rules.places(ast.AST) for text in texts(*e))


def _singly(edit: Edit) -> Iterator[Edit]:
    """The parts of an edit, each alone, and all."""
    yield from ({e: text} for e, text in edit.items())
    if len(edit) > 1:
        yield edit


def out_of_place(rule: Written, node: Any) -> Iterator[str]:
    """How an operation in place is written out of place, or that on some entries on a copy."""
    match node:
        case ast.Call():
            text, lone = _anew(rule, node), isinstance(rule.parent[node], ast.Expr)
            target = _written_to(rule, node) if lone else ""
            if text and (target or not lone):
                yield f"{target} = {text}" if target else text
        case ast.AugAssign(target=ast.Name(id=name), op=op, value=by) if type(op) in _SIGNS:
            yield f"{name} = {name} {_SIGNS[type(op)]} {rule.atom(by)}"
        case (
            ast.AugAssign(target=ast.Subscript(value=ast.Name(id=name)))
            | ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name)), *_])
        ):
            yield f"{name} = {name}.clone(); {rule.text(node)}"
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=ast.Subscript(value=ast.Name(id=name)), attr=how)
            )
        ) if how.endswith("_"):
            yield f"{name} = {name}.clone(); {rule.text(node)}"


def _anew(rule: Written, node: ast.Call) -> str:
    """A call in place, out of place; empty for another one."""
    for keyword in node.keywords:
        if keyword.arg == "out":
            return _with(rule, node, "out")
        if keyword.arg == "inplace" and getattr(keyword.value, "value", None) is True:
            return rule.spliced({keyword.value: "False"}, node)
    name = getattr(node.func, "attr", "")
    if not name.endswith("_") or name.endswith("__") or name in _NOT_IN_PLACE:
        return ""
    owner = rule.text(_behind(node.func.value))  # type: ignore[attr-defined]
    if name in _ANEW:
        return _ANEW[name].format(owner, *(rule.text(n) for n in node.args), "0")
    return rule.spliced({node.func: f"{owner}.{name[:-1]}"}, node)


def _with(rule: Written, node: ast.Call, keyword: str, *values: str) -> str:
    """A call with another value for a keyword, or without it."""
    given = [n for n in (*node.args, *node.keywords) if getattr(n, "arg", "") != keyword]
    parts = [*(rule.text(n) for n in given), *(f"{keyword}={value}" for value in values)]
    return f"{rule.text(node.func)}({', '.join(parts)})"


def _written_to(rule: Written, node: ast.Call) -> str:
    """What a call in place, whose value nobody takes, writes to; empty where it is no name."""
    out = [keyword.value for keyword in node.keywords if keyword.arg == "out"]
    of_module = names_in(node.func)[:1] in (["torch"], ["F"], ["nn"])
    owner = getattr(node.func, "value", None)
    first = node.args[0] if node.args else None
    target = out[0] if out else first if of_module or owner is None else _behind(owner)
    return rule.text(target) if isinstance(target, ast.Name) else ""


def _behind(node: Any) -> Any:
    """The tensor whose memory something is, where its version counter is gone round."""
    match node:
        case (
            ast.Attribute(value=of, attr="data")
            | ast.Call(func=ast.Attribute(value=of, attr="detach"))
        ):
            return of
    return node


def _reshaped(rule: Written, node: Any) -> Iterator[str]:
    """A view of any memory."""
    match node:
        case ast.Call(func=ast.Attribute(value=of, attr="view")):
            yield rule.spliced({node.func: f"{rule.text(of)}.reshape"}, node)


def _contiguous(rules: Rules) -> Iterator[Edit]:
    """What is read, contiguous: at one place, or at all."""
    for rule in rules.every:
        for name in rule.given:
            places = [Expression(rule, n) for n in rule.reads if n.id == name]
            yield from _singly(dict.fromkeys(places, f"{name}.contiguous()"))


def _cloned(*around: type[ast.AST]) -> _Made:
    """A copy of an argument, where it is handed on, or gets another name."""

    def cloned(rule: Written, node: Any) -> Iterator[str]:
        read = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        if read and node.id in rule.given and isinstance(rule.parent[node], around):
            yield f"{node.id}.clone()"

    return _each(cloned)


def _flags(rules: Rules) -> Iterator[Edit]:
    """The flag of another argument, or of any; that of the argument for one of a tensor."""
    asked = f"{_context(rules.back) if rules.back is not None else 'ctx'}.needs_input_grad"
    count = len(rules.fill.given) - 1 if rules.fill is not None else 0
    others = [f"{asked}[{k}]" for k in range(count)]
    for e in rules.places(ast.Subscript):
        if e.rule.text(e.node.value) == asked:
            yield from ({e: text} for text in (*others, f"any({asked})") if text != e.text)
    for e in rules.places(ast.Attribute):
        if e.node.attr in ("requires_grad", "is_leaf") and isinstance(e.node.ctx, ast.Load):
            yield from ({e: text} for text in others)


def _toggled(rule: Written, node: Any) -> Iterator[str]:
    """Zeros for a cotangent that is ``None``."""
    match node:
        case ast.Call(func=ast.Attribute(attr="set_materialize_grads"), args=[flag, *_]):
            yield rule.spliced({flag: "True"}, node)


def _by_name(
    places: Iterable[Expression], name_of: Callable[[Expression], str]
) -> Mapping[str, list[Expression]]:
    """Where something is read or written, by its name."""
    found: dict[str, list[Expression]] = {}
    for e in places:
        if name := name_of(e):
            found.setdefault(name, []).append(e)
    return found


def _on_context(rules: Rules) -> Iterator[Edit]:
    """What forward leaves on the class or in a dictionary beside it, on its context or saved."""
    owners = {name for rule in rules.every for name, value in rule.function.__globals__.items()
              if isinstance(value, type) and value in rules.kind.__mro__}  # fmt: skip
    places = rules.places(ast.Attribute, ast.Subscript)
    for name, some in _by_name(places, lambda e: _shared_name(e, owners)).items():
        own = all(e.rule in (rules.back, rules.fill) for e in some)
        if own and any(isinstance(e.node.ctx, ast.Store) for e in some):
            # Saved first: an output as an attribute of its context is never let go of.
            yield from _into_saved(name, some, rules)
            yield {e: f"{_context(e.rule)}.{name}" for e in some}


def _shared_name(e: Expression, owners: Collection[str]) -> str:
    """The name of what calls share; empty for anything else."""
    match e.node:
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in owners:
            return "" if isinstance(e.rule.parent[e.node], ast.Subscript) else name
        case ast.Subscript(value=of, slice=ast.Constant(value=str(key))) if key.isidentifier():
            path = names_in(of)
            beside = len(path) == 1 or (len(path) == 2 and path[0] in owners)
            return key if beside and path[0] not in e.rule.local else ""
    return ""


def _anew_each_call(rules: Rules) -> Iterator[Edit]:
    """What is made where it is not there yet, and kept beside the rule, made in each call."""
    for e in rules.places(ast.If):
        targets = [t for n in ast.walk(e.node) for t in getattr(n, "targets", ())]
        kept = [names_in(getattr(t, "value", None)) for t in targets]
        if any(path and path[0] not in e.rule.local for path in kept):
            yield {Expression(e.rule, e.node.test): "True"}


def _saved(rules: Rules) -> Iterator[Edit]:
    """A tensor that forward leaves on its context, saved."""

    def left(e: Expression) -> str:
        context, *name = names_in(e.node) or [""]
        own = e.rule in (rules.back, rules.fill) and context == _context(e.rule)
        return name[0] if own and len(name) == 1 and name[0] not in _OF_CONTEXT else ""

    for name, places in _by_name(rules.places(ast.Attribute), left).items():
        yield from _into_saved(name, places, rules)


def _into_saved(name: str, places: Sequence[Expression], rules: Rules) -> Iterator[Edit]:
    """What is kept at some places, saved: written once in forward, and read in backward."""
    back, fill = rules.back, rules.fill
    if back is None or fill is None:
        return
    stores = [fill.parent[n] for rule, n in places
              if rule is fill and isinstance(n.ctx, ast.Store)]  # fmt: skip
    store = stores[0] if len(stores) == 1 else None
    if not isinstance(store, ast.Assign) or len(store.targets) > 1:
        return
    for value in _sources(store.value):
        free = name if name not in fill.local else f"saved_{name}"
        local = value.id if isinstance(value, ast.Name) else free
        text = "" if isinstance(value, ast.Name) else f"{local} = {fill.text(value)}"
        within = {*ast.walk(store)}
        edit = {e: local for e in places if e.rule is fill and e.node not in within}
        save, before = _saving(local, back, fill)
        if not save:
            text = f"{text}; ".lstrip("; ") + f"{_context(fill)}.save_for_backward({local})"
        for n in (n for rule, n in places if rule is back):
            gone = isinstance(n.ctx, ast.Del)
            read = "pass" if gone else f"{_context(back)}.saved_tensors[{before}]"
            edit[Expression(back, back.parent[n] if gone else n)] = read
        yield {Expression(fill, store): text or "pass"} | save | edit


def _sources(value: Any) -> Iterator[Any]:
    """What a value is a copy of to which autograd sees no way, and the value."""
    match value:
        case (
            ast.Attribute(value=of, attr="data")
            | ast.Call(func=ast.Attribute(value=of, attr="detach" | "clone"))
        ):
            yield from _sources(of)
    yield value


def _saving(local: str, back: Written, fill: Written) -> tuple[dict[Expression, str], int]:
    """A name saved beside what is saved, if anything is, and how many there are before it."""
    asked = f"{_context(back)}.saved_tensors"
    for call in fill.nodes(ast.Call):
        if names_in(call.func)[1:] == ["save_for_backward"] and call.args:
            last, before = call.args[-1], len(call.args)
            text = fill.spliced({last: f"{fill.text(last)}, {local}"}, call)
            unpacked = [n.value for n in back.nodes(ast.Assign) if back.text(n.value) == asked]
            edit = {Expression(back, n): f"{asked}[:{before}]" for n in unpacked}
            return {Expression(fill, call): text, **edit}, before
    return {}, 0


def _context(rule: Written) -> str:
    """How a rule calls its context."""
    return rule.given[0]


def _returned(rules: Rules) -> Iterator[Edit]:
    """What is returned, memory of the call's own."""
    for e in rules.places(ast.Return):
        for part in getattr(e.node.value, "elts", [e.node.value]):
            if part is not None and not isinstance(part, ast.Constant):
                yield {Expression(e.rule, part): f"{e.rule.atom(part)}.clone()"}


def _in_order(rules: Rules) -> Iterator[Edit]:
    """Two of the gradients that are returned, each at the place of the other."""
    for e in rules.places(ast.Return):
        parts = getattr(e.node.value, "elts", []) if e.rule is rules.back else []
        texts = {Expression(e.rule, part): e.rule.text(part) for part in parts}
        for one, other in itertools.combinations(texts, 2):
            if texts[one] != texts[other]:
                yield {one: texts[other], other: texts[one]}


def _answered(rules: Rules) -> Iterator[Edit]:
    """What fills the context beside forward, without the value returned: nobody takes it."""
    fill = rules.fill
    if fill is None or "forward" not in rules.sources:
        return
    for node in fill.nodes(ast.Return):
        if node.value is not None:
            done = f"{fill.text(node.value)}; " * isinstance(node.value, ast.Call)
            yield {Expression(fill, node): f"{done}return"}


def _typed(rule: Written, node: Any) -> Iterator[str]:
    """What is made or cast in a dtype of its own, in that of what is given."""
    dtypes = [f"{name}.dtype" for name in rule.given]
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=made)) if made in _MADE:
            yield from (_with(rule, node, "dtype", dtype) for dtype in dtypes)
        case ast.Call(func=ast.Attribute(value=of, attr=cast)) if cast in (*_CASTS, "to"):
            yield from (f"{rule.text(of)}.to({dtype})" for dtype in dtypes if cast != "to")
            yield rule.text(of)


def _from_the_end(rules: Rules) -> Iterator[Edit]:
    for rule in rules.every:
        yield from from_the_end(rule)


def _drawn(rule: Written, node: Any) -> Iterator[str]:
    """What is drawn from the generator of all, from that of the call."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=drawn)):
            if drawn in _DRAWN and all(keyword.arg != "generator" for keyword in node.keywords):
                yield from (_with(rule, node, "generator", name) for name in sorted(rule.local))


def _attached(rules: Rules) -> Iterator[Edit]:
    """What backward detaches, with its history: each alone, and all."""
    every = {e: _behind(e.node) for e in rules.places(ast.Call, ast.Attribute)}
    yield from _singly({e: e.rule.atom(behind) for e, behind in every.items()
                        if e.rule is rules.back and behind is not e.node})  # fmt: skip


_out, _handed_on, _named = _each(out_of_place), _cloned(ast.Call, ast.Tuple), _cloned(ast.Assign)
_BY_CLAUSE: Mapping[str, Sequence[_Made]] = {
    "cotangent": (_named, _out, _handed_on), "retain": (_each(_drawn), _out),
    "mutation": (_named, _out, _handed_on),
    "stale": (_saved, _out, _returned), "state": (_on_context, _out, _returned),
    "deterministic": (_anew_each_call, _on_context, _out), "alias": (_out, _returned),
    "needs-input-grad": (_flags,), "layout": (_each(_reshaped), _flags, _contiguous),
    "undefined": (_each(_toggled),), "saved": (_saved,), "double": (_attached, _saved),
    "dtype": (_each(_typed),), "autocast": (_each(_typed),),
    "form": (_in_order,), "leak": (_answered,), "rank": (_from_the_end,), "batch": (_from_the_end,),
}  # fmt: skip
