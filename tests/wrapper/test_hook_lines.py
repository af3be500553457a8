"""The scripts and the lines for slurm.conf, beside what a site has already."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from binascii import crc32
from pathlib import Path

import pytest

from ftslurm.errors import PolicyError, StateError
from ftslurm.hooks import install as hook_install
from ftslurm.hooks import scripts as hook_scripts
from ftslurm.hooks.hook_inputs import read_settings
from ftslurm.hooks.install import conf_lines, head_lines, import_path, sudo_lines
from ftslurm.model.folds.history import History, counters_of_node
from ftslurm.model.settings.hook_settings import LEAVES, HookSettings, hook_settings
from ftslurm.policies.environment import counters_env, restart_env
from ftslurm.slurm.parse import parse_config
from ftslurm.system.files import check_only_roots, check_tree
from tests.wrapper.shim_controller import SOON_S, until

RECORDED = Path(__file__).parents[1] / "recorded/slurm"


@pytest.mark.parametrize("version", ["22.05", "24.11", "26.05"])
def test_a_plain_cluster_gets_every_line(version: str) -> None:
    lines = conf_lines("/opt/hooks", parse_config((RECORDED / version / "config.txt").read_text()))
    wanted = {
        "Prolog=/opt/hooks/prolog",
        "Epilog=/opt/hooks/epilog",
        "TaskProlog=/opt/hooks/task_prolog",
        "EpilogSlurmctld=/opt/hooks/epilog_slurmctld",
        "HealthCheckProgram=/opt/hooks/health_check",
        "HealthCheckInterval=300",
    }
    assert wanted <= set(lines)
    (parameters,) = (line for line in lines if line.startswith("SchedulerParameters="))
    assert parameters.endswith("nohold_on_prolog_fail")


def test_what_has_to_be_done_before_the_lines_are_used_stands_above_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_install, "_config", lambda: None)
    text = hook_install.write_hooks(Path("/opt/hooks"), Path("/etc/hooks.yaml"), "", dry_run=True)
    said = " ".join(line.removeprefix("# ") for line in text.partition("\nProlog=")[0].splitlines())
    assert "first run this on every node and on slurmctld's host" in said and "is drained" in said
    assert "a node without it runs on the defaults" in said


@pytest.mark.parametrize(("config", "restart"), [
    ({"SLURM_VERSION": "22.05.8"}, True), ({"SLURM_VERSION": "24.11.5"}, False), ({"SLURM_VERSION": "26.05.0"}, False),
    ({"SLURM_VERSION": "22.05.8", "EpilogSlurmctld": "/site/epilog"}, False), (None, True),
])  # fmt: skip
def test_what_makes_slurm_use_them_stands_there(config: dict[str, str] | None, restart: bool) -> None:
    """Each was tried: a cluster without EpilogSlurmctld, the line added, a reconfigure, a job; then a restart of slurmctld."""
    text = "\n".join(head_lines("/h", "/etc/hooks.yaml", config))
    assert "`scontrol reconfigure`" in text and ("restart slurmctld" in text) is restart


def test_a_prolog_that_is_there_stays() -> None:
    old = conf_lines("/h", {"Prolog": "/site/prolog", "SLURM_VERSION": "22.05.8"})
    assert "Prolog=/h/prolog" not in old and any("/etc/slurm/prolog.d/*" in line for line in old)
    new = conf_lines("/h", {"Prolog[0]": "/site/prolog", "SLURM_VERSION": "24.11.5"})
    assert "Prolog=/h/prolog" in new and any("beside Prolog=/site/prolog" in line for line in new)
    both = conf_lines("/h", {"Prolog[0]": "/site/prolog", "Prolog[1]": "/h/prolog", "SLURM_VERSION": "24.11.5"})
    assert "# already there: Prolog=/h/prolog" in both
    assert any(line.startswith("# TaskProlog=/site/tp is there") for line in conf_lines("/h", {"TaskProlog": "/site/tp"}))


def test_a_time_limit_below_ours_is_told() -> None:
    assert any("Slurm drains a node whose Prolog" in line for line in conf_lines("/h", {"PrologEpilogTimeout": "20 sec"}))
    assert not any("Slurm drains" in line for line in conf_lines("/h", {"PrologEpilogTimeout": "65534"}))


def test_a_slurm_user_that_is_not_root_needs_sudo() -> None:
    assert sudo_lines("/h", "root") == []
    assert any("slurm ALL=(ALL,!root) NOPASSWD: /h/as_owner" in line for line in sudo_lines("/h", "slurm"))


@pytest.mark.parametrize(
    ("status", "ends"), [(0, 0), (hook_scripts.BAD_NODE_STATUS, 1), (1, 0), (2, 0), (70, 0), (126, 0), (127, 0)]
)
def test_only_the_module_s_own_word_fails_a_prolog(tmp_path: Path, status: int, ends: int) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexit {status}\n")
    python.chmod(0o755)
    assert run_script(tmp_path, "prolog", str(python)).returncode == ends
    assert run_script(tmp_path, "prolog", "/nonexistent/python").returncode == 0


@pytest.mark.parametrize("name", [*hook_scripts.LIMITS_S, "task_prolog"])
def test_one_that_hangs_is_cut_off_and_decides_nothing(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of a second in place of the site's; what is started heeds no SIGTERM."""
    assert hook_scripts.LIMITS_S == {"prolog": 30, "epilog": 900, "health_check": 50, "epilog_slurmctld": 700}
    monkeypatch.setattr(hook_scripts, "LIMITS_S", dict.fromkeys(hook_scripts.LIMITS_S, 1))
    monkeypatch.setattr(hook_scripts, "TASK_LIMIT_S", 1)
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\ntrap '' TERM\ntouch {tmp_path}/began\nsleep 50\necho late\nexit {hook_scripts.BAD_NODE_STATUS}\n"
    )
    python.chmod(0o755)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/c.7.jsonl").touch()
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_RESTART_COUNT": "1", "FTSLURM_STATE_DIR": str(tmp_path)}
    began = time.monotonic()
    done = run_script(tmp_path, name, str(python), **env)
    assert (tmp_path / "began").exists() and time.monotonic() - began < 45
    assert done.returncode == 0 and "late" not in done.stdout
    assert ("export MA_SCHEDULE_CNT=1" in done.stdout) == (name == "task_prolog")


