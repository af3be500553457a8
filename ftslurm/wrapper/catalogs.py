"""Reads the catalogues that ship with ftslurm."""

from __future__ import annotations

from importlib.resources import files

import yaml

from ftslurm.policies.codes import AscendCatalog, build_catalog


def load_ascend_catalog() -> AscendCatalog:
    """The shipped Ascend codes. Raises: PolicyError if the file was damaged."""
    text = files("ftslurm.policies").joinpath("catalogs/ascend.yaml").read_text(encoding="utf-8")
    # Not every build of PyYAML has the C loader. It reads the 94 KB in 30 ms, the Python one in a quarter of a second.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return build_catalog(yaml.load(text, Loader=loader))  # noqa: S506  both loaders are safe ones
