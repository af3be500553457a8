"""A step whose failure is an answer, in a script that bash runs: only there does the shell tell where it stands."""

from __future__ import annotations

from tests.live.stories import Story, story

ASKS = r"""
probe() { ftrun -n1 -N1 "$@"; }
if ftrun -n1 -N1 test -e "$STORY/no-such"; then echo there; else echo asked 1; fi
until ftrun -n1 -N1 sh -c 'echo x >>"$STORY/tries"; test $(wc -l <"$STORY/tries") -ge 2'; do :; done
probe sh -c 'exit 3' || echo asked $?
ftrun -n1 -N1 sh -c 'exit 4' & wait $! || echo asked $?
[ "$(ftrun -n1 -N1 sh -c 'echo y; exit 5' | cat)" = y ] && echo asked 5
ftrun -n1 -N1 sh -c 'exit 0' || exit 1
"""


@story(script=ASKS)
def test_the_answers_of_a_script_come_back_and_the_job_is_not_requeued(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "0"
    asked = [line for line in told.output().splitlines() if line.startswith("asked")]
    assert asked == ["asked 1", "asked 3", "asked 4", "asked 5"]
    assert (told.folder / "tries").read_text() == "x\nx\n"
    assert "an answer to the script (line " in told.ftslurm("explain", str(told.id))


@story(script="%RUN% || exit 3", rank="[ $FTSLURM_ATTEMPT = 1 ] && exit 3; exit 0")
def test_a_step_that_the_script_ends_with_has_the_remedies(told: Story) -> None:
    told.ended("COMPLETED")
    assert len(told.counters()) == 2
