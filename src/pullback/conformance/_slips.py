"""What may have been meant where a rule breaks the contract: slips of use, not of mathematics.

Each is an edit of the author's source by its structure: an operation in place made out of place, a
view that needs contiguous memory made one that does not, what calls share kept by each call.
"""

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pullback.conformance._written import Written, names_in

__all__ = ["Edit", "Rules", "out_of_place", "slips"]

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

Edit = Mapping[tuple[Written, Any], str]
"""Other texts of nodes, each of a rule."""


class Rules(NamedTuple):
    """The rules of a Function, as they are written."""

    kind: Any  # the Function
    back: Written | None
    fill: Written | None  # what fills the context
    every: Sequence[Written]  # they, forward where that is another one, and what they call


def slips(clause: str, rules: Rules) -> Iterator[Edit]:
    """The edits after which a clause may hold."""
    for made in _BY_CLAUSE.get(clause, ()):
        yield from made(rules)


def _nodes(rules: Rules, *kinds: type[ast.AST]) -> Iterator[tuple[Written, Any]]:
    for rule in rules.every:
        yield from ((rule, node) for node in ast.walk(rule.tree) if isinstance(node, kinds))


def _out_of_place(rules: Rules) -> Iterator[Edit]:
    for rule in rules.every:
        yield from ({(rule, node): text} for node, text in out_of_place(rule))


def out_of_place(rule: Written) -> Iterator[tuple[Any, str]]:
    """Each operation in place of a rule, and how it is written out of place."""
    for node in ast.walk(rule.tree):
        if isinstance(node, (ast.Call, ast.AugAssign)):
            text = _anew(rule, node) if isinstance(node, ast.Call) else _bound_anew(rule, node)
            lone = isinstance(rule.parent[node], ast.Expr)
            target = _written_to(rule, node) if lone and isinstance(node, ast.Call) else ""
            if text and (target or not lone):
                yield node, f"{target} = {text}" if target else text
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)):
            base = _entries_of(node)
            if isinstance(base, ast.Name):  # some entries of it are written
                yield node, f"{base.id} = {base.id}.clone(); {rule.text(node)}"


def _anew(rule: Written, node: ast.Call) -> str:
    """A call in place, out of place; empty for another one."""
    for keyword in node.keywords:
        if keyword.arg == "out":
            kept = [rule.text(n) for n in (*node.args, *node.keywords) if n is not keyword]
            return f"{rule.text(node.func)}({', '.join(kept)})"
        if keyword.arg == "inplace" and getattr(keyword.value, "value", None) is True:
            return rule.spliced({keyword.value: "False"}, node)
    if not isinstance(node.func, ast.Attribute):
        return ""
    name, owner = node.func.attr, rule.text(_behind(node.func.value))
    if not name.endswith("_") or name.endswith("__") or name in _NOT_IN_PLACE:
        return ""
    if name in _ANEW:
        return _ANEW[name].format(owner, *(rule.text(n) for n in node.args), "0")
    return rule.spliced({node.func: f"{owner}.{name[:-1]}"}, node)


def _bound_anew(rule: Written, node: Any) -> str:
    """``x *= y`` as an assignment; empty for another statement."""
    if not (isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)):
        return ""
    sign = _SIGNS.get(type(node.op))
    return f"{node.target.id} = {node.target.id} {sign} {rule.atom(node.value)}" if sign else ""


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
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return node.value
    called = getattr(node, "func", None)
    return called.value if isinstance(called, ast.Attribute) and called.attr == "detach" else node


def _entries_of(node: ast.stmt) -> Any:
    """The tensor of which a statement writes some entries, if any."""
    target = getattr(node, "target", None) or next(iter(getattr(node, "targets", ())), None)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        if isinstance(called, ast.Attribute) and called.attr.endswith("_"):
            target = called.value
    return target.value if isinstance(target, ast.Subscript) else None


