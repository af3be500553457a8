"""Which interpreter and folder start shims and agents on another node."""

from __future__ import annotations

from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Python:
    """interpreter: a path that is the same on every node. root: the folder that holds the package `ftslurm`."""

    interpreter: str
    root: str

    def shim_argv(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """-I -S: nothing of the user's environment is loaded, and the start costs half. Imported, not run as a script:
        of an import Python keeps the compiled form, which saves a quarter of the rest."""
        start = f"import sys; sys.path.append({self.root + '/ftslurm/wrapper/shim'!r}); from _shim import main; main()"
        return (self.interpreter, "-I", "-S", "-c", start, "--", *command)

    def module_argv(self, module: str, *arguments: str) -> tuple[str, ...]:
        """`python -m` without the current folder on the path, where the user's files could stand in for ours."""
        start = f"import sys; sys.path.insert(0, {self.root!r}); from {module} import main; main()"
        return (self.interpreter, "-I", "-c", start, *arguments)

    def agent_argv(self, poll_s: float) -> tuple[str, ...]:
        """poll_s: between two looks at the devices, seconds."""
        return self.module_argv("ftslurm.wrapper.agent.agent", f"{poll_s:g}")
