"""tools/slurm-root: what it decides, what it says where it cannot work, and that nothing stays behind."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "slurm-root"


def load_tool() -> ModuleType:
    """The tool as a module."""
    loader = importlib.machinery.SourceFileLoader("slurm_root_tool", str(TOOL))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


tool = load_tool()


@pytest.mark.parametrize(("uris", "mirror"), [
    ([], "http://deb.debian.org/debian"),
    (["http://archive.ubuntu.com/ubuntu/"], "http://deb.debian.org/debian"),
    (["http://mirror.example/debian-security/", "http://mirror.example/debian/"], "http://mirror.example/debian/"),
    (["https://mirror.example/pub/debian"], "https://mirror.example/pub/debian"),
    (["cdrom://debian/", "file:/srv/debian"], "http://deb.debian.org/debian"),
])  # fmt: skip
def test_takes_the_archive_that_this_machine_s_apt_uses(uris: list[str], mirror: str) -> None:
    assert tool.choose_mirror(uris) == mirror


def test_takes_this_machine_s_proxies_and_nothing_else() -> None:
    dump = 'Acquire "";\nAcquire::http "";\nAcquire::http::Proxy "http://p:3142";\nAcquire::http::Proxy::host "DIRECT";\nAPT::x "y";\n'
    assert tool.proxies_in(dump) == ['Acquire::http::Proxy "http://p:3142";', 'Acquire::http::Proxy::host "DIRECT";']


def test_another_recipe_is_another_root(tmp_path: Path) -> None:
    forky = tool.Recipe("forky")
    assert not tool.is_current(tmp_path, forky)
    (tmp_path / tool.MARKER).write_text(tool.json.dumps({"recipe": tool.asdict(forky)}))
    assert tool.is_current(tmp_path, forky) and not tool.is_current(tmp_path, tool.Recipe("forky", ("hello",)))
    (tmp_path / tool.MARKER).write_text("[torn")
    assert not tool.is_current(tmp_path, forky)


def test_two_roots_at_once_install_mmdebstrap_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """apt-get refuses whoever comes while another one is at work."""
    apt, both, built = threading.Lock(), threading.Barrier(2), []

    def install() -> None:
        assert apt.acquire(blocking=False), "two at once"
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # the other one would come meanwhile
        apt.release()

    monkeypatch.setattr(tool, "install_mmdebstrap", install)
    monkeypatch.setattr(tool, "build", lambda folder, recipe: built.append(recipe.release))
    tmp_path.chmod(0o755)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda release: tool.ensure(tmp_path, release), ("trixie", "forky")))
    assert sorted(built) == ["forky", "trixie"]


def test_only_root_can_and_that_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["slurm-root", "build", "forky"])
    assert tool.main() == 69
    assert capsys.readouterr().err == "slurm-root: only root can make and enter another release's root folder; run this as root\n"


def test_a_mirror_that_cannot_be_reached_is_one_sentence_with_its_first_complaint(tmp_path: Path) -> None:
    said = (
        "Get:1 x\nE: Failed to fetch http://mirror.example/x  Could not resolve 'mirror.example'\nE: mmdebstrap failed to run\n"
    )
    with pytest.raises(tool.Trouble) as caught:
        tool.logged(("sh", "-c", 'printf %s "$0"; exit 25', said), tmp_path / "log", "no Debian", "; is there a network?")
    assert str(caught.value) == (f"no Debian: {said.splitlines()[1]}; is there a network?; {tmp_path}/log has the rest")
    assert caught.value.status == 69


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose folder it has to be")
def test_a_folder_that_others_can_change_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(tool.Trouble, match="root alone can change"):
        tool.open_folder(tmp_path)
    tmp_path.chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(tool.Trouble, match="root alone can change"):
        tool.open_folder(tmp_path / "link")


@pytest.mark.parametrize("argv", [["run", "bookworm", "true"], ["build"], ["run", "forky"], []])
def test_wrong_usage_is_64(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["slurm-root", *argv])
    try:
        assert tool.main() == 64
    except SystemExit as ended:
        assert ended.code == 64
