"""The shim's modules and the one file that is made of them."""

from __future__ import annotations

import socket
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from ftslurm.wrapper import shim

FOLDER = Path(shim.__file__).parent
TOOL = Path(__file__).parents[3] / "tools/one-shim"
# What the shim leaves alone, for the time of its start and its memory: the Python halves of what it takes from C, and more.
HEAVY = {
    "collections",
    "enum",
    "hashlib",
    "json",
    "re",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "typing",
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = spec_from_loader("one_shim", SourceFileLoader("one_shim", str(TOOL)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_one_file_is_what_its_modules_say() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_one_file_starts_with_the_standard_library_alone_and_little_of_that() -> None:
    load = f"import sys; sys.path.append({str(FOLDER)!r}); import _shim; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", load], capture_output=True, text=True, timeout=180, check=True)
    loaded = set(done.stdout.split())
    assert "_shim" in loaded and not loaded & HEAVY
    assert {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names} <= {"__main__", "_shim"}


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_a_call_to_the_controller_loads_no_more(address: str) -> None:
    """A name that is a text would: re, enum and, for other alphabets, unicodedata."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        call = f"_shim._dial({address!r}, {server.getsockname()[1]}, 30.0)"
        load = f"import sys; sys.path.append({str(FOLDER)!r}); import _shim; {call}; print(*sys.modules)"
        done = subprocess.run([sys.executable, "-I", "-S", "-c", load], capture_output=True, text=True, timeout=180, check=True)
    assert not set(done.stdout.split()) & {*HEAVY, "unicodedata", "encodings.idna"}


@pytest.mark.parametrize(("one", "other", "why"), [
    ("from ftslurm.wrapper.shim.other import x", "from ftslurm.wrapper.shim.one import y", "one -> other -> one"),
    ("from ftslurm.wrapper.shim.gone import x", "", "one imports ftslurm.wrapper.shim.gone"),
    ("from ftslurm.wrapper.shim.other import x as y", "x = 1", "one:1: x is imported under another name"),
    ("from ftslurm.errors import UsageError", "", "one:1: ftslurm.errors is not of the standard library"),
    ("import yaml", "", "one:1: yaml is not of the standard library"),
    ("def wait(): ...", "A, wait = 1, 2", "wait is defined in one and in other"),
    ("if TYPE_CHECKING:\n    x = 1", "", "one:2: only imports"),
])  # fmt: skip
def test_what_cannot_be_one_file_is_said(tool: ModuleType, tmp_path: Path, one: str, other: str, why: str) -> None:
    for name, text in {"fast_stdlib": "TYPE_CHECKING = False", "one": one, "other": other}.items():
        (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(tool.CannotJoin, match=why):
        tool.joined(tmp_path)


def test_modules_come_after_those_that_they_need_and_imports_once(tool: ModuleType, tmp_path: Path) -> None:
    for name, text in {
        "fast_stdlib": "TYPE_CHECKING = False",
        "a": "import os\nfrom ftslurm.wrapper.shim.b import last\nif TYPE_CHECKING:\n    from typing import Any\n\nfirst: Any = last, os",
        "b": '"""Of letters."""\n\nimport os\nfrom time import time as now, sleep\n\nlast = os, now, sleep\n',
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    text = tool.joined(tmp_path)
    assert text.removeprefix(tool.HEAD) == (
        "import os\nfrom time import sleep\nfrom time import time as now\n\n# --- fast_stdlib.py\n\n\nTYPE_CHECKING = False\n\n"
        "if TYPE_CHECKING:\n    from typing import Any\n\n\n# --- b.py\n# Of letters.\n\nlast = os, now, sleep\n\n\n"
        "# --- a.py\n\n\nfirst: Any = last, os\n"
    )
