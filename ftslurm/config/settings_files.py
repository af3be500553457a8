"""Reads what people wrote: policy files, profiles and annotations, with the line of every value for the error message."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftslurm.config.text_files import read_text, read_yaml
from ftslurm.errors import PolicyError
from ftslurm.model.settings.dialects import from_aimaster, from_annotations, from_others, looks_like
from ftslurm.model.settings.kinds import Layer, suggestion
from ftslurm.model.settings.limits import Limit, base, check, limits_of
from ftslurm.model.settings.tree import (
    Resolved,
    check_name,
    from_environment,
    from_tree,
    parse_leaf,
    resolve,
)
from ftslurm.model.values import dataclass

SITE_POLICY = Path("/etc/ftslurm/policy.yaml")


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for, besides the environment. values: leaf -> (raw value, option as given).

    aimaster: AIMaster's own flags in one text.
    """

    policy: str = ""
    profile: str = ""
    annotations: str = ""
    values: Mapping[str, tuple[Any, str]] | None = None
    aimaster: str = ""


def settings_in_force(request: Request, env: Mapping[str, str], comment: str = "", site: Path = SITE_POLICY) -> Resolved:
    """All layers, least first, within the limits of the site. comment: of the Slurm job, which may carry annotations.

    Raises: PolicyError.
    """
    layers, limits = _of_site(site) if site.exists() else ([], ())
    if profile := request.profile or env.get("FTRUN_PROFILE", ""):
        layers += profile_layers(profile, "--ft-profile" if request.profile else "FTRUN_PROFILE")
    if policy := request.policy or env.get("FTRUN_POLICY", ""):
        layers += policy_layers(Path(policy))
    if looks_like(comment):
        layers.append(from_annotations(comment, "the job's comment"))
    if wanted := request.annotations or env.get("FTRUN_ANNOTATIONS", ""):
        layers.append(from_annotations(read_text(wanted, "the annotations file"), wanted))
    if flags := request.aimaster or env.get("FTRUN_AIMASTER", ""):
        layers.append(from_aimaster(flags, "--ft-aimaster" if request.aimaster else "FTRUN_AIMASTER"))
    layers += [from_others(env), from_environment(env)]
    layers.append(_from_options(request.values or {}))
    return check(resolve(layers), limits)


def _from_options(values: Mapping[str, tuple[Any, str]]) -> Layer:
    return Layer({name: raw for name, (raw, _) in values.items()}, {name: option for name, (_, option) in values.items()})


def read_tree(path: str, what: str, only_roots: bool = False) -> dict[str, Any]:
    """A YAML file of people's, bounded. only_roots: as for read_text. Raises: PolicyError naming file and line."""
    return _parse(read_text(path, what, only_roots), path)[0]


def policy_layers(path: Path) -> list[Layer]:
    """The file's layer, after that of the profile it names. Raises: PolicyError naming file and line."""
    text, place = read_text(path, "the policy"), str(path)
    return _layers(*_parse(text, place), place)


def _of_site(path: Path) -> tuple[list[Layer], tuple[Limit, ...]]:
    """The site's layers and its limits. Raises: PolicyError naming file and line."""
    text, place = read_text(path, "the site's policy"), str(path)
    tree, lines = _parse(text, place)
    limits = limits_of(tree.pop("limits", {}), lambda name: f"{place}, line {_line(lines, f'limits.{name}')}")
    return [base(limits), *_layers(tree, lines, place)], limits


def profile_layers(name: str, place: str) -> list[Layer]:
    """A profile that ships with ftslurm. Raises: PolicyError."""
    known = profile_names()
    if name not in known:
        raise PolicyError(f"{place}: there is no profile `{name}`{suggestion(name, known)}", hint=f"there are {', '.join(known)}")
    place = f"profile {name}"
    return _layers(*_parse((_profiles() / f"{name}.yaml").read_text(), place), place)


def profile_names() -> tuple[str, ...]:
    """Those that ship, by name."""
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in _profiles().iterdir() if entry.name.endswith(".yaml")))


def _profiles() -> Any:
    """The folder, as importlib.resources hands it out."""
    from importlib import resources  # 5 ms, and seldom asked for

    return resources.files("ftslurm.config") / "profiles"


def _layers(tree: dict[str, Any], lines: Mapping[str, int], place: str) -> list[Layer]:
    profile = tree.pop("profile", None)
    layer = from_tree(tree, lambda name: f"{place}, line {_line(lines, name)}")
    for name, raw in layer.values.items():  # here, so that the first mistake in the file is the one that is named
        check_name(name, layer.places[name])
        parse_leaf(name, raw, layer.places[name])
    below = profile_layers(str(profile), f"{place}, line {_line(lines, 'profile')}") if profile is not None else []
    return [*below, layer]


def _line(lines: Mapping[str, int], name: str) -> int:
    return lines.get(name) or lines.get(name.rpartition(".")[0], 1)


def _parse(text: str, place: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The tree, and the line of each dotted name."""
    tree, lines = read_yaml(text, place)
    if not isinstance(tree, dict | None):
        raise PolicyError(f"{place}: a policy is a mapping of settings", hint="`ftslurm explain` lists the settings")
    return tree or {}, lines