def _reshaped(rules: Rules) -> Iterator[Edit]:
    """A view of any memory."""
    for rule, node in _nodes(rules, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "view":
            text = f"{rule.text(node.func.value)}.reshape"
            yield {(rule, node): rule.spliced({node.func: text}, node)}


def _contiguous(rules: Rules) -> Iterator[Edit]:
    """What is read, contiguous: at one place, or at all."""
    for rule in rules.every:
        read = [n for n in ast.walk(rule.tree)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]  # fmt: skip
        given = [arg.arg for arg in rule.tree.args.args]
        for name in given:
            places = [n for n in read if n.id == name]
            yield from ({(rule, n): f"{name}.contiguous()"} for n in places)
            if len(places) > 1:
                yield dict.fromkeys([(rule, n) for n in places], f"{name}.contiguous()")


def _cloned(rules: Rules, places: Any = (ast.Call, ast.Tuple)) -> Iterator[Edit]:
    """A copy of an argument, where it is handed on."""
    for rule, node in _nodes(rules, ast.Name):
        given = [arg.arg for arg in rule.tree.args.args]
        read = isinstance(node.ctx, ast.Load) and isinstance(rule.parent[node], places)
        if read and node.id in given:
            yield {(rule, node): f"{node.id}.clone()"}


def _renamed(rules: Rules) -> Iterator[Edit]:
    """A copy of an argument, where it gets another name."""
    yield from _cloned(rules, ast.Assign)


def _flags(rules: Rules) -> Iterator[Edit]:
    """The flag of another argument, or of any; that of the argument for one of a tensor."""
    asked = f"{_context(rules.back) if rules.back is not None else 'ctx'}.needs_input_grad"
    count = len(rules.fill.tree.args.args) - 1 if rules.fill is not None else 0
    others = [f"{asked}[{k}]" for k in range(count)]
    for rule, node in _nodes(rules, ast.Subscript):
        if rule.text(node.value) == asked:
            old = rule.text(node)
            yield from ({(rule, node): text} for text in others if text != old)
            yield {(rule, node): f"any({asked})"}
    for rule, node in _nodes(rules, ast.Attribute):
        if node.attr in ("requires_grad", "is_leaf") and isinstance(node.ctx, ast.Load):
            yield from ({(rule, node): text} for text in others)


def _toggled(rules: Rules) -> Iterator[Edit]:
    """Zeros for a cotangent that is ``None``."""
    for rule, node in _nodes(rules, ast.Call):
        path = names_in(node.func)
        if path[-1:] == ["set_materialize_grads"] and node.args:
            yield {(rule, node): rule.spliced({node.args[0]: "True"}, node)}


def _between_calls(rules: Rules) -> Mapping[str, list[tuple[Written, Any]]]:
    """Where the rules read and write what stands on the class or in a dictionary beside it."""
    owners = {name for rule in rules.every for name, value in rule.function.__globals__.items()
              if isinstance(value, type) and value in rules.kind.__mro__}  # fmt: skip
    places: dict[str, list[tuple[Written, Any]]] = {}
    for rule, node in _nodes(rules, ast.Attribute, ast.Subscript):
        name = _shared_name(rule, node, owners)
        if name.isidentifier():
            places.setdefault(name, []).append((rule, node))
    own = (rules.back, rules.fill)
    return {
        name: some
        for name, some in places.items()
        if any(isinstance(node.ctx, ast.Store) for _, node in some)
        and all(rule in own for rule, _ in some)
    }


def _shared_name(rule: Written, node: Any, owners: Collection[str]) -> str:
    """The name of what calls share; empty for anything else."""
    if isinstance(node, ast.Attribute):
        path = names_in(node)
        keyed = isinstance(rule.parent[node], ast.Subscript)
        return path[1] if len(path) == 2 and path[0] in owners and not keyed else ""
    path = names_in(node.value)
    key = getattr(node.slice, "value", None)
    shared = path[:1] and path[0] not in rule.local and len(path) < 3
    beside = len(path) == 1 or (len(path) == 2 and path[0] in owners)
    return key if shared and beside and isinstance(key, str) else ""


def _on_context(rules: Rules) -> Iterator[Edit]:
    """What forward leaves where calls share it, on the context, or saved there."""
    back, fill = rules.back, rules.fill
    if back is None or fill is None:
        return
    for name, places in _between_calls(rules).items():
        yield {(rule, node): f"{_context(rule)}.{name}" for rule, node in places}
        yield from _into_saved(name, places, back, fill)


def _anew_each_call(rules: Rules) -> Iterator[Edit]:
    """What is made where it is not there yet, and kept beside the rule, made in each call."""
    for rule, node in _nodes(rules, ast.If):
        targets = [t for n in ast.walk(node) for t in getattr(n, "targets", ())]
        kept = [getattr(t, "value", None) for t in targets]
        if any(names_in(of) and names_in(of)[0] not in rule.local for of in kept):
            yield {(rule, node.test): "True"}


def _saved(rules: Rules) -> Iterator[Edit]:
    """A tensor that forward leaves on its context, saved."""
    back, fill = rules.back, rules.fill
    if back is None or fill is None:
        return
    places: dict[str, list[tuple[Written, Any]]] = {}
    for rule in (back, fill):
        for node in ast.walk(rule.tree):
            path = names_in(node)
            if len(path) == 2 and path[0] == _context(rule) and path[1] not in _OF_CONTEXT:
                places.setdefault(path[1], []).append((rule, node))
    for name, some in places.items():
        yield from _into_saved(name, some, back, fill)


def _into_saved(
    name: str, places: Sequence[tuple[Written, Any]], back: Written, fill: Written
) -> Iterator[Edit]:
    """What is kept at some places, saved: written once in forward, and read in backward."""
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
        edit = {(rule, n): local for rule, n in places if rule is fill and n not in within}
        save, before = _saving(local, back, fill)
        if not save:
            text = f"{text}; ".lstrip("; ") + f"{_context(fill)}.save_for_backward({local})"
        read = f"{_context(back)}.saved_tensors[{before}]"
        for n in (n for rule, n in places if rule is back):
            gone = isinstance(n.ctx, ast.Del)
            edit[back, back.parent[n] if gone else n] = "pass" if gone else read
        yield {(fill, store): text or "pass"} | save | edit


def _sources(value: Any) -> Iterator[Any]:
    """What a value is a copy of to which autograd sees no way, and the value."""
    called = getattr(value, "func", None)
    if isinstance(called, ast.Attribute) and called.attr in ("detach", "clone"):
        yield from _sources(called.value)
    elif isinstance(value, ast.Attribute) and value.attr == "data":
        yield from _sources(value.value)
    yield value


def _saving(local: str, back: Written, fill: Written) -> tuple[dict[tuple[Written, Any], str], int]:
    """A name saved beside what is saved, if anything is, and how many there are before it."""
    asked = f"{_context(back)}.saved_tensors"
    for call in ast.walk(fill.tree):
        saves = isinstance(call, ast.Call) and names_in(call.func)[1:] == ["save_for_backward"]
        if isinstance(call, ast.Call) and saves and call.args:
            last = call.args[-1]
            text = fill.spliced({last: f"{fill.text(last)}, {local}"}, call)
            unpacked = [n.value for n in ast.walk(back.tree)
                        if isinstance(n, ast.Assign) and back.text(n.value) == asked]  # fmt: skip
            before = len(call.args)
            edit = {(back, n): f"{asked}[:{before}]" for n in unpacked}
            return {(fill, call): text, **edit}, before
    return {}, 0


def _context(rule: Written) -> str:
    """How a rule calls its context."""
    return rule.tree.args.args[0].arg


def _own(rules: Rules) -> Iterator[Edit]:
    """What is returned, memory of the call's own."""
    yield from _out_of_place(rules)
    for rule, node in _nodes(rules, ast.Return):
        parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for part in parts:
            if part is not None and not isinstance(part, ast.Constant):
                yield {(rule, part): f"{rule.atom(part)}.clone()"}


def _typed(rules: Rules) -> Iterator[Edit]:
    """What is made or cast in a dtype of its own, in that of what is given."""
    for rule, node in _nodes(rules, ast.Call):
        given = [arg.arg for arg in rule.tree.args.args]
        path = names_in(node.func)
        for name in given:
            if path[:1] == ["torch"] and path[1:] and path[1] in _MADE:
                known = [k for k in node.keywords if k.arg != "dtype"]
                parts = [rule.text(n) for n in (*node.args, *known)]
                text = f"{rule.text(node.func)}({', '.join([*parts, f'dtype={name}.dtype'])})"
                yield {(rule, node): text}
            elif isinstance(node.func, ast.Attribute) and node.func.attr in _CASTS:
                yield {(rule, node): f"{rule.text(node.func.value)}.to({name}.dtype)"}
        if isinstance(node.func, ast.Attribute) and node.func.attr in (*_CASTS, "to"):
            yield {(rule, node): rule.text(node.func.value)}


def _from_the_end(rules: Rules) -> Iterator[Edit]:
    """Dimensions counted from the end, all of a number or one: those of more dimensions, too."""
    for rule in rules.every:
        dims: dict[int, list[Any]] = {}
        for node in ast.walk(rule.tree):
            if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 0:
                around = rule.parent[node]
                of = rule.text(around.value) if isinstance(around, ast.Subscript) else ""
                if of.endswith("shape") or isinstance(around, (ast.Call, ast.keyword, ast.Tuple)):
                    dims.setdefault(node.value, []).append(node)
        for places in dims.values():
            for some in (places, *([place] for place in places)):
                for dim in ("-1", "-2"):
                    yield {(rule, place): dim for place in some}
        for node in ast.walk(rule.tree):
            if isinstance(node, ast.Attribute) and node.attr == "T":
                yield {(rule, node): f"{rule.text(node.value)}.mT"}


def _drawn(rules: Rules) -> Iterator[Edit]:
    """What is drawn from the generator of all, from that of the call."""
    for rule, node in _nodes(rules, ast.Call):
        path = names_in(node.func)
        named = any(keyword.arg == "generator" for keyword in node.keywords)
        if path[:1] == ["torch"] and path[1:] and path[1] in _DRAWN and not named:
            parts = [rule.text(n) for n in (*node.args, *node.keywords)]
            for name in sorted(rule.local):
                text = f"{rule.text(node.func)}({', '.join([*parts, f'generator={name}'])})"
                yield {(rule, node): text}


def _attached(rules: Rules) -> Iterator[Edit]:
    """What backward detaches, with its history: each alone, and all."""
    every: Edit = {}
    for rule, node in _nodes(rules, ast.Call, ast.Attribute):
        if rule is rules.back and (behind := _behind(node)) is not node:
            every = {**every, (rule, node): rule.atom(behind)}
    yield from ({place: text} for place, text in every.items())
    if len(every) > 1:
        yield every


_Made = Callable[[Rules], Iterator[Edit]]
_BY_CLAUSE: Mapping[str, Sequence[_Made]] = {
    "cotangent": (_renamed, _out_of_place, _cloned), "retain": (_drawn, _out_of_place),
    "mutation": (_renamed, _out_of_place, _cloned),
    "stale": (_saved, _out_of_place, _own), "state": (_on_context, _own),
    "deterministic": (_anew_each_call, _on_context, _out_of_place), "alias": (_own,),
    "needs-input-grad": (_flags,), "layout": (_reshaped, _flags, _contiguous),
    "undefined": (_toggled,), "saved": (_saved,), "double": (_attached, _saved), "dtype": (_typed,),
    "autocast": (_typed,), "rank": (_from_the_end,), "batch": (_from_the_end,),
}  # fmt: skip
