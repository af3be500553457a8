"""Reads what people wrote: policy files, profiles and annotations, with the line of every value for the error message."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ftslurm.errors import PolicyError
from ftslurm.model.settings.dialects import from_aimaster, from_annotations, from_others, looks_like
from ftslurm.model.settings.kinds import Layer, suggestion
from ftslurm.model.settings.limits import Limit, base_values, check_limits, limits_of
from ftslurm.model.settings.tree import Resolved, check_name, from_environment, from_tree, parse_leaf, resolve
from ftslurm.model.values import Value
from ftslurm.system.files import is_there

# --- files that a user or a site names: read whole, and never more of them than such a file can hold

MAX_BYTES = 1 << 20
# Of one value without quotes: YAML's reader takes a time for a number in base 60 that grows with the square of its length.
MAX_PLAIN_CHARS = 2048


def read_text(path: str | Path, what: str, only_roots: bool = False) -> str:
    """what: `the policy`, for the message. only_roots: root obeys it, so nobody else may be able to write it, nor make root wait.

    Raises: PolicyError for a file that cannot be read, is too large, is not text, or is others' to write.
    """
    try:
        with open(path, "rb", opener=_without_waiting if only_roots else None) as file:
            if only_roots:
                _check_only_roots(os.fstat(file.fileno()), path, what)
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PolicyError(f"{what} {path} cannot be read: {error.strerror}", hint="correct the path") from None
    if len(data) > MAX_BYTES:
        raise PolicyError(f"{what} {path} is larger than 1 MiB", hint="is it the right file?")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise PolicyError(f"{what} {path} is not text (UTF-8)", hint="is it the right file?") from None


def _without_waiting(path: str, flags: int) -> int:
    """Nor does a terminal become ours. It inherits nothing, as with open()."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def _check_only_roots(info: os.stat_result, path: str | Path, what: str) -> None:
    """Asked of the open file, which nobody can exchange. Raises: PolicyError."""
    if not stat.S_ISREG(info.st_mode):
        raise PolicyError(f"{what} {path} is not a plain file", hint="correct the path")
    if info.st_uid not in (0, os.geteuid()) or stat.S_IMODE(info.st_mode) & 0o022:
        raise PolicyError(f"{what} {path} can be written by users other than root", hint=f"chown root {path}; chmod go-w {path}")


# --- YAML


def read_yaml(text: str, place: str, as_written: bool = False) -> tuple[Any, dict[str, int]]:
    """The tree, and the line of each dotted name in it; the items of a list have numbers. as_written: every value is a string.

    Raises: PolicyError naming place and line; also for what stands twice, where YAML would keep the last and say nothing.
    """
    import yaml  # 20 ms, and most jobs have no file to read

    loader = _loader("BaseLoader" if as_written else "SafeLoader")
    try:
        root = yaml.compose(text, Loader=loader)
        lines = _lines(root, place) if root is not None else {}
        return yaml.load(text, Loader=loader), lines  # noqa: S506 -- a safe loader
    except (yaml.YAMLError, RecursionError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
        # What is none of its own comes from values like `!!int ""`, `!!bool maybe` and `1:1:...:1.5`.
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        told = " ".join(str(getattr(error, "problem", None) or error).split())
        raise PolicyError(f"{place}{where}: not YAML: {told}", hint="correct it there") from None


def read_shipped(name: str) -> Any:
    """A catalogue that ships with ftslurm."""
    from importlib import resources

    import yaml

    text = resources.files("ftslurm.catalogs").joinpath(name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=_loader("SafeLoader"))  # noqa: S506 -- a safe loader


def _loader(kind: str) -> Any:
    """Not every build of PyYAML has the C loader. It reads 94 KB in 30 ms, the Python one in a quarter of a second."""
    import yaml

    return getattr(yaml, f"C{kind}", getattr(yaml, kind))


def _lines(root: Any, place: str) -> dict[str, int]:
    """An alias counts as all that it stands for: with a few lines of them the tree can be larger than the memory."""
    found, size = {}, 0
    for name, where, value in _entries(root, "", place):
        characters = len(value.value) if value.id == "scalar" else 0
        size += 1 + characters
        if size > MAX_BYTES:
            raise _too_much(where, place, f"more than {MAX_BYTES} characters with its aliases written out")
        if characters > MAX_PLAIN_CHARS and not value.style:
            raise _too_much(value, place, f"a value of more than {MAX_PLAIN_CHARS} characters without quotes")
        found[name] = where.start_mark.line + 1
    return found


def _entries(node: Any, prefix: str, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Dotted name, where it stands, and the value, of all that is below `node`."""
    seen: set[str] = set()
    pairs = node.value if node.id == "mapping" else ()
    items = enumerate(node.value) if node.id == "sequence" else ()
    for where, key, value in (*((key, key.value, value) for key, value in pairs), *((each, at, each) for at, each in items)):
        name = f"{prefix}{key}"
        if name in seen:
            raise PolicyError(f"{place}, line {where.start_mark.line + 1}: `{name}` is here twice", hint="keep one")
        seen.add(name)
        yield name, where, value
        yield from _entries(value, f"{name}.", place)


def _too_much(at: Any, place: str, what: str) -> PolicyError:
    return PolicyError(f"{place}, line {at.start_mark.line + 1}: {what}", hint="is it the right file?")


SITE_POLICY = Path("/etc/ftslurm/policy.yaml")


class SettingsAsked(Value):
    """What the command line asked for, besides the environment. values: leaf -> (raw value, option as given).

    aimaster: AIMaster's own flags in one text. srun: as values, of srun's options; it lies below all that speaks of ftrun.
    """

    policy: str = ""
    profile: str = ""
    annotations: str = ""
    values: Mapping[str, tuple[Any, str]] | None = None
    aimaster: str = ""
    srun: Mapping[str, tuple[Any, str]] | None = None


def settings_in_force(request: SettingsAsked, env: Mapping[str, str], comment: str = "", site: Path = SITE_POLICY) -> Resolved:
    """All layers, least first, within the limits of the site. comment: of the Slurm job, which may carry annotations.

    Raises: PolicyError.
    """
    of_site, limits = _of_site(site) if is_there(site) else ([], ())
    layers = [_from_options(request.srun or {}), *of_site]
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
    return check_limits(resolve(layers), limits)


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
    return [base_values(limits), *_layers(tree, lines, place)], limits


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
