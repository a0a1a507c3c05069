"""Every autograd Function of a package, read from its source: nothing is imported."""

import ast
from pathlib import Path

__all__ = ["functions_of"]

ROOTS = {
    "Function", "autograd.Function", "torch.autograd.Function", "torch.autograd.function.Function",
    "torch.autograd.function.InplaceFunction", "InplaceFunction",
}  # fmt: skip


def functions_of(folder: Path) -> list[str]:
    """`module:qualname` of each class that inherits from torch's Function, through classes of the
    package too. A class of the same name as one of these in another file of the package is taken
    for it only where it is the base."""
    classes: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        module = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        module = module.removesuffix(".__init__")
        _collect(ast.parse(path.read_text(encoding="utf-8", errors="replace")), module, "", classes)
    found: dict[str, None] = {}
    grown = True
    while grown:
        names = {name.rpartition(":")[2].rpartition(".")[2] for name in found}
        before = len(found)
        for name, bases in classes.items():
            if any(base in ROOTS or base.rpartition(".")[2] in names for base in bases):
                found[name] = None
        grown = len(found) > before
    return sorted(found)


def _collect(tree: ast.AST, module: str, inside: str, classes: dict[str, list[str]]) -> None:
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, ast.ClassDef | ast.FunctionDef)
        if isinstance(node, ast.ClassDef):
            name = f"{module}:{inside}{node.name}"
            classes[name] = [ast.unparse(base) for base in node.bases]
        _collect(node, module, f"{inside}{node.name}." if named else inside, classes)
