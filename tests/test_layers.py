"""Imports point one way, printing and pandas stay where they belong, and importing is cheap.

The order is that of DESIGN, section 3, but for two places: objectives know no VAE, so they stand at
the bottom; and saving knows every kind of model, so it stands above them.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import postmatch

SOURCE = Path(postmatch.__file__).parent
LAYERS = (
    {
        "masks",
        "image_masks",
        "image_files",
        "objectives",
        "nets",
        "distributions",
        "metrics",
        "image_metrics",
    }
    | {"importance", "randomness", "threads", "streams", "folders", "untouched", "hub"},
    {"vaes", "partial", "partial_codes", "partial_hierarchy", "anchoring"}
    | {"partial_fields", "partial_shapes", "encoded_rows", "attached_encoder"},
    {"conditioning", "doors", "clustering", "offers", "entropies", "acquisition", "mixture_gains"},
    {"training", "tables", "pooling", "export", "fast"},
    {"tabular", "fitting", "calibrating", "models", "answers", "rows", "resuming", "row_training"}
    | {"acquisition_fitting", "table_offers", "table_acquiring", "realised_gains", "table_export"}
    | {"cross_fitting", "told_gains"}
    | {"cluster_starts", "cluster_counts", "cluster_fitting", "cluster_tables"},
    {"saving", "saving_attached"},
    {"attaching", "prior_fitting", "pushing", "estimators", "clusterers", "data", "testing"},
    {"recipes"},
    {"zoo"},
    {"cli"},
)
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}
ENTRANCES = {"__init__", "__main__"}  # they name the rest and are named by nothing
EXTRAS = {
    "matplotlib",
    "PIL",
    "zuko",
    "diffusers",
    "huggingface_hub",
    "pythae",
    "onnx",
    "onnxruntime",
    "tensorboard",
    "umap",
    "pandas",
    "polars",
}
FILES = sorted(SOURCE.rglob("*.py"))


def part(path: Path) -> str:
    """Return the top-level module or package that a file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def module(path: Path) -> str:
    """Return a file's full module name."""
    names = [*path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(["postmatch", *[n for n in names if n != "__init__"]])


def imports(tree: ast.AST, own: str, is_package: bool) -> Iterator[str]:
    """Yield the full name of everything that is imported anywhere below a node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = own.split(".") if is_package else own.split(".")[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported, less those for type checkers."""
    for node in tree.body:
        if isinstance(node, ast.If):
            if "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from (*node.body, *node.orelse)
        elif isinstance(node, ast.Try):
            yield from (*node.body, *node.orelse, *node.finalbody)
            yield from (inner for handler in node.handlers for inner in handler.body)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def wrong_arrows(path: Path) -> list[str]:
    """Return the imports of a file that point to a higher layer."""
    own = part(path)
    wrong = []
    for name in imports(parsed(path), module(path), path.stem == "__init__"):
        pieces = name.split(".")
        if pieces[0] != "postmatch" or len(pieces) < 2 or pieces[1] == own:
            continue
        if HEIGHT.get(pieces[1], -1) > HEIGHT[own] or pieces[1] == "fast":
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("path", FILES, ids=module)
def test_every_file_stands_in_a_layer(path: Path) -> None:
    assert part(path) in {*HEIGHT, *ENTRANCES, "fast"}, f"give {part(path)} a place in LAYERS"


@pytest.mark.parametrize(
    "path", [p for p in FILES if part(p) not in {*ENTRANCES, "fast"}], ids=module
)
def test_imports_point_one_way(path: Path) -> None:
    assert wrong_arrows(path) == []


def test_fast_stands_alone() -> None:
    for path in FILES:
        if part(path) == "fast":
            names = {n.split(".")[0] for n in imports(parsed(path), module(path), False)}
            assert not names & {"postmatch", "torch"}


def test_modules_do_not_import_each_other_in_circles() -> None:
    known = {module(path): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        found = set()
        for statement in at_import(parsed(path)):
            for target in imports(statement, name, path.stem == "__init__"):
                while target and target not in known:
                    target = target.rpartition(".")[0]
                found |= {target} - {"", name, "postmatch"}
        graph[name] = found
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for target in sorted(graph[name]):
                # A module inside a package runs after the package has begun: not a circle of files.
                if not name.startswith(f"{target}."):
                    visit(target, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("path", [p for p in FILES if part(p) != "cli"], ids=module)
def test_only_the_command_line_prints(path: Path) -> None:
    calls = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    assert not [c.lineno for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]


@pytest.mark.parametrize("path", FILES, ids=module)
def test_no_extra_is_imported_before_it_is_used(path: Path) -> None:
    own = module(path)
    names = {
        name.split(".")[0]
        for statement in at_import(parsed(path))
        for name in imports(statement, own, path.stem == "__init__")
    }
    assert not names & EXTRAS


def test_importing_postmatch_imports_no_torch_and_no_frame_library() -> None:
    check = (
        "import sys, postmatch; dir(postmatch); "
        "heavy = {'torch', 'pandas', 'polars', 'sklearn', 'pyarrow', 'scipy'} & set(sys.modules); "
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_importing_every_public_name_changes_no_setting_of_torch() -> None:
    check = (
        "import torch; before = (torch.initial_seed(), torch.get_default_dtype(), "
        "torch.distributions.Distribution._validate_args, torch.is_grad_enabled(), "
        "torch.get_rng_state().sum().item()); "
        "import postmatch; [getattr(postmatch, name) for name in postmatch.__all__]; "
        "after = (torch.initial_seed(), torch.get_default_dtype(), "
        "torch.distributions.Distribution._validate_args, torch.is_grad_enabled(), "
        "torch.get_rng_state().sum().item()); assert before == after, (before, after)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_arrow_that_points_up_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "postmatch"
    (source / "nets").mkdir(parents=True)
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", source)
    low, high = source / "nets" / "odd.py", source / "estimators.py"
    low.write_text("def f():\n    from postmatch.conditioning import MatchedVAE\n")
    assert wrong_arrows(low) == ["postmatch.conditioning.MatchedVAE"]
    low.write_text("from ..vaes import base\nfrom . import made\nimport postmatch.masks\n")
    assert wrong_arrows(low) == ["postmatch.vaes.base"]
    high.write_text("from postmatch.nets import made\nfrom postmatch.saving import save\n")
    assert wrong_arrows(high) == []
