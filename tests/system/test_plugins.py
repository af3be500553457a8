"""Plugins: what is found, what cannot be loaded, what root does not load; and the example of the documents, installed from its wheel."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import click
import pytest

from ftslurm.config.catalog_files import load_code_book
from ftslurm.devices.probe import choose_probes
from ftslurm.errors import StateError
from ftslurm.launchers.python import in_bundle
from ftslurm.notify.deliver import Destination, deliver
from ftslurm.notify.outbox import Notice
from ftslurm.system.commands import run
from ftslurm.system.plugins import CATALOGS, DEVICES, NOTIFIERS, OURS, find, load, pip_line

ROOT = Path(__file__).resolve().parents[2]
GOOD = """
from ftslurm.model.devices import DeviceHealth, DeviceReport, ProbeAnswer

class Probe:
    kind = "good"
    def __init__(self, run, env): ...
    def present(self): return True
    def read(self, timeout_s): return ProbeAnswer((DeviceReport("0", "good", DeviceHealth.GOOD),))
    def utilisation(self, timeout_s): return ()
"""
BAD = {
    "raises at import": "raise RuntimeError('no driver')",
    "ends at import": "import sys; sys.exit(3)",
    "has no Probe": "",
    "raises when made": "class Probe:\n    def __init__(self, run, env): raise RuntimeError('no driver')",
    "ends when asked": GOOD.replace("return True", "raise SystemExit(3)"),
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on sys.path."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site: Path, group: str, name: str, text: str, attribute: str = "Probe") -> str:
    """A package of one module, as pip leaves it; the module's name."""
    module = f"plugin_{name}_{site.parent.name}_{site.name}".replace("-", "_")
    (site / f"{module}.py").write_text(text)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:{attribute}\n")
    return module


@pytest.mark.parametrize("group", OURS)
def test_ours_are_found_without_metadata_and_load(group: str) -> None:
    assert [plugin.name for plugin, _ in load(group)][: len(OURS[group])] == list(OURS[group])


def test_where_no_package_names_a_plugin_nothing_is_loaded_to_look_for_one() -> None:
    code = "import sys; from ftslurm.system.plugins import find; print(*find('ftslurm.devices'), 'importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [*OURS[DEVICES], "False"]


def test_a_package_in_an_archive_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    install(tmp_path / "site", DEVICES, "packed", GOOD)
    monkeypatch.syspath_prepend(shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "site"))
    assert "packed" in find(DEVICES)


@pytest.mark.parametrize("what", BAD)
def test_a_vendor_that_fails_is_named_and_left_out(site: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, DEVICES, "bad", BAD[what])
    install(site, DEVICES, "good", GOOD)
    assert [probe.kind for probe in choose_probes({}, run)] == ["good"]
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("ftslurm: the device vendor bad of bad 1.0 is left out: ")


@pytest.mark.parametrize("line", ["raise KeyError('uuid')", "raise SystemExit(3)", "return None"])
def test_a_vendor_that_fails_later_is_an_error_of_its_devices(site: Path, line: str) -> None:
    install(site, DEVICES, "bad", GOOD.replace("return ProbeAnswer", f"{line}; ProbeAnswer").replace("return ()", line))
    (probe,) = choose_probes({}, run)
    assert probe.read(1.0).error.startswith("the look at the bad devices failed: ") and probe.utilisation(1.0) == ()
    assert probe.heal("0", (), False, 0, 0).healed is None  # it has no such method


@pytest.mark.parametrize("text", [b"[ftslurm.devices]\nnonsense\n", b"\xff\xfe"])
def test_a_package_that_says_nonsense_keeps_nobody_from_what_others_say(
    site: Path, text: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, DEVICES, "good", GOOD)
    install(site, DEVICES, "bad", GOOD)
    (site / "bad-1.0.dist-info/entry_points.txt").write_bytes(text)
    assert [probe.kind for probe in choose_probes({}, run)] == ["good"]
    assert f"entry points of a package in {site} cannot be read" in capsys.readouterr().err


def test_nobody_takes_the_name_of_ours(site: Path) -> None:
    install(site, DEVICES, "nvidia", GOOD)
    assert find(DEVICES)["nvidia"].value == OURS[DEVICES]["nvidia"]


