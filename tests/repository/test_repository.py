"""The repository as a whole: no empty test files, pages up to date, no heavy imports, folders and names in step."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kvist.config.fields import config_fields
from kvist.config.load import SERVE_SECTIONS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "kvist"
TEST_FILES = sorted((ROOT / "tests").rglob("test_*.py"))
PURE_CORE = ("core", "config", "kvcache", "scheduler", "engine", "cluster", "costmodel", "metrics", "simulator")


def run_python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_test_file_collects_zero_tests(path: Path) -> None:
    names = [
        node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    has_machine = "TestCase" in path.read_text(encoding="utf-8")  # a Hypothesis state machine
    assert has_machine or any(name.startswith(("test_", "Test")) for name in names)


def test_python_files_in_tests_are_found_by_pytest() -> None:
    helpers = {"conftest.py", "__init__.py"}
    odd = [
        path
        for path in (ROOT / "tests").rglob("*.py")
        if not path.name.startswith("test_") and path.name not in helpers and "fakes" not in path.parts
    ]
    defining = [path for path in odd if re.search(r"^(async )?def test_", path.read_text(encoding="utf-8"), re.M)]
    assert defining == []


@pytest.mark.parametrize("page", ["flags_page", "adr_index", "readme_tables"])
def test_generated_pages_are_up_to_date(page: str) -> None:
    result = run_python(f"scripts/{page}.py", "--check")
    assert result.returncode == 0, result.stderr


def test_the_pure_core_imports_with_torch_and_ray_blocked() -> None:
    modules = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for folder in PURE_CORE
        for path in sorted((PACKAGE / folder).rglob("*.py"))
    ]
    program = (
        "import sys, importlib\n"
        "for name in ('torch', 'triton', 'ray', 'transformers', 'starlette', 'uvicorn'): sys.modules[name] = None\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
    )
    result = run_python("-c", program)
    assert result.returncode == 0, result.stderr


def test_the_whole_package_imports_with_torch_and_ray_blocked() -> None:
    program = (
        "import sys, importlib, pkgutil, kvist\n"
        "for name in ('torch', 'triton', 'ray', 'transformers', 'gguf', 'matplotlib'): sys.modules[name] = None\n"
        "for module in pkgutil.walk_packages(kvist.__path__, 'kvist.'):\n"
        "    if not module.name.endswith('__main__'): importlib.import_module(module.name)\n"
    )
    result = run_python("-c", program)
    assert result.returncode == 0, result.stderr


def test_the_package_imports_only_what_the_base_install_brings() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = {re.split(r"[<>=\[]", name)[0].lower().replace("_", "-") for name in project["dependencies"]}
    distributions = importlib.metadata.packages_distributions()
    foreign = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            tops = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"kvist"}
            owners = {owner.lower().replace("_", "-") for top in tops for owner in distributions.get(top, [top])}
            if path.parent.name == "report":
                owners -= {"matplotlib"}  # an extra, loaded when something is drawn
            foreign |= {(str(path.relative_to(PACKAGE)), owner) for owner in owners - brought}
    assert foreign == set()


def test_every_folder_is_in_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = sorted(path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py"))
    missing = [str(folder) for folder in folders if folder != Path() and f"`{folder}/`" not in page]
    assert missing == []


def test_links_between_pages_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [
        (page, target) for page in pages for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    ]
    broken = [(str(page), to) for page, to in links if "://" not in to and not (page.parent / to).exists()]
    assert broken == []


def test_changelog_fragments_are_one_sentence() -> None:
    for path in (ROOT / "changelog.d").glob("*.md"):
        text = path.read_text(encoding="utf-8").strip()
        assert text.endswith("."), path.name
        assert "\n\n" not in text, path.name


def test_the_environment_is_read_in_the_config_folder_only() -> None:
    readers = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"os\.environ(\.get|\[)|os\.getenv", path.read_text(encoding="utf-8"))
    ]
    assert [name for name in readers if not name.startswith("config/")] == []


def test_the_repository_names_no_place_outside_itself() -> None:
    pattern = re.compile(r"/work/|/tmp/kvist|/root/")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    here = str(Path(__file__).relative_to(ROOT))
    texts = [name for name in tracked if name.endswith((".py", ".md", ".toml", ".txt", ".html")) and name != here]
    assert [name for name in texts if pattern.search((ROOT / name).read_text(encoding="utf-8"))] == []


def test_every_option_is_read_by_someone() -> None:
    texts = [
        path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py") if path.parent.name not in ("config", "cli")
    ]
    names = [field.name for section, cls in SERVE_SECTIONS.items() for field in config_fields(cls, section)]
    assert [name for name in names if not any(re.search(rf"\.{name}\b", text) for text in texts)] == []


def test_files_that_pages_name_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = [
        (page.name, name)
        for page in pages
        for name in re.findall(r"`((?:[\w.]+/)+[\w-]+\.(?:py|md|toml|json|html))`", page.read_text(encoding="utf-8"))
    ]
    assert named
    missing = [(page, name) for page, name in named if not any((base / name).exists() for base in (ROOT, PACKAGE))]
    assert missing == []
