"""Write a short standalone script that shows one finding, and run it before it is shown."""

import ast
import contextlib
import io
import math
import os
import re
import sys
import sysconfig
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace as with_fields

import torch

from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject, typed_source
from pullback.conformance.process._guard import guarded, seed_of_draws
from pullback.conformance.process._limits import limited
from pullback.conformance.script._literal import IMPORT, CallSource, Literals, found, name_of
from pullback.internal._defaults import PLAIN, read_defaults
from pullback.internal._sparse import is_sparse
from pullback.internal._syntax import parse
from pullback.internal.torch import pytree
from pullback.report import Finding, Verdict

__all__ = ["Given", "verify", "write_repro"]

Given = Mapping[str, Sequence[torch.Tensor] | torch.Tensor]

_COLUMNS = 100
_INDENT = "    "
# What scripts use without an import.
_NAMES = dict.fromkeys(("tree_leaves", "tree_map"), pytree.__name__)
_IMPORTED = re.compile(re.escape(IMPORT).replace(r"\{\}", r"([\w.]+)") + r"\.(\w+)")

_AGAIN = (
    "# What it takes from the program, which runs again, is as that makes it: where the program\n"
    "# seeds its draws, the numbers are those of the finding.\n"
)

# The tensors among outputs; where they may be sparse, what is differentiated of them.
_LEAVES = "    ys = [y for y in ys if isinstance(y, torch.Tensor)]"
_SPARSE = "    ys = [y.coalesce().values() if y.is_sparse else y for y in ys]"

# For a function that refuses `torch.autograd.grad`.
_ACCUMULATE = """
def grad(outputs, inputs, cotangents, create_graph=False, **options):
    inputs = [inputs] if isinstance(inputs, torch.Tensor) else inputs
    found = {}
    for x in inputs:
        x.register_hook(lambda gradient, x=x: found.update({x: gradient.clone()}))
    torch.autograd.backward(outputs, cotangents, create_graph=create_graph)
    return [found.get(x) for x in inputs]
"""


def write_repro(
    subject: Subject,
    inputs: Arguments,
    outputs: Sequence[int],
    seed: int,
    body: Sequence[str],
    *,
    random: bool = False,
    accumulates: bool = False,
    given: Given | None = None,
) -> str:
    r"""The script, or an empty text where the subject or an argument cannot be written down.

    Before ``body`` the script defines ``args``, and ``kwargs`` where there are any, ``xs`` (the
    differentiated inputs) and ``outs()``, the differentiated outputs of a fresh run. In ``body``,
    ``call`` stands for the function, and what was given stands under its name. A random function
    draws the same numbers at each run; one that accumulates has gradients by ``.backward()`` alone.

    Example:
        >>> script = write_repro(Subject.of(torch.sin), Arguments.of((torch.ones(1),)), [0], 0,
        ...                      ["print(outs())"])
        >>> script.endswith("print(outs())\n")
        True
    """
    if not body:
        return ""
    literals = Literals()
    source = CallSource(inputs, literals)
    try:
        args, kwargs = source.of(inputs.args, "args"), source.of(dict(inputs.kwargs), "kwargs")
        given_made = [f"{name} = {_given(t, literals)}" for name, t in (given or {}).items()]
    except (ValueError, RuntimeError):  # a tensor of a class of its own tells nothing
        return ""
    head = _definition(subject)
    if inputs.recorded and (not head or "recorded[" in args):
        get = inputs.recorded.partition("(")[0]
        head = [f"from pullback.recording import {get}", f"F, recorded = {inputs.recorded}"]
    if not head:
        return ""
    draws = f"torch.manual_seed({seed_of_draws(seed)})"
    shown = [
        "def outs():",
        f"    {draws}" if random else "",
        "    ys = tree_leaves(call(*args, **kwargs))",
        _LEAVES,
        f"    return [ys[k] for k in {list(outputs)}]",
        *body,
    ]
    text = _adapted("\n".join(shown), subject, inputs, accumulates=accumulates)
    made = [
        "torch.set_printoptions(precision=9, threshold=5000)",
        *_defaults(),
        draws,
        f"args = {args}",
        f"kwargs = {kwargs}" if re.search(r"\bkwargs\b", text) else "",
        f"xs = [{', '.join(map(name_of, inputs.differentiable, inputs.names()))}]",
        _ACCUMULATE if accumulates else "",
        *given_made,
    ]
    whole = "\n".join(["import torch", *head, *literals.head, *made, text])
    again = "recorded[" in args and inputs.recorded.startswith("rerun_call(")
    return _AGAIN * again + literals.finish(_laid_out(whole))


