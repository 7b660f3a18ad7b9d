"""Checks before an upload that the code folder has what the entrypoint names.

It parses files and never imports them, so that the check needs neither torch nor the user's packages. The CLI calls it.
The rank reports faults that only an import reveals, such as a class that is no trial.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from gangline.domain.entrypoint import Entrypoint, Module, Script, TrialClass
from gangline.errors import invalid


def check_code(folder: Path, entrypoint: Entrypoint, working_directory: str = "") -> None:
    """Raises GanglineError `code.*` that names what is missing and what the folder has instead.

    working_directory: in which the entrypoint runs, below the folder if it is relative. Imports look into both.
    """
    start = folder / working_directory
    if not Path(working_directory).is_absolute() and not start.is_dir():
        raise invalid("code.no_directory", f"environment.working_directory: {folder} has no folder {working_directory}")
    match entrypoint:
        case TrialClass(module=module, name=name):
            _check_trial(folder if _module_file(start, module) is None else start, module, name)
        case Script(path=path) if not (start / path).is_file() and not (folder / path).is_file():
            if not (Path(path).is_absolute() or Path(working_directory).is_absolute()):
                raise invalid("code.no_script", f"entrypoint runs {path}, but {_has(folder)}")
        case Module(name=name) if (folder / name.split(".")[0]).is_dir() and _module_file(folder, name) is None:
            raise invalid("code.no_module", f"entrypoint runs the module {name}, but {_has(folder)}")
        case _:
            return


def _check_trial(folder: Path, module: str, name: str) -> None:
    path = _module_file(folder, module)
    if path is None:
        wanted = module.replace(".", "/") + ".py"
        raise invalid("code.no_module", f"entrypoint {module}:{name} needs the file {wanted}, but {_has(folder)}")
    place = path.relative_to(folder)
    definition = _definition(_parse(path, place), name)
    if definition is None:
        classes = ", ".join(_class_names(_parse(path, place))) or "none"
        raise invalid("code.no_class", f"{place} defines no {name}; the classes in it are: {classes}")
    if isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        raise invalid("code.no_trial", f"{name} in {place} line {definition.lineno} is a function; a trial is a class")
    if isinstance(definition, ast.ClassDef) and not definition.bases:
        raise invalid(
            "code.no_trial",
            f"{name} in {place} line {definition.lineno} inherits from nothing; a trial inherits from "
            "gangline.pytorch.PyTorchTrial",
        )


def _module_file(folder: Path, module: str) -> Path | None:
    base = folder / module.replace(".", "/")
    candidates = (base.with_name(base.name + ".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def _parse(path: Path, place: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except SyntaxError as failure:
        raise invalid("code.syntax", f"{place} line {failure.lineno} is no valid Python: {failure.msg}") from failure
    except ValueError as failure:
        raise invalid("code.syntax", f"{place} is no Python source; save it as UTF-8 text") from failure


def _definition(tree: ast.Module, name: str) -> ast.stmt | None:
    """Returns the statement that binds name in the module, at any depth of if and try. A star import may bind any
    name."""
    return next((node for node in _statements(tree) if _binds(node, name)), None)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.If | ast.Try | ast.With | ast.ExceptHandler | ast.For | ast.While):
            yield from _statements(child)


def _binds(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name == name
        case ast.Import() | ast.ImportFrom():
            return any((alias.asname or alias.name.split(".")[0]) in (name, "*") for alias in node.names)
        case ast.Assign():
            return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
        case ast.AnnAssign():
            return isinstance(node.target, ast.Name) and node.target.id == name
        case _:
            return False


def _class_names(tree: ast.Module) -> list[str]:
    return [node.name for node in _statements(tree) if isinstance(node, ast.ClassDef)]


def _has(folder: Path) -> str:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py"))[:6]
    return f"the Python files in {folder} are: {', '.join(names)}" if names else f"{folder} holds no Python file"
