"""ftrun with ranks in containers: of a plugin that stands in for pyxis (tests/containers), of charliecloud and of bubblewrap."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.containers.images import bare_image, build_plugin, conda_image, oci_bundle, whole_image
from tests.live.conftest import booted, job_user, new_stage
from tests.live.releases import slurm_version
from tests.live.sites import REPLACE, shared_folder
from tests.live.stories import BY_DEFAULT, PLAIN, Plan, Stage, Story, story

pytestmark = [
    pytest.mark.live, pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a cluster a plugin"),
    pytest.mark.skipif(not Path("/usr/include/slurm/spank.h").exists(), reason="needs the headers of Slurm (libslurm-dev)"),
]  # fmt: skip

TORCH = "PYTORCH_VERSION=2\n"
IMAGE = "--container-image=$BOXES/bare --container-mounts=$STORY"
ENV = {"BOXES": "%BOXES%", "FTSLURM_STATE_DIR": "%HOME%/state"}


@pytest.fixture(scope="module")
def stage(job_path: tuple[Path, ...]) -> Iterator[Stage]:
    """A cluster with the plugin; all stories share the images, and a state folder with the one bundle."""
    with shared_folder() as boxes:
        conf = f"PlugStackConfig={build_plugin(boxes)}"
        bare_image(boxes / "bare"), conda_image(boxes / "conda"), bare_image(boxes / "torch", TORCH), whole_image(boxes / "whole")
        oci = oci_bundle(boxes / "oci", job_user(), [Path(each) for each in ("/proc", "/usr", "/var/tmp")])
        with booted(4, [conf], ["--cpus=2", "--gpus=0", f"--file={oci}"]) as own, new_stage(own, job_path) as stage:
            yield Boxes(stage, boxes)


class Boxes(Stage):
    """A stage whose stories know where the images are."""

    def __init__(self, stage: Stage, boxes: Path) -> None:
        super().__init__(stage.cluster, stage.home, ())
        self.path, self.boxes = stage.path, boxes

    def prepare(self, plan: Plan, name: str) -> Story:
        def placed(text: str) -> str:
            return text.replace("%BOXES%", str(self.boxes)).replace("%HOME%", str(self.home))

        env = {name: placed(value) for name, value in (ENV | plan.env).items()}
        return super().prepare(replace(plan, env=env, sbatch=tuple(map(placed, plan.sbatch))), name)


@pytest.mark.slurms
@story(
    nodes=2, tasks=2, ft=f"{IMAGE} --ft-set rungs.in-place-restart.crash_restarts=2",
    rank='together; say $(ls /) $(ls $FTSLURM_STATE_DIR/bundles/*/secrets); [ $FTSLURM_ATTEMPT = 2 ] || exit 3',
)  # fmt: skip
def test_an_image_without_python_needs_no_other_word(told: Story) -> None:
    """Restarted in place in the same containers; the secret came by a file, which is gone."""
    told.ended("COMPLETED")
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    assert all("usr" in words and "var" in words and "opt" not in words for _, _, _, words in told.said()), told.describe()
    assert all(re.search(rf"\.{told.id}\.[0-9a-f]{{16}}\b", words) for _, _, _, words in told.said()), told.describe()
    assert not [path for path in Path(told.env["FTSLURM_STATE_DIR"]).glob("bundles/*/secrets/*") if f".{told.id}." in path.name]


@story(
    ft="--container-image=$BOXES/conda --container-mounts=$STORY",
    rank='say "$(python3) $LD_LIBRARY_PATH $PYTHONHOME"; [ $FTSLURM_ATTEMPT = 2 ] || exit 3', env=BY_DEFAULT,
)  # fmt: skip
def test_an_image_s_own_python_and_libraries_are_the_program_s_alone(told: Story) -> None:
    told.ended("COMPLETED")
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    assert {words for _, _, _, words in told.said()} == {"Python 3.6.8 /conda/lib /conda"}, told.describe()


@story(
    ft="", env={"PYXIS_CONTAINER_IMAGE": "%BOXES%/whole", "PYXIS_CONTAINER_MOUNTS": "%STORY%", "LD_PRELOAD": "/nowhere.so"},
    rank='say "$(ls -d /opt /usr) $LD_PRELOAD" 2>&1; python3 -c "from ftslurm.sdk import client"; say $?',
)  # fmt: skip
def test_a_container_that_comes_by_variables(told: Story) -> None:
    """The user's mounts are kept, what was preloaded is there again, and the image's own Python finds the program interface."""
    told.ended("COMPLETED")
    assert [words for _, _, _, words in told.said()] == ["/usr /nowhere.so", "0"], told.describe()


@story(
    ft="", sbatch=("--container-image=%BOXES%/bare", "--container-mounts=%HOME%"), rank='say $(ls /)',
)  # fmt: skip
def test_a_container_of_the_job_s_own_options(told: Story) -> None:
    told.ended("COMPLETED")
    assert "opt" not in told.said()[0][3], told.describe()


@story(
    nodes=1, ft=f"{IMAGE} --container-name=runs", script='srun touch /tmp/box-runs\n%RUN%\nstatus=$?\nsrun rm /tmp/box-runs\nexit $status',
)  # fmt: skip
def test_a_container_that_runs_already_takes_no_mounts_and_that_is_said(told: Story) -> None:
    told.ended("FAILED")
    assert re.search(r"^ftrun: job \d+ failed: .*: n\d has no .*/bundles/.*takes no mounts", told.output(), re.M), told.describe()


@story(
    nodes=2, ft="--ft-set python=bundle", rank="""
    [ $SLURM_PROCID = 0 ] || exec sleep 60
    say "$(cat /proc/$PPID/cmdline | tr '\\0' ' ')"; [ $FTSLURM_ATTEMPT = 2 ] || { fault 0.0 80C98008; exec sleep 60; }
