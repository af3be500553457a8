"""slurm.conf, as Slurm's own programs read it."""

from __future__ import annotations

from pathlib import Path

from ftslurm.slurm.conf_file import read_conf
from tests.each import each

CLUSTER = "ClusterName=Alps\n"
PROCTRACK = "ProctrackType=proctrack/cgroup\n"
BOTH = {"ClusterName": "alps", "ProctrackType": "proctrack/cgroup"}
PORTS = {**BOTH, "SrunPortRange": "60001-63000"}


def test_reads_what_slurm_reads(tmp_path: Path) -> None:
    (tmp_path / "ports.conf").write_text("SrunPortRange=60001-63000")

    def told(text: str, expected: dict[str, str]) -> None:
        (tmp_path / "slurm.conf").write_text(text)
        assert read_conf({"SLURM_CONF": str(tmp_path / "slurm.conf")}) == expected

    each(
        [
            (CLUSTER + PROCTRACK, BOTH),
            (f"{CLUSTER}{PROCTRACK}SlurmctldPort=6817-6820 srunportrange = 60001-63000 # more\r\n", PORTS),
            (f"{CLUSTER}{PROCTRACK}#SrunPortRange=1-2\nKillWait=3 # SrunPortRange=3-4", BOTH),
            (f"{CLUSTER}{PROCTRACK}KillWait=3 \\\n  SrunPortRange=60001-63000", PORTS),
            (f"{CLUSTER}{PROCTRACK}# a comment does not go on \\\nSrunPortRange=60001-63000", PORTS),
            (f"{CLUSTER}SrunPortRange=1-2\n{PROCTRACK} INCLUDE  ports.conf ", PORTS),
            (f"{PROCTRACK}include ports.conf {CLUSTER}", PORTS),
            (f"{CLUSTER}{PROCTRACK}include {tmp_path}/ports.conf\nSrunPortRange=1-2", {**BOTH, "SrunPortRange": "1-2"}),
            (f'{CLUSTER}{PROCTRACK}AuthInfo="socket=/run/a b,ttl=3"', {**BOTH, "AuthInfo": "socket=/run/a b,ttl=3"}),
            (f"{CLUSTER}{PROCTRACK}XSrunPortRange=1-2 AuthInfo.x=3", BOTH),
        ],
        told,
    )


def test_what_the_file_leaves_open_is_slurmctlds_to_tell(tmp_path: Path) -> None:
    def is_open(text: str) -> None:
        (tmp_path / "slurm.conf").write_text(text)
        assert read_conf({"SLURM_CONF": str(tmp_path / "slurm.conf")}) == {}

    both = CLUSTER + PROCTRACK
    each([PROCTRACK, CLUSTER, "", f"{both}include away.conf", f"{both}include %c.conf", f"{both}include *.conf"], is_open)
    assert read_conf({}) == read_conf({"SLURM_CONF": "/dev/null"}) == read_conf({"SLURM_CONF": str(tmp_path)}) == {}