def _defaults() -> list[str]:
    """What makes new tensors as they were made in the check, where that is not usual."""
    dtype, device = read_defaults()
    lines = [f"torch.set_default_dtype(torch.{dtype})", f"torch.set_default_device({device!r})"]
    return [
        line for line, now, usual in zip(lines, (dtype, device), PLAIN, strict=True) if now != usual
    ]


def _adapted(text: str, subject: Subject, inputs: Arguments, *, accumulates: bool) -> str:
    """Our own lines, for how this subject is called; what was typed at a prompt stays as it is."""
    called = "F.apply(" if subject.function is not None else "F("
    if any(isinstance(value, (dict, list)) for value in inputs.args):
        # As in the check each call has containers of its own: a forward may take out what it reads.
        text = text.replace("call(*args", "call(*tree_map(lambda value: value, args)")
    if any(map(is_sparse, pytree.tree_leaves((inputs.args, dict(inputs.kwargs))))):
        text = text.replace(_LEAVES, f"{_LEAVES}\n{_SPARSE}")
    text = re.sub(r"(?<![\w.])call\(", called, text)
    if not inputs.kwargs:
        text = text.replace(", **kwargs)", ")").replace("(args, kwargs)", "args")
    text = _NAMED.sub(r"\1tree_map(torch.clone, \2)", text)
    return text.replace("torch.autograd.grad(", "grad(") if accumulates else text


# Cotangents by name, of which each backward is handed copies: it may write into what it is given.
_NAMED = re.compile(r"(torch\.autograd\.grad\((?:[\w.()[\]]+, ){2})(\w+(?:\[\w+\])?)(?=[,)])")


def _given(value: Sequence[torch.Tensor] | torch.Tensor, literals: Literals) -> str:
    if isinstance(value, torch.Tensor):
        return literals.of(value)
    return f"[{', '.join(map(literals.of, value))}]"


def _definition(subject: Subject) -> list[str]:
    """Lines that bind ``F`` to the subject: what finds it, or what was typed at a prompt."""
    locator = subject.locator
    with contextlib.suppress(ValueError):
        lines = [f"F = {found(subject)}"]
        if locator.module == "__main__":
            folder = os.path.dirname(locator.file)
        else:
            folder = _folder_of(locator.module.partition(".")[0])
        if folder:
            lines.insert(0, f"import sys; sys.path.append({folder!r})")
        wrapped = locator.completed and not locator.names(subject.target)
        return [*lines, *["import pullback; F = pullback.complete(F)"] * wrapped]
    typed = typed_source(subject.target)
    if typed is None or typed.needs is None:
        return []
    return [*typed.needs, *typed.text.splitlines(), f"F = {subject.target.__name__}"]


def _folder_of(package: str) -> str:
    """Where a package lies that Python finds by its place alone; empty for an installed one."""
    module = sys.modules.get(package)
    first = next(iter(getattr(module, "__path__", ())), getattr(module, "__file__", None) or "")
    folder = os.path.dirname(first)
    installed = any(folder.startswith(place) for place in sysconfig.get_paths().values())
    return "" if installed else folder


