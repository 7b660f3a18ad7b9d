"""Checks before an upload that the code folder has what the entrypoint names.

It parses files and never imports them, so that the check needs neither torch nor the user's packages. The CLI calls it.
The rank reports faults that only an import reveals, such as a class that is no trial.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gangline.config.environment import Environment
from gangline.domain.entrypoint import Command, Entrypoint, Module, Script, TrialClass
from gangline.errors import invalid


def check_code(folder: Path, entrypoint: Entrypoint, environment: Environment | None = None) -> None:
    """Raises GanglineError `code.*` that names what is missing and what the folder has instead, or the line of a file
    that Python cannot read.

    environment: of the experiment. The entrypoint runs in its working directory, below the folder if it is relative;
    imports look into both. The syntax of a file is checked where the agents' own Python runs it. An interpreter or an
    image of the user's choice may have another version of Python.
    """
    environment = environment or Environment()
    working_directory = environment.working_directory
    is_elsewhere = Path(working_directory).is_absolute()
    start = folder if is_elsewhere else folder / working_directory
    if not start.is_dir():
        raise invalid("code.no_directory", f"environment.working_directory: {folder} has no folder {working_directory}")
    reader = _Reader(folder, is_checked=not environment.python and environment.image is None)
    match entrypoint:
        case TrialClass(module=module, name=name):
            _check_trial(reader, folder if _module_file(start, module) is None else start, module, name)
        case Script(path=path):
            _check_script(reader, start, path, is_elsewhere=is_elsewhere)
        case Module(name=name):
            _check_module(reader, start, name)
        case Command(arguments=(name,)) if name.replace(".", "").isidentifier():
            _check_forgotten_class(reader, name)
        case _:
            return


@dataclass(frozen=True, slots=True)
class _Reader:
    """Parses files of the folder."""

    folder: Path
    is_checked: bool  # whether a file that this Python cannot read is refused; otherwise its content is unknown

    def parse(self, path: Path) -> ast.Module | None:
        """Returns the file's statements; None where they are unknown. Raises GanglineError `code.syntax`."""
        place = path.relative_to(self.folder) if path.is_relative_to(self.folder) else path
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_bytes())
                # Some faults show only when the statements are compiled, as a return outside of a function.
                compile(tree, str(place), "exec", dont_inherit=True)
        except SyntaxError as failure:
            if not self.is_checked:
                return None
            raise invalid(
                "code.syntax", f"{place} line {failure.lineno} is no valid Python: {failure.msg}"
            ) from failure
        except ValueError as failure:
            if not self.is_checked:
                return None
            raise invalid("code.syntax", f"{place} is no Python source; save it as UTF-8 text") from failure
        except (RecursionError, MemoryError):
            # The nesting is deeper than this process can parse, which says nothing about the ranks.
            return None
        return tree


def _check_trial(reader: _Reader, folder: Path, module: str, name: str) -> None:
    path = _module_file(folder, module)
    if path is None:
        wanted = module.replace(".", "/") + ".py"
        raise invalid("code.no_module", f"entrypoint {module}:{name} needs the file {wanted}, but {_has(folder)}")
    place, tree = path.relative_to(folder), reader.parse(path)
    if tree is None:
        return
    definition = _definition(tree, name)
    if definition is None:
        classes = ", ".join(node.name for node in _classes(tree)) or "none"
        raise invalid("code.no_class", f"{place} defines no {name}; the classes in it are: {classes}")
    if isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        raise invalid("code.no_trial", f"{name} in {place} line {definition.lineno} is a function; a trial is a class")
    if isinstance(definition, ast.ClassDef) and not definition.bases:
        raise invalid(
            "code.no_trial",
            f"{name} in {place} line {definition.lineno} inherits from nothing; a trial inherits from "
            "gangline.pytorch.PyTorchTrial",
        )


def _check_script(reader: _Reader, start: Path, script: str, *, is_elsewhere: bool) -> None:
    """is_elsewhere: whether the script runs in a folder of the agents."""
    if Path(script).is_absolute():
        return
    # A rank looks into the folder of the code where its own folder has no such file.
    found = next((path for path in (start / script, reader.folder / script) if path.is_file()), None)
    if found is not None:
        reader.parse(found)
    elif not is_elsewhere:
        raise invalid("code.no_script", f"entrypoint runs {script}, but {_has(reader.folder)}")


def _check_module(reader: _Reader, start: Path, name: str) -> None:
    """A module that the folder does not have may be installed on the agents."""
    base = Path(*name.split("."))
    for top in (start, reader.folder):
        files = [path for path in (_module_file(top, name), top / base / "__main__.py") if path and path.is_file()]
        for path in files:
            reader.parse(path)
        if files:
            return
    if any((top / base.parts[0]).is_dir() for top in (start, reader.folder)):
        raise invalid("code.no_module", f"entrypoint runs the module {name}, but {_has(reader.folder)}")


def _check_forgotten_class(reader: _Reader, name: str) -> None:
    """Raises GanglineError `code.no_class` for the name of a module with a trial in place of a program."""
    path = _module_file(reader.folder, name)
    tree = reader.parse(path) if path is not None else None
    trials = [node.name for node in _classes(tree) if _is_trial(node)] if tree is not None else []
    if trials:
        text = f"entrypoint {name} names no class, so it would run as a program; did you mean {name}:{trials[0]}?"
        raise invalid("code.no_class", text)


def _is_trial(node: ast.ClassDef) -> bool:
    names = [base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases]
    return any(name.endswith("Trial") for name in names)


def _module_file(folder: Path, module: str) -> Path | None:
    base = folder / module.replace(".", "/")
    candidates = (base.with_name(base.name + ".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


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


def _classes(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in _statements(tree) if isinstance(node, ast.ClassDef)]


def _has(folder: Path) -> str:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py"))[:6]
    return f"the Python files in {folder} are: {', '.join(names)}" if names else f"{folder} holds no Python file"