# Notes when it begins and ends, and for which job it was asked, and how.
LOOKS = """#!/bin/sh
for how; do :; done
echo "begin $SLURM_JOB_ID ${{SLURM_ARRAY_TASK_ID-none}} $how" >>{folder}/looks
sleep 0.3
echo "end $SLURM_JOB_ID" >>{folder}/looks
"""


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock of util-linux is not installed")
def test_of_many_requeues_at_once_a_few_are_looked_at_and_none_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_scripts, "SLOT_PLACES", f"/nonexistent {tmp_path}")
    python, hook, jobs = tmp_path / "python", tmp_path / "hook", 16
    python.write_text(LOOKS.format(folder=tmp_path).replace("sleep 0.3", f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"))
    python.chmod(0o755)
    (script,) = (one for one in hook_scripts.scripts("/h", str(python), "/c", "") if one.name == "epilog_slurmctld")
    hook.write_text(script.text)
    env = {
        "PATH": "/usr/bin:/bin",
        "SLURM_JOB_RESTART_COUNT": "1",
        "SLURM_JOB_NODELIST": "n[1-2]; touch x $(reboot)",
        "SLURM_JOB_UID": "1000",
    }
    each = [
        {**env, "SLURM_JOB_ID": str(number), **({"SLURM_ARRAY_TASK_ID": "9"} if number % 2 else {})} for number in range(jobs)
    ]
    hooks = [subprocess.Popen(["sh", hook], env=one, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for one in each]
    until(
        lambda: sum(one.poll() is None for one in hooks) == hook_scripts.SLOTS,
        "slurmctld to wait for its own job's look and no other",
    )
    (tmp_path / "go").touch()
    assert [one.wait(SOON_S) for one in hooks] == [0] * jobs
    (slots,) = tmp_path.glob(f"ftslurm-epilog.{os.geteuid()}.*")
    until(lambda: len((tmp_path / "looks").read_text().splitlines()) == 2 * jobs, "all looks")
    looks = (tmp_path / "looks").read_text().splitlines()
    assert sorted(int(line.split()[1]) for line in looks if line.startswith("end")) == list(range(jobs)), "each once"
    assert all((line.split()[2] == "9") == bool(int(line.split()[1]) % 2) for line in looks if line.startswith("begin"))
    assert {line.split()[3] for line in looks if line.startswith("begin")} == {"/h", "later"}
    beside = most = 0
    for line in looks:
        beside += 1 if line.startswith("begin") else -1
        most = max(most, beside)
    assert most <= hook_scripts.SLOTS + 1
    assert not list(slots.glob("job.*")) and not (tmp_path / "x").exists() and slots.stat().st_mode & 0o777 == 0o700


def test_a_slot_folder_that_somebody_else_has_made_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_scripts, "SLOT_PLACES", str(tmp_path))
    mark = f"{crc32(b'/h /c'):08x}"
    (tmp_path / f"ftslurm-epilog.{os.geteuid()}.{mark}").symlink_to(tmp_path / "theirs")
    (tmp_path / "theirs").mkdir()
    python = tmp_path / "python"
    python.write_text(LOOKS.format(folder=tmp_path))
    python.chmod(0o755)
    assert run_script(tmp_path, "epilog_slurmctld", str(python), SLURM_JOB_ID="7", SLURM_JOB_RESTART_COUNT="1").returncode == 0
    assert "end 7" in (tmp_path / "looks").read_text() and not list((tmp_path / "theirs").iterdir())


@pytest.fixture(autouse=True)
def own_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not this machine's."""
    monkeypatch.setattr(hook_scripts, "SLOT_PLACES", str(tmp_path))


def run_script(folder: Path, name: str, python: str, **env: str) -> subprocess.CompletedProcess[str]:
    (script,) = (one for one in hook_scripts.scripts("/h", python, "/c", "") if one.name == name)
    path = folder / name
    path.write_text(script.text)
    return subprocess.run(
        ["sh", path], text=True, capture_output=True, timeout=180, check=False, env={"PATH": "/usr/bin:/bin", **env}
    )


@pytest.mark.parametrize(("restarts", "schedule"), [("", "1"), ("2", "3"), ("08", "9"), ("rubbish", "1"), ("$(reboot)", "1")])
def test_without_a_ledger_the_counters_need_no_python(tmp_path: Path, restarts: str, schedule: str) -> None:
    done = run_script(
        tmp_path, "task_prolog", "/nonexistent/python", SLURM_JOB_ID="7", SLURM_RESTART_COUNT=restarts, HOME=str(tmp_path)
    )
    assert done.returncode == 0
    assert done.stdout.splitlines()[:3] == [
        f"export MA_SCHEDULE_CNT={schedule}",
        "export MA_PROC_START_CNT=1",
        "export FTSLURM_ATTEMPT=1",
    ]


def test_a_step_of_ftrun_s_is_left_to_ftrun(tmp_path: Path) -> None:
    assert run_script(tmp_path, "task_prolog", "/nonexistent/python", FTSLURM_CHANNEL="x", SLURM_JOB_ID="7").stdout == ""


def test_the_settings_that_are_written_for_a_site_are_settings() -> None:
    import yaml

    text = "\n".join(line.removeprefix("# ") for line in hook_scripts.shell_file("settings.yaml").splitlines()[1:])
    assert hook_settings(yaml.safe_load(text), "here").devices == {"ascend": 8}
    assert set(yaml.safe_load(text)) == set(LEAVES)
    assert hook_settings({}, "here") == HookSettings()


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"helth_command": ["/x"]}, "did you mean `health_command`"),
        ({"health_command": ["nhc"]}, "absolute path"),
        ({"limit": 20}, "write a duration, such as 20s"),
        ({"devices": {"nvidia": 0}}, "out of range: 1 to 1024"),
        ({"ledgers": ["/home/{user}/../root"]}, "absolute path"),
        ({"cleanup": "/x"}, "not a list of commands"),
    ],
)
def test_a_wrong_setting_is_named(tree: dict[str, object], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        hook_settings(tree, "hooks.yaml")


def test_devices_that_no_plugin_reads_are_named(tmp_path: Path) -> None:
    place = tmp_path / "hooks.yaml"
    place.write_text("devices: {nvida: 8}")
    place.chmod(0o644)
    with pytest.raises(PolicyError, match=r"no plugin reads `nvida`; did you mean `nvidia`\?"):
        read_settings(place)


def test_what_others_may_write_root_does_not_run(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    with pytest.raises(StateError, match="can be changed by users"):
        check_only_roots(loose)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="whose a file is only root can lay down")


@as_root
def test_a_link_is_followed_step_by_step(tmp_path: Path) -> None:
    """root's/link -> open/door -> root's/file: whoever may write in `open` chooses where the link ends."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open/door").symlink_to("../mine/file")
    (tmp_path / "link").symlink_to("open/door")
    check_only_roots(tmp_path / "link")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(StateError, match="open can be changed by users"):
        check_only_roots(tmp_path / "link")


@as_root
def test_a_link_of_somebody_else_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common").chmod(0o1777)
    (tmp_path / "common/file").write_text("")
    check_only_roots(tmp_path / "common/file")
    (tmp_path / "common/door").symlink_to("file")
    check_only_roots(tmp_path / "common/door")
    os.lchown(tmp_path / "common/door", 1234, 1234)
    with pytest.raises(StateError, match="door can be changed by users"):
        check_only_roots(tmp_path / "common/door")


@as_root
def test_what_is_not_there_yet_nobody_else_may_make(tmp_path: Path) -> None:
    check_only_roots(tmp_path / "later/file")
    (tmp_path / "common").mkdir()
    (tmp_path / "common").chmod(0o1777)
    with pytest.raises(StateError, match="common can be changed by users"):
        check_only_roots(tmp_path / "common/later")


@as_root
def test_links_that_lead_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StateError, match="links"):
        check_only_roots(tmp_path / "a")


@as_root
@pytest.mark.parametrize(
    "spoil",
    [
        lambda site: (site / "loose.py").chmod(0o666),
        lambda site: (site / "deep/inside").chmod(0o777),
        lambda site: os.chown(site / "deep/inside/module.py", 1234, 1234),
        lambda site: (site / "elsewhere.py").symlink_to("/tmp/nobody-has-made-this.py"),
        lambda site: (site.parent / "aside/module.py").chmod(0o666),
    ],
)
def test_everything_that_root_s_python_may_import_is_root_s(tmp_path: Path, spoil) -> None:
    site = tmp_path / "site"
    (site / "deep/inside").mkdir(parents=True)
    (site / "loose.py").write_text("")
    (site / "deep/inside/module.py").write_text("")
    (site / "linked.py").symlink_to("loose.py")
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside/module.py").write_text("")
    (site / "package").symlink_to("../aside")
    (site / "aside_again").symlink_to("..")
    check_tree(site)
    spoil(site)
    with pytest.raises(StateError, match="can be changed by users"):
        check_tree(site)


def test_the_path_is_that_of_the_interpreter_in_its_own_mode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = import_path(sys.executable)
    assert tmp_path not in found and Path(os.__file__).parent in found and Path(pytest.__file__).parents[1] in found


@pytest.mark.parametrize(("requeues", "restarts"), [(None, 0), ("0", 0), ("3", 3), ("none", 0)])
def test_a_task_of_a_job_without_a_ledger_is_told_what_the_one_rule_says(
    tmp_path: Path, requeues: str | None, restarts: int
) -> None:
    """Of the counters: a script adds the requeues, and no Python starts for it."""
    (script,) = (one for one in hook_scripts.scripts("/h", "/no/such/python", "/c", "") if one.name == "task_prolog")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SLURM_JOB_ID": "7"}
    env |= {} if requeues is None else {"SLURM_RESTART_COUNT": requeues}
    done = subprocess.run(["sh", "-c", script.text], env=env, capture_output=True, text=True, timeout=30)
    told = counters_env(counters_of_node(History(), restarts, None)) | restart_env("", "", "")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "".join(f"export {name}={value}\n" for name, value in told.items())