""")  # fmt: skip
def test_the_same_interpreter_on_nodes_without_one_of_ours(told: Story) -> None:
    """Shims and agents alike: an agent sees the fault and heals it."""
    told.wait_for(lambda: told.of_attempt(2), "the restart in place")
    assert all("/bundles/" in words and "ld.so" in words for _, _, _, words in told.said()), told.describe()
    told.cluster.answer(["scancel", str(told.id)])


WARM = """
import os, sys, time
import numpy
pid, shim, first = os.getpid(), os.getppid(), os.environ["MA_PROC_START_CNT"] == "1"
below, until = [], time.monotonic() + 60
while first and len(below) < 2 and time.monotonic() < until:
    time.sleep(0.1)
    below = open(f"/proc/{shim}/task/{shim}/children").read().split()
time.sleep(2 if first else 0)
with open(f"{sys.path[0]}/{'first' if first else 'second'}", "w") as file:
    file.write(" ".join(each for each in below or [str(pid)] if each != str(pid) or not first))
sys.exit(3 if first else 0)
"""


@story(
    files={"train.py": WARM, "numpy.py": ""},
    script="ftrun --ft-warm --ft-set warm.after=1s --ft-set rungs.in-place-restart.crash_restarts=1"
    " --container-image=$BOXES/whole --container-mounts=$STORY python3 $STORY/train.py",
)  # fmt: skip
def test_a_spare_process_waits_in_the_container_of_its_rank(told: Story) -> None:
    told.ended("COMPLETED")
    assert (told.folder / "first").read_text() == (told.folder / "second").read_text() != "", told.describe()


# --- what goes through the namespaces


@story(ft=IMAGE, rank="trap 'say got USR1' USR1; trap 'say got TERM; exit 0' TERM; say ready; while :; do sleep 0.3; done")
def test_slurm_s_signals_reach_ranks_whose_cgroup_is_hidden(told: Story) -> None:
    told.wait_for(lambda: told.said(), "the rank to start")
    told.cluster.answer(["scancel", "--signal=USR1", str(told.id)])
    told.wait_for(lambda: len(told.said()) > 1, "USR1")
    told.cluster.answer(["scancel", str(told.id)])
    told.ended("CANCELLED")
    assert [words for _, _, _, words in told.said()] == ["ready", "got USR1", "got TERM"], told.describe()


HANGS = """
say started
[ $FTSLURM_ATTEMPT = 1 ] || exit 0
exec python3 -c "
import time
from ftslurm.sdk import client
for _ in range(4):
    client.heartbeat()
    time.sleep(0.5)