def test_a_notifier_that_fails_is_the_reason_why_a_notice_did_not_go(site: Path) -> None:
    text = "def send(url, notice):\n    raise RuntimeError(f'no room in {url}')"
    install(site, NOTIFIERS, "acme", text, "send")
    install(site, NOTIFIERS, "gone", "raise SystemExit(3)", "send")
    notice = Notice("i", 1e9, "7", "failure", "job 7 failed")
    assert deliver(Destination("a", "acme://secret-room"), notice) == "RuntimeError: no room in acme://***"
    assert deliver(Destination("b", "gone://secret-room"), notice) == "SystemExit: 3"


def test_a_catalogue_that_is_wrong_is_left_out(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("bad", "devices: {acme: {E17: {remedy: pray}}}"), ("good", "devices: {acme: {E18: {remedy: fail}}}")):
        (site / f"{name}.yaml").write_text(text)
        install(site, CATALOGS, name, f"PLACE = {str(site / f'{name}.yaml')!r}", "PLACE")
    assert list(load_code_book().catalogs["acme"].entries) == ["E18"]
    assert "the catalogue bad of bad 1.0 is left out: " in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is in danger")
@pytest.mark.parametrize("spoil", ["the folder", "the module", "its owner"])
def test_root_loads_nothing_that_others_can_change(site: Path, spoil: str) -> None:
    module = install(site, DEVICES, "good", f"open({str(site / 'ran')!r}, 'w')\n{GOOD}")
    place = site / f"{module}.py"
    if spoil == "its owner":
        os.chown(place, 1234, 1234)
    else:
        (site if spoil == "the folder" else place).chmod(0o777)
    with pytest.raises(StateError, match="can be changed by users other than root"):
        find(DEVICES)["good"].load()
    assert not (site / "ran").exists()


# --- the example