def _laid_out(source: str) -> str:
    """The same program: imports first, one statement a line, room around what is indented.

    What is imported from a folder that Python is told of comes after that.
    """
    places = {n: place for n, place in _NAMES.items() if re.search(rf"(?<![\w.]){n}\(", source)}
    for module, short in dict.fromkeys(_IMPORTED.findall(source)):
        if not re.search(rf"(?<![\w.]){short}\b", source) and short not in places:
            source = source.replace(f"{IMPORT.format(module)}.{short}", short)
            places[short] = module
    statements = parse(source).body
    imports = [node for node in statements if isinstance(node, (ast.Import, ast.ImportFrom))]
    told = [node for node in statements if ast.unparse(node).startswith("sys.path.append(")]
    lines = []
    for node in imports:
        if isinstance(node, ast.ImportFrom) and node.module and not node.names[0].asname:
            places |= {name.name: node.module for name in node.names}
        else:
            lines.append(ast.unparse(node))
    lines += [*map(ast.unparse, told)]
    for module in sorted(set(places.values())):
        names = sorted(short for short, place in places.items() if place == module)
        lines.append(f"from {module} import {', '.join(names)}")
    lines = list(dict.fromkeys(lines))
    before: ast.stmt | None = None
    for node in statements:
        if node in (*imports, *told):
            continue
        if before is None or "body" in node._fields or "body" in before._fields:
            lines.append("")
        lines += _lines(node)
        before = node
    return "\n".join(lines) + "\n"


def _lines(node: ast.stmt) -> list[str]:
    """A statement; what is wide is broken at spaces, where it then says the same."""
    plain = ast.unparse(node).splitlines()
    if max(map(len, plain)) <= _COLUMNS:
        return plain
    lines = [part for line in plain for part in _broken(line)]
    try:
        same = ast.dump(parse("\n".join(lines))) == ast.dump(parse("\n".join(plain)))
    except SyntaxError:
        same = False
    return lines if same else plain


def _broken(line: str) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line.lstrip(), _COLUMNS, initial_indent=indent, subsequent_indent=f"{indent}{_INDENT}",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)", re.IGNORECASE)
_DIGITS = 1e-3
_TINY = 1e-12


def verify(finding: Finding, patience: float) -> Finding:
    """The finding with a script that was run, or that says in a comment what it does not show.

    Without patience it is not run.
    """
    if not finding.repro or finding.verdict is not Verdict.BROKEN:
        return finding
    if not patience:
        note = "# The checker has not run this: its numbers may be others than the finding's.\n"
        return with_fields(finding, repro=note + finding.repro)
    printed, fault = _run(finding.repro, patience)
    if fault:
        note = f"# Run by the checker, this ended with {fault}\n"
    elif _prints(printed, finding.expected) and _prints(printed, finding.got):
        return finding
    else:
        note = "# Run by the checker, this prints other numbers than the finding's.\n"
    return with_fields(finding, repro=note + finding.repro)


def _run(script: str, patience: float) -> tuple[str, str]:
    """What a script prints, and what it raises."""
    printed = io.StringIO()
    try:
        with (
            contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()),
            guarded(), limited(patience),
        ):  # fmt: skip
            exec(compile(script, "repro.py", "exec"), {"__name__": "repro"})  # noqa: S102 - ours
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # the checked code may raise anything
        return printed.getvalue(), f"{type(error).__name__}: {str(error).splitlines()[:1]}"
    return printed.getvalue(), ""


def _prints(printed: str, text: str) -> bool:
    """Whether the numbers of a finding are among those printed, to four digits."""
    shown = re.match(r"\[([^]]*)\]|([-+]?\d\S*|nan|inf)(?= \(| \+-|$)", text)
    if shown is None:
        return True
    wanted = [float(n) for n in _NUMBER.findall(shown.group(1) or shown.group(2) or "")]
    found = [float(n) for n in _NUMBER.findall(printed)]
    return all(any(_same(one, other) for other in found) for one in wanted)


def _same(one: float, other: float) -> bool:
    if not (math.isfinite(one) and math.isfinite(other)):
        return str(one) == str(other)
    return abs(one - other) <= _DIGITS * abs(one) + _TINY