time.sleep(120)"
"""
BEATS = "--ft-set rungs.hang-restart.enabled=true --ft-param-rank_heartbeat_timeout=4 --ft-initial-rank-heartbeat-timeout=30"
WHOLE = f"{BEATS} --container-image=$BOXES/whole --container-mounts=$STORY"


@pytest.mark.long
@story(ft=f"{WHOLE} --container-remap-root", rank=HANGS)
def test_heartbeats_of_user_0_inside_are_seen(told: Story) -> None:
    told.ended("COMPLETED")
    assert len(told.starts()) == 2, told.describe()


@story(ft=f"{WHOLE} --container-unshare=ipc", rank=HANGS)
def test_heartbeats_in_a_shared_memory_of_the_container_s_own_are_seen(told: Story) -> None:
    told.ended("COMPLETED")
    assert len(told.starts()) == 2, told.describe()


BWRAP = "bwrap --unshare-user --unshare-pid --ro-bind / / --bind $STORY $STORY --proc /proc --dev /dev"


@pytest.mark.long
@story(ft=f"{BEATS} {BWRAP}", rank=HANGS)
def test_heartbeats_in_bubblewrap_are_seen(told: Story) -> None:
    told.ended("COMPLETED")
    assert len(told.starts()) == 2, told.describe()


# The container has no npu-sim, and the test may come to its turn when the job is over.
BREAKS_RANK_1_S_NODE = r"""
{
    until [ -s "$STORY/rank.1" ]; do sleep 0.2; done
    npu-sim inject --node "$(sed 's/.*"node":"\([^"]*\)".*/\1/;q' "$STORY/rank.1")" --device 0.0 --code 80E18402
} &
"""


@story(
    nodes=2, ft=f"{REPLACE} --container-image=$BOXES/torch --container-mounts=$STORY", script=BREAKS_RANK_1_S_NODE + PLAIN,
    rank="say $RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT; [ $FTSLURM_ATTEMPT = 2 ] || exec sleep 120; together",
)  # fmt: skip
def test_what_a_hook_sets_for_one_srun_is_right_for_a_step_of_two(told: Story) -> None:
    told.ended("COMPLETED")
    second = sorted(words.split() for _, attempt, _, words in told.said() if attempt == 2)
    assert [words[:2] for words in second] == [["0", "2"], ["1", "2"]] and second[0][2:] == second[1][2:], told.describe()


# --- Slurm's own containers, by runc

OCI = "--container=$BOXES/oci --ft-set python=bundle"


@story(ft=f"{OCI} --ft-set rungs.in-place-restart.crash_restarts=2", rank="say $(ls /); [ $FTSLURM_ATTEMPT = 2 ] || exit 3")
def test_a_bundle_without_names_of_hosts(told: Story) -> None:
    told.ended("COMPLETED")
    assert [words for _, _, _, words in told.said()] == ["bin dev lib lib64 proc sbin usr var"] * 2, told.describe()


@pytest.mark.slurms
@story(nodes=2, ft=OCI, rank="say $SLURM_PROCID of $SLURM_NTASKS")
def test_tasks_on_two_nodes(told: Story) -> None:
    """22.05 gives both the environment of the batch script, by which each is rank 0."""
    if slurm_version() > (22, 5):
        told.ended("COMPLETED")
        assert sorted(words for _, _, _, words in told.said()) == ["0 of 2", "1 of 2"], told.describe()
    else:
        told.ended("FAILED")
        assert re.search(r"^ftrun: job \d+ failed: two tasks say that they are rank 0", told.output(), re.M), told.describe()


# --- a container that does not start


@story(
    nodes=2,
    ft=f"{IMAGE} --export=ALL,BOX_FAILS_ON=$BAD",
    script="[ -e bad ] || scontrol show hostnames | tail -1 >bad\nexport BAD=$(cat bad)\n%RUN%\n",
    rank="exit 0",
)
def test_on_one_node_that_node_is_left(told: Story) -> None:
    told.ended("COMPLETED")
    assert "No space left on device" in told.output() and len({start.node for start in told.starts()}) == 2, told.describe()


@story(nodes=2, ft=f"{IMAGE} --export=ALL,BOX_FAILS_ON=all")
def test_on_all_nodes_the_job_fails_with_the_reason(told: Story) -> None:
    job = told.ended("FAILED")
    assert job["Restarts"] == "0"
    assert re.search(r"^ftrun: job \d+ failed: .*No space left on device", told.output(), re.M), told.describe()


TEMPLATE = Path(__file__).resolve().parents[2] / "sbatch-templates/pyxis.sh"


def test_the_template_as_it_stands(stage: Boxes) -> None:
    """The last one: it waits for two nodes, and a donor of another story would wait behind it."""
    env = {"IMAGE": "%BOXES%/bare", "TRAIN": "sh rank.sh"}
    told = stage.prepare(Plan(nodes=2, tasks=2, rank="[ $MA_SCHEDULE_CNT = 2 ] || exit 3", env=env), "template")
    told.id = told.cluster.submit(TEMPLATE, cwd=told.folder, env=told.env)
    assert told.ended("COMPLETED")["Restarts"] == "1"
