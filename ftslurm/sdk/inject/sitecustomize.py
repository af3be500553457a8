"""Run by every Python process of a rank at its start, because ftrun has put this folder on PYTHONPATH.

It lets programs written for other systems' sdks find ours (provide.py), and then runs the sitecustomize that would have
been found without it. It imports nothing that Python has not loaded already.
"""

# ruff: noqa: PTH100, PTH118, PTH120, UP036 -- pathlib would be imported for it; a rank may run older Pythons as well

import os
import sys

TYPE_CHECKING = False  # as in typing, which would be imported for it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load(name: str) -> "Any":
    """A module of the folder above this one, by a name that no program has."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import spec_from_file_location

    spec = spec_from_file_location(f"_ftslurm_{name}", os.path.join(os.path.dirname(_HERE), f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _go_on() -> None:
    """One before us on the path has been run already, and has called us."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    places = [os.path.abspath(place) for place in sys.path]
    behind = sys.path[places.index(_HERE) + 1 :] if _HERE in places else sys.path
    spec = PathFinder.find_spec("sitecustomize", [place for place in behind if os.path.abspath(place) != _HERE])
    if spec is not None and spec.loader is not None:
        # What the program imports by that name is then the one that it knows.
        sys.modules["sitecustomize"] = other = module_from_spec(spec)
        spec.loader.exec_module(other)


def _warm() -> "Callable[[], None]":
    """A process that waits to be the next rank, or a rank that notes its imports for one (warm.py). The former runs no program
    if that fails."""
    waits = os.environ["FTSLURM_WARM"].count(":") == 4
    try:
        then: Callable[[], None] = _load("warm").begin()
    except BaseException:
        if waits:
            os._exit(1)
        raise
    return then


if not hasattr(sys, "_ftslurm_injected"):  # one behind us that looks for the next anywhere but in its own folder finds us
    sys._ftslurm_injected = True  # type: ignore[attr-defined]
    try:
        begin_notes = _warm() if os.environ.get("FTSLURM_WARM") and sys.version_info >= (3, 10) else None
        if sys.version_info >= (3, 8):
            _load("provide").install(os.environ)
            if os.environ.get("FTSLURM_WATCH") and os.environ.get("FTSLURM_PAGE"):
                from ftslurm.sdk import probe  # as the finder of provide.py finds it

                probe.arm()
        if begin_notes is not None:
            begin_notes()
    except Exception as error:
        sys.stderr.write(f"ftslurm: cannot stand in for packages that are not installed: {error!r}\n")
    _go_on()
