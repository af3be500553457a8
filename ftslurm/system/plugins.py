"""Device vendors, notifiers and catalogues: ours, and those of other installed packages by their entry points.

They are looked for where one is needed, never because ftrun starts: reading what all installed packages say of themselves takes
10 to 50 ms. Every agent needs the device vendors, and where no package names any that reading is not begun.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import ftslurm
from ftslurm.errors import StateError
from ftslurm.model.text import visible
from ftslurm.model.values import Value
from ftslurm.system.files import check_only_roots, check_tree

DEVICES, NOTIFIERS, CATALOGS = "ftslurm.devices", "ftslurm.notifiers", "ftslurm.catalogs"
# group -> name -> `module:attribute`, as in a package's metadata. Ours are here: a checkout and a bundle have no metadata.
OURS = {
    DEVICES: {
        "ascend": "ftslurm.devices.ascend.probe:AscendProbe",
        "nvidia": "ftslurm.devices.nvidia:NvidiaProbe",
        "amd": "ftslurm.devices.amd:AmdProbe",
    },
    NOTIFIERS: {"apprise": "ftslurm.notify.deliver:by_apprise"},
    CATALOGS: dict[str, str](),
}


class Plugin(Value):
    """group, name, value: of its entry point. package: distribution and version. folder: where that is, empty for ours."""

    group: str
    name: str
    value: str
    package: str
    folder: str = ""

    @property
    def kind(self) -> str:
        """For people."""
        return {DEVICES: "device vendor", NOTIFIERS: "notifier", CATALOGS: "catalogue"}[self.group]

    def load(self) -> Any:
        """What the entry point names. Raises: StateError, whatever goes wrong; for root also if others can change it."""
        module, _, attribute = self.value.partition(":")
        try:
            if self.folder and os.geteuid() == 0:
                _check_only_roots(self.folder, module.partition(".")[0])
            found: Any = import_module(module)
            for name in attribute.split("."):
                found = getattr(found, name)
        except StateError as error:
            raise StateError(error.message) from None
        except (Exception, SystemExit) as error:  # it may raise whatever it likes
            raise StateError(f"{type(error).__name__}: {error}".removesuffix(": ")) from None
        return found

    def leave_out(self, why: object) -> None:
        """Tell people."""
        print(f"ftslurm: {visible(f'the {self.kind} {self.name} of {self.package} is left out: {why}')}", file=sys.stderr)


def find(group: str) -> dict[str, Plugin]:
    """name -> plugin: ours first. Of two packages with one name the first on sys.path counts, and ours before both. Nothing is
    imported; a package whose entry points cannot be read is named on stderr."""
    found = {name: Plugin(group, name, value, f"ftslurm {ftslurm.__version__}") for name, value in OURS[group].items()}
    for plugin in _theirs(group) if _may_be_named(group) else ():
        found.setdefault(plugin.name, plugin)
    return found


def _theirs(group: str) -> list[Plugin]:
    from importlib.metadata import distributions

    theirs = []
    for each in distributions():
        try:
            entries = each.entry_points.select(group=group)
            theirs += [Plugin(group, e.name, e.value, f"{each.name} {each.version}", str(each.locate_file(""))) for e in entries]
        except Exception as error:  # what somebody has written there
            place = each.locate_file("")
            print(f"ftslurm: {visible(f'entry points of a package in {place} cannot be read: {error}')}", file=sys.stderr)
    return theirs


def _may_be_named(group: str) -> bool:
    """No only where every package's entry points have been read, and none names the group."""
    try:
        return any(group.encode() in text for place in sys.path for text in _entry_points(place))
    except OSError:  # an archive, for one
        return True


def _entry_points(place: str) -> Iterator[bytes]:
    """Of the packages in a folder of sys.path, where importlib.metadata looks for them too. Raises: OSError."""
    with suppress(FileNotFoundError):
        for folder in Path(place).iterdir():
            if folder.name.lower().endswith(("dist-info", "egg-info")):
                with suppress(FileNotFoundError, NotADirectoryError):
                    yield (folder / "entry_points.txt").read_bytes()


def load(group: str) -> Iterator[tuple[Plugin, Any]]:
    """Those that can be loaded. The others are named on stderr."""
    for plugin in find(group).values():
        try:
            yield plugin, plugin.load()
        except StateError as error:
            plugin.leave_out(error)


def _check_only_roots(folder: str, package: str) -> None:
    """Neither what says that there is a plugin, nor the plugin. Raises: StateError."""
    from importlib.util import find_spec

    check_only_roots(Path(folder))
    spec = find_spec(package)  # of a name without a dot it imports nothing
    places = list(spec.submodule_search_locations or ()) or [spec.origin or ""] if spec else []
    for place in places:
        check_tree(Path(place))


# --- the libraries of our extras


def pip_line(extra: str) -> str:
    """The command that adds them to the Python which runs us: `pip` may be another one's, and no index need have ftslurm."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        needs = [each.partition(";")[0].strip() for each in requires("ftslurm") or () if f'extra == "{extra}"' in each]
    except PackageNotFoundError:
        needs = [f"ftslurm[{extra}]"]
    return shlex.join((sys.executable, "-m", "pip", "install", *needs))