def command(*argv: str | Path, status: int = 0, **env: str) -> str:
    done = subprocess.run(
        argv, env={"PATH": "/usr/bin:/bin", **env}, cwd="/", capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == status, f"{argv}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with ftslurm and, from its wheel, the example."""
    top = tmp_path_factory.mktemp("example")
    shutil.copytree(ROOT / "docs/example-plugin", top / "source")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    command(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", top / "dist", top / "source")
    (wheel,) = (top / "dist").glob("*.whl")
    venv.create(top / "venv", with_pip=False)
    (site,) = (top / "venv/lib").glob("python3*/site-packages")
    (site / "libraries.pth").write_text(f"{Path(click.__file__).parents[1]}\n{ROOT}\n")
    command(*pip, "--python", top / "venv/bin/python", "install", "--no-deps", "--no-index", wheel)
    return top


def ftslurm(here: Path, *words: str, **env: str) -> str:
    return command(here / "venv/bin/python", "-I", "-c", "from ftslurm.cli.doors import ftslurm; ftslurm()", *words, **env)


def test_the_example_is_listed(here: Path) -> None:
    said = ftslurm(here, "plugins")
    assert [line.split("  ")[0] for line in said.splitlines() if "acme-ftslurm 1.0" in line and line.endswith("ok")] == [
        "device vendor", "notifier", "catalogue",
    ]  # fmt: skip


@pytest.mark.timeout(240)
def test_a_job_heals_the_example_s_devices_knows_their_codes_and_pages_people(here: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    tool = tmp_path / "bin/acme-smi"
    tool.parent.mkdir()
    tool.write_text(
        f"#!/bin/sh\ncd {tmp_path}\n[ $1 = reset ] && touch well\necho 0 ok; [ -e well ] && echo 1 ok || echo 1 e17\n"
    )
    tool.chmod(stat.S_IRWXU)
    state.mkdir(mode=0o700)
    (state / "notify.yaml").write_text("ops: acme://ops\n")
    (state / "notify.yaml").chmod(0o600)
    env = {"PATH": f"{tool.parent}:/usr/bin:/bin", "FTSLURM_STATE_DIR": str(state), "ACME_PAGERS": str(tmp_path)}
    values = ("devices.poll=1s", "rungs.in-place-restart.self_heal_wait=1s", "notify.restart=ops")
    options = ("--ft-launcher", "local", "--ft-local-nodes", "1", *(word for value in values for word in ("--ft-set", value)))
    command(
        here / "venv/bin/python", "-I", "-m", "ftslurm", *options, "-n1", "sh", "-c", f"[ -e {tmp_path}/well ] || sleep 60", **env
    )
    told = ftslurm(here, "history", **env)
    assert "E17 (the link to the next accelerator is down)" in told
    assert "restarted in place: device 1 of local1" in (tmp_path / "ops").read_text()
    assert "look at the cable" in ftslurm(here, "explain", "E17", **env)
    assert "acme-link-down" in ftslurm(here, "explain", "libacme: link 3 is down", **env)


VENDOR = """
import sys
from ftslurm.config.catalog_files import load_code_book, load_pattern_book
from ftslurm.config.fault_lookup import fault_lookup
from ftslurm.model.devices import Severity
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.kernel_log import kernel_findings, parse_kernel_log
from ftslurm.wrapper.nodes import adviser

log = parse_kernel_log(b"3,1,9,-;acme_drv 0: fault 4, a note\\n3,2,9,-;acme_drv 1: fault 3, off the bus", -1)
(line,) = kernel_findings(log, load_pattern_book(), fault_lookup(()))
print("kernel log:", line.health.value, line.what)
print("advice:", adviser(Settings())("ftslurm: kernel log: FAULT 3 (the accelerator has fallen off the bus)"))
print("site:", load_code_book((sys.argv[1],)).meaning("acme", "fault 3", Severity.UNKNOWN).remedy.value)
"""


def test_a_vendor_of_a_plugin_gets_what_ours_get(here: Path, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("devices: {acme: {FAULT 3: {remedy: log}}}")
    said = command(here / "venv/bin/python", "-I", "-c", VENDOR, tmp_path / "site.yaml").splitlines()
    assert said == [
        "kernel log: bad FAULT 3 (the accelerator has fallen off the bus)", "advice: reseat the accelerator", "site: log",
    ]  # fmt: skip
    assert "acme fault code" in ftslurm(here, "explain", "Fault", "4") and "off the bus" in ftslurm(here, "explain", "fault=3")
    assert "FAULT 3: the accelerator has fallen off the bus" in ftslurm(here, "explain", "acme_drv 0: fault 3, off the bus")


def test_a_variable_of_a_plugin_s_vendor_may_hide_devices(here: Path, tmp_path: Path) -> None:
    env = {"FTSLURM_STATE_DIR": str(tmp_path), "ACME_VISIBLE_DEVICES": ""}
    argv = ("--ft-launcher", "local", "--ft-local-nodes", "2", "-n2", "sh", "-c", "echo libacme: no accelerator >&2; exit 1")
    tmp_path.chmod(0o700)
    command(here / "venv/bin/python", "-I", "-m", "ftslurm", *argv, status=1, **env)
    assert "ACME_VISIBLE_DEVICES shows the program no device" in ftslurm(here, "history", **env)


def test_the_interpreter_of_containers_brings_it_along(here: Path, tmp_path: Path) -> None:
    make = "import sys, pathlib; from ftslurm.system.bundle import bundle_in, make_bundle; b = bundle_in(pathlib.Path(sys.argv[1])); make_bundle(b); print(b)"
    place = command(here / "venv/bin/python", "-I", "-c", make, tmp_path).strip()
    python = in_bundle(place)
    ask = "import sys; sys.path.insert(0, sys.argv[1]); from ftslurm.system.plugins import find; print(find('ftslurm.devices')['acme'].load())"
    assert "acme_ftslurm.devices.AcmeProbe" in command(*python.interpreter, "-I", "-c", ask, python.root)


def test_the_libraries_of_an_extra_are_named_for_our_own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        metadata, "requires", lambda name: ["click>=8", 'textual>=1.0; extra == "watch"', 'jinja2; extra == "report"']
    )
    assert pip_line("watch") == f"{sys.executable} -m pip install 'textual>=1.0'"

    def none(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", none)
    assert pip_line("watch") == f"{sys.executable} -m pip install 'ftslurm[watch]'", "a checkout has no metadata"
