"""How a call of ftrun is read from the script around it, as bash would hand its status on."""

from __future__ import annotations

import pytest

from ftslurm.launchers.script_place import CallPlace, read_calls
from ftslurm.model.job import Reading

SUBSHELLS = b"{ ftrun -n2 a; } | (sort; echo end)\n( set -e; ftrun -n1 b ) && echo well\n"
HERE = "<here>"
FAILURE, ANSWER, DOUBT = Reading.FAILURE, Reading.ANSWER, Reading.DOUBT

# script, reading of its first `ftrun x`; the shell stands behind HERE, if that is in it
CASES: dict[str, tuple[str, Reading]] = {
    "alone": ("ftrun x", FAILURE),
    "if": ("if ftrun x; then echo there; fi", ANSWER),
    "if-not": ("if ! ftrun x; then prepare; fi", ANSWER),
    "if-not-exit": ("if ! ftrun x; then echo failed >&2; exit 1; fi", FAILURE),
    "if-else-exit": ("if ftrun x; then echo well; else exit 1; fi", FAILURE),
    "if-exit-0": ("if ! ftrun x; then exit 0; fi", ANSWER),
    "if-resubmits": ("if ! ftrun x; then sbatch again.sh; exit 1; fi", ANSWER),
    "elif": ("if false; then :; elif ftrun x; then echo y; fi", ANSWER),
    "in-a-branch": ("if true; then\n ftrun x\nfi", FAILURE),
    "in-a-branch-else": ("if true; then\n ftrun x\nelse\n exit 1\nfi", FAILURE),
    "until": ("until ftrun x; do sleep 1; done", ANSWER),
    "while-not": ("while ! ftrun x; do sleep 1; done", ANSWER),
    "while": ("while ftrun x; do :; done", ANSWER),
    "while-body": ("while read -r line; do ftrun x; done <list", FAILURE),
    "for-body": ("for i in 1 2 3; do ftrun x; done", FAILURE),
    "for-or-echo": ('for i in 1 2; do ftrun x || echo "$i failed"; done', ANSWER),
    "not": ("! ftrun x\necho on", ANSWER),
    "or-true": ("ftrun x || true", ANSWER),
    "or-status": ("ftrun x || rc=$?\nexit $rc", ANSWER),
    "or-exit": ("ftrun x || exit", FAILURE),
    "or-exit-1": ("ftrun x || exit 1\necho on", FAILURE),
    "or-exit-0": ("ftrun x || exit 0", ANSWER),
    "or-group-exit": ("ftrun x || { echo failed; exit 2; }", FAILURE),
    "or-group": ("ftrun x || { echo failed; cleanup; }", ANSWER),
    "or-return": ("f() { ftrun x || return 1; }\nf<here>\necho on", FAILURE),
    "or-return-answer": ("f() { ftrun x || return 1; }\nf || echo no<here>\necho on", ANSWER),
    "and": ("ftrun x && ftrun y", FAILURE),
    "and-or": ("ftrun x && echo well || echo bad", ANSWER),
    "and-or-exit": ("ftrun x && echo well || exit 3", FAILURE),
    "and-of-and": ("cd dir && ftrun x && echo well", FAILURE),
    "right-of-or": ("false || ftrun x", FAILURE),
    "then-echo": ("ftrun x; echo END", FAILURE),
    "tee": ("ftrun x 2>&1 | tee log", FAILURE),
    "tee-if": ("if ftrun x | tee log; then echo y; fi", ANSWER),
    "tee-pipestatus": ("ftrun x | tee log\nif [ ${PIPESTATUS[0]} -ne 0 ]; then retry; fi", ANSWER),
    "tee-pipestatus-exit": ("ftrun x | tee log\nexit ${PIPESTATUS[0]}", FAILURE),
    "in-a-text": ('bash -c "set -e; ftrun $options x"', FAILURE),
    "in-a-text-or": ('sh -ec "ftrun $options x" || echo failed', ANSWER),
    "in-a-text-status": ("bash -c 'cd dir && ftrun x'\n[ $? = 0 ] || { echo failed; next; }", ANSWER),
    "background": ("ftrun x &\nwait", FAILURE),
    "background-wait-or": ("ftrun x & pid=$!\nwait $pid || echo failed", ANSWER),
    "background-wait-status": ("ftrun x & pid=$!\nwait $pid\nexit $?", FAILURE),
    "background-wait-loop": ("ftrun x &\npids+=($!)\nfor p in ${pids[@]}; do wait $p || bad=1; done", ANSWER),
    "status-exit": ("ftrun x\nexit $?", FAILURE),
    "status-kept-exit": ("ftrun x\nrc=$?\ncollect\nexit $rc", FAILURE),
    "status-said": ('ftrun x\nrc=$?\necho "ended with $rc"\nif [ $rc -eq 0 ]; then echo well; else echo bad; fi', FAILURE),
    "status-guard": ("ftrun x\nif [ $? -ne 0 ]; then echo bad; exit 1; fi\necho on", FAILURE),
    "status-guard-kept": ("ftrun x\nrc=$?\nif (( rc != 0 )); then exit $rc; fi\necho on", FAILURE),
    "status-guard-short": ("ftrun x\n[ $? -eq 0 ] || exit 1", FAILURE),
    "status-decides": ("ftrun x\nif [ $? -ne 0 ]; then other; fi", ANSWER),
    "status-decides-kept": ("ftrun x\nrc=$?\ndate\nif [[ $rc -eq 124 ]]; then next; fi", ANSWER),
    "status-case": ("ftrun x\nrc=$?\ncase $rc in 0) a;; *) b;; esac", ANSWER),
    "status-requeue": ("ftrun x\nrc=$?\nif [ $rc = 124 ]; then scontrol requeue $SLURM_JOB_ID; exit 1; fi", ANSWER),
    "status-count": ("ftrun x\n[ $? -eq 0 ] || failed=$((failed+1))", ANSWER),
    "status-loop": ("rc=1\nwhile [ $rc -ne 0 ]; do\n ftrun x\n rc=$?\ndone", ANSWER),
    "substitution": ("nodes=$(ftrun x)", FAILURE),
    "substitution-if": ('if [ "$(ftrun x)" = y ]; then z; fi', ANSWER),
    "subshell": ("( cd d; ftrun x )", FAILURE),
    "subshell-or": ("( cd d; ftrun x ) || echo no", ANSWER),
    "timeout": ("timeout 60 ftrun x || exit 1", FAILURE),
    "timeout-if": ("if timeout 60 ftrun x; then a; fi", ANSWER),
    "time": ("time ftrun x", FAILURE),
    "variables": ("A=1 B=2 ftrun x", FAILURE),
    "heredoc": ("ftrun x <<EOF\nif ftrun y; then\nEOF\necho on", FAILURE),
    "heredoc-or": ("ftrun x <<EOF || true\ntext\nEOF", ANSWER),
    "errexit": ("set -euo pipefail\nftrun x\necho on", FAILURE),
    "function": ("main() {\n ftrun x\n}\nmain<here>", FAILURE),
    "function-if": ("probe() { ftrun x; }\nif probe; then a; fi<here>", ANSWER),
    "function-in-function": ("a() { ftrun x; }\nb() { a || return 1; }\nb || true<here>", ANSWER),
    "by-variable": ("SRUN='ftrun -N1'\n$SRUN x<here>\necho on", FAILURE),
    "by-variable-if": ("SRUN='ftrun -N1'\nif $SRUN x; then a; fi<here>", DOUBT),
    "by-array": ('cmd=(ftrun x)\n"${cmd[@]}"<here>', FAILURE),
    "sourced": ("source lib.sh\nrun_all<here>", DOUBT),
    "which-line": ("ftrun x\nif ftrun y; then a; fi", FAILURE),
    "which-of-one-line": ("ftrun x; if ftrun y; then a; fi", FAILURE),
    "no-script": ("if [", DOUBT),
    "continued": ("ftrun \\\n  x \\\n  || exit 1", FAILURE),
    "case-branch": ("case $1 in a) ftrun x ;; esac", FAILURE),
    "nested-if-and": ("if [ -e d ] && ftrun x; then a; fi", ANSWER),
    "trap": ("trap 'echo gone' TERM\nftrun x &\nwait $!\n", FAILURE),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_failure_means_what_the_script_makes_of_it(name: str) -> None:
    text, wanted = CASES[name]
    before, at, _ = text.partition(HERE)
    offset = len(before) + 1 if at else None
    call = read_calls([CallPlace(text.replace(HERE, "").encode() + b"\n", offset)], ["ftrun"], ["ftrun", "x"])
    assert call.reading is wanted, call.why


def test_bash_stands_behind_the_command_that_runs() -> None:
    text = "ftrun x\nif ftrun x; then a; fi\n"
    readings = [read_calls([CallPlace(text.encode(), offset)], ["ftrun"], ["ftrun", "x"]).reading for offset in (8, len(text))]
    assert readings == [FAILURE, ANSWER]


def test_without_a_position_calls_that_differ_leave_a_doubt() -> None:
    text = b"ftrun x\nif ftrun x; then a; fi\n"
    assert read_calls([CallPlace(text)], ["ftrun"], ["ftrun", "x"]).reading is DOUBT


def test_it_says_where_and_why() -> None:
    call = read_calls(
        [CallPlace(b"#!/bin/bash\nif ftrun test -d /data; then a; fi\n", None, "job.sh")],
        ["ftrun"],
        ["ftrun", "test", "-d", "/data"],
    )
    assert call.words == (
        "a failed step is an answer to the script (job.sh, line 2, `ftrun test -d /data`: it is the condition of `if`)"
    )
    assert call.last


def test_what_follows_makes_it_not_the_last() -> None:
    assert not read_calls([CallPlace(b"ftrun x\necho on\n")], ["ftrun"], ["ftrun", "x"]).last


@pytest.mark.parametrize(("argv", "offset"), [(["-n2", "a"], 36), (["-n1", "b"], len(SUBSHELLS))])
def test_a_subshell_of_a_script_is_no_caller_of_it(argv: list[str], offset: int) -> None:
    """Both have the script open; a step in the subshell has the remedies of one that the script ends with."""
    shells = [CallPlace(SUBSHELLS, offset, "job.sh")] * 2
    assert read_calls(shells, {"ftrun"}, argv).reading is FAILURE


def test_a_text_for_a_shell_hands_its_status_to_the_script_that_has_it() -> None:
    """Where more follows in the text bash stays, and is a caller."""
    text = b"ftrun x\nexit $?"
    outer = b'if bash -c "$command"; then echo well; else echo bad; fi\n'
    assert (
        read_calls([CallPlace(text, None, "bash -c"), CallPlace(outer, len(outer))], {"ftrun"}, ["ftrun", "x"]).reading is ANSWER
    )
    assert (
        read_calls([CallPlace(text, None, "bash -c"), CallPlace(b"bash -c x\n", 10)], {"ftrun"}, ["ftrun", "x"]).reading
        is FAILURE
    )
