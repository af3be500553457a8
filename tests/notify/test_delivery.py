"""Notices on their way: a real HTTP server, a real SMTP server, a program; and a whole job by the local launcher."""

from __future__ import annotations

import socket
import stat
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftslurm.cli.site import notify as door
from ftslurm.errors import StateError
from ftslurm.model import record as rec
from ftslurm.model.settings.tree import Settings
from ftslurm.notify.deliver import Destination, deliver, deliver_patiently, scrubbed
from ftslurm.notify.outbox import Notice, Outbox, Pace
from ftslurm.notify.sender import lines_to, send_all
from ftslurm.wrapper.controller import teller
from tests.cli.test_ftrun import command
from tests.machine import slowness
from tests.notify.servers import free_port, mail_server, webhook

CARD = Notice("i", 1e9, "7", "failure", "job 7 failed: rank 1 on n3 exited with status 1", "what   <b>OOM</b> & more\nwhy    it")


def to_hook(port: int, path: str = "secretpath") -> Destination:
    return Destination("hook", f"json://127.0.0.1:{port}/{path}")


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(stat.S_IRWXU)
    return path


def test_a_webhook_gets_title_and_text() -> None:
    with webhook() as hook:
        assert deliver(to_hook(hook.port), CARD) == ""
        (post,) = hook.posts
        assert (post["title"], post["type"]) == (CARD.title, "failure") and "why    it" in post["message"]


def test_a_mail_has_the_card_as_its_text() -> None:
    with mail_server() as (box, port):
        to = Destination("me", f"mailto://127.0.0.1:{port}/?mode=insecure&from=ftslurm@here.example&to=me@there.example")
        assert deliver(to, CARD) == ""
        (mail,) = box.mails
        assert mail["Subject"] == CARD.title and mail["To"].strip("<>") == "me@there.example"
        text = next(part for part in mail.walk() if part.get_content_type() == "text/plain").get_payload(decode=True)
        assert isinstance(text, bytes) and b"<b>OOM</b> & more" in text


def test_a_program_gets_it_on_standard_input(tmp_path: Path) -> None:
    page = script(
        tmp_path / "page",
        f"""
import os, sys
open({str(tmp_path / "told")!r}, "w").write(sys.argv[1] + sys.stdin.read() + os.environ["FTSLURM_NOTICE_KIND"])
""",
    )
    assert deliver(Destination("p", argv=(str(page), "$HOME;")), CARD) == ""
    assert (tmp_path / "told").read_text() == f"$HOME;{CARD.title}\n{CARD.text}\nfailure"


def test_why_it_did_not_go_holds_nothing_secret(tmp_path: Path) -> None:
    fails = script(tmp_path / "fails", "import sys; print('no pager'); sys.exit(3)")
    assert deliver(Destination("p", argv=(str(fails),)), CARD) == f"{fails} ended with status 3: no pager"
    assert "cannot be run" in deliver(Destination("p", argv=("/not/there",)), CARD)
    with webhook(403) as hook:
        why = deliver(to_hook(hook.port), CARD)
        assert "error=403" in why and "secretpath" not in why
    nobody = deliver(Destination("n", f"json://user:topsecret@127.0.0.1:{free_port()}/secretpath"), CARD)
    assert "Connection error" in nobody and "topsecret" not in nobody and "secretpath" not in nobody
    assert "topsecret" not in deliver(Destination("n", "nosuch://topsecret/"), CARD)
    program = Destination("p", argv=("/bin/sh", "-c", 'echo "refused: $1" >&2; exit 3', "sh", "token=topsecret"))
    assert (why := deliver(program, CARD)).startswith("/bin/sh ended with status 3: refused") and "topsecret" not in why


@pytest.mark.parametrize("url", [
    "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#training", "feishu://abcdef0123456789", "dingtalk://abcdef0123456789",
    "workflows://prod-12.westus.logic.azure.com:443/0123456789abcdef0123456789abcdef/abcdefSIGNATURE",  # Teams
    "mailtos://user:password@mail.example.org?to=me@example.org",
])  # fmt: skip
def test_the_services_that_the_readme_names_are_apprise_s(url: str) -> None:
    import apprise

    assert apprise.Apprise().add(url)


def test_without_apprise_programs_are_told_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    tell = script(tmp_path / "tell", f"import sys; open({str(tmp_path / 'told')!r}, 'a').write(sys.stdin.read())")
    file = address_file(tmp_path, f"team: json://127.0.0.1:9/\nme: [{tell}]\n")
    monkeypatch.setattr(teller, "why_no_apprise", lambda: "there is no apprise")
    notices = teller.make(Settings(), file.parent, file, "7", "(about)", said.append)
    end = rec.Finished(time.time(), "r", 9, "no ledger")
    notices.record(end, [end])
    notices.end(30.0)
    assert said == [f"{file}: there is no apprise"] and (tmp_path / "told").read_text().startswith(
        "job 7 has ended with status 9"
    )
    assert not Outbox(file.parent, file).anything()


def test_it_is_tried_again() -> None:
    waits: list[float] = []
    with webhook(500, 502, 200) as hook:
        assert deliver_patiently(to_hook(hook.port), CARD, waits.append) == ""
        assert len(hook.bodies) == 3 and len(waits) == 2
    with webhook(500) as hook:
        assert deliver_patiently(to_hook(hook.port), CARD, waits.append, tries=2) and len(hook.bodies) == 2


def test_one_that_does_not_answer_holds_up_no_other_and_is_told_once(tmp_path: Path) -> None:
    box = Outbox(tmp_path, tmp_path / "n.yaml")
    for number in range(9):
        for name in ("hook", "dead"):
            box.put(Notice(str(number), time.time() + number / 1000, "7", "requeue", f"event {number}"), name)
    said: list[str] = []
    with webhook() as hook:
        to = {"dead": Destination("dead", f"json://127.0.0.1:{free_port()}/"), "hook": to_hook(hook.port)}
        send_all(lines_to(to, box, Pace(3, 60), said.append), lambda: False)
        assert [post["title"] or post["message"] for post in hook.posts] == ["event 0", "event 1", "job 7: 7 events (7 requeue)"]
    assert len(said) == 1 and said[0].startswith("notices to dead cannot be sent: ")
    assert len(box.waiting("dead")) == 9 and not box.waiting("hook"), "they are kept for the next one"


# --- a whole job, as a user runs it

# Nobody hears of what a program says before the agent of its node is up: it waits until it has been heard once.
HEARD = """
import os, time
began = time.monotonic()
while not os.path.isdir(os.environ["HOME"] + "/.ftslurm/notices") and time.monotonic() < began + 20: time.sleep(0.05)
"""


def address_file(home: Path, text: str, mode: int = 0o600) -> Path:
    folder = home / ".ftslurm"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "notify.yaml"
    path.write_text(text)
    path.chmod(mode)
    return path


def everything_below(folder: Path, but: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and path != but)


def test_a_job_that_fails_tells_its_people_and_its_secrets_stay_in_the_file(tmp_path: Path) -> None:
    program = "env > $FTSLURM_ATTEMPT.env; tr '\\0' ' ' < /proc/$PPID/cmdline > $FTSLURM_ATTEMPT.argv; echo RuntimeError: bad >&2; exit 3"
    with webhook() as hook, mail_server() as (box, port):
        file = address_file(tmp_path, f"team: json://127.0.0.1:{hook.port}/t0psecret\n"
                            f"me: mailto://127.0.0.1:{port}/?mode=insecure&from=a@b.example&to=t0psecret@there.example\n")  # fmt: skip
        argv = ("--ft-launcher", "local", "-n1", "sh", "-c", f"cd {tmp_path}; {program}")
        done = command(
            "ftslurm",
            *argv,
            home=tmp_path,
            FTRUN_MAX_RESTARTS="1",
            FTRUN_NOTIFY_REQUEUE="team",
            FTRUN_NOTIFY_END_WAIT="20s",
            FTRUN_NOTIFY_RESTART="team, digest",
        )
        assert done.returncode == 3, done.stderr
        titles = [post["title"] for post in hook.posts]
        assert len(titles) == 3, f"once each, and nothing again after the requeue: {titles}"
        begin = ("job 1 is requeued", "job 1 is restarted", "job 1 failed")
        assert all(title.startswith(words) for title, words in zip(titles, begin, strict=True)), titles
        assert "next   ftslurm history 1" in hook.posts[2]["message"] and [mail["Subject"] for mail in box.mails] == [titles[2]]
    assert (tmp_path / "2.env").exists()
    assert b"t0psecret" not in everything_below(tmp_path, file) and "t0psecret" not in done.stdout + done.stderr


@pytest.mark.parametrize(("mode", "said"), [(0o644, "is open to others (mode 0644)"), (0o600, "notices to team cannot be sent")])
def test_a_job_runs_on_where_nobody_can_be_told(tmp_path: Path, mode: int, said: str) -> None:
    address_file(tmp_path, f"team: json://127.0.0.1:{free_port()}/t0psecret\n", mode)
    began = time.monotonic()
    done = command(
        "ftslurm", "--ft-launcher", "local", "-n1", "true", home=tmp_path, FTRUN_NOTIFY_END_WAIT="5s", FTRUN_NOTIFY_END="all"
    )
    assert done.returncode == 0 and done.stderr.count(said) == 1 and "t0psecret" not in done.stderr, done.stderr
    assert time.monotonic() - began < 20 * slowness()


def test_a_service_that_never_answers_holds_the_end_up_for_notify_end_wait_at_the_most(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address_file(tmp_path, f"team: json://127.0.0.1:{deaf.getsockname()[1]}/?rto=300&cto=300\n")
        argv = ("--ft-launcher", "local", "-n1", "true")
        done = command("ftslurm", *argv, home=tmp_path, FTRUN_NOTIFY_END_WAIT="1s", FTRUN_NOTIFY_END="all")
        assert done.returncode == 0 and "not all notices went out in time" in done.stderr, done.stderr


def test_messages_of_the_program_go_the_same_way_and_a_burst_is_one_summary(tmp_path: Path) -> None:
    say = "from aimaster import job_monitor as jm\nm = jm.Monitor()\nm.send_custom_message('0')\n"
    program = f"{say}{HEARD}\nfor n in range(1, 20): m.send_custom_message(str(n))"
    with webhook() as hook:
        address_file(tmp_path, f"team: json://127.0.0.1:{hook.port}/\n")
        argv = ("--ft-launcher", "local", "--ft-provide", "aimaster", "-n1", sys.executable, "-c", program)
        done = command(
            "ftslurm", *argv, home=tmp_path, FTRUN_NOTIFY_END="all", FTRUN_NOTIFY_BURST="3", FTRUN_NOTIFY_END_WAIT="20s"
        )
        assert done.returncode == 0, done.stderr
        assert 2 <= len(hook.bodies) <= 6, [post["title"] for post in hook.posts]
        told = "\n".join(f"{post['title']}\n{post['message']}" for post in hook.posts)
        assert "job 1 has completed" in told and all(f"rank 0 says: {n}\n" in told for n in range(20)), told


def notify(home: Path, monkeypatch: pytest.MonkeyPatch, *argv: str) -> tuple[object, str, str]:
    """`ftslurm notify`: an error or None, stdout, stderr."""
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("FTSLURM_STATE_DIR", raising=False)
    done = CliRunner().invoke(door, argv)
    return done.exception, done.stdout, done.stderr


def test_what_could_not_go_out_is_sent_from_where_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook() as hook:
        file = address_file(tmp_path, f"team: json://127.0.0.1:{hook.port}/\n")
        Outbox(file.parent, file).put(Notice("a", time.time(), "7", "failure", "t", "x"), "team")
        assert notify(tmp_path, monkeypatch, "--pending") == (None, "team: 1 of 1 notice sent\n", "")
        assert "no notices are waiting" in notify(tmp_path, monkeypatch, "--pending")[2]
        assert len(hook.bodies) == 1
        outbox = Outbox(file.parent, file)
        outbox.put(Notice("b", time.time(), "7", "failure", "t", "x"), "team")
        outbox.take(outbox.waiting("team"))  # by a sender that then dies with its node
        told = notify(tmp_path, monkeypatch, "--pending")[1]
        assert (
            told.startswith("team: 1 notice still with a job's sender; if it has died, ask again in ") and len(hook.bodies) == 1
        )


def test_the_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no notify file" in str(notify(tmp_path, monkeypatch)[0])
    with webhook() as hook:
        address_file(tmp_path, f"team: json://127.0.0.1:{hook.port}/t0psecret\ndead: json://127.0.0.1:{free_port()}/t0psecret\n")
        error, out, _ = notify(tmp_path, monkeypatch)
        assert (
            error is None
            and "team (json://...): failure, requeue, replacement, restart, hang, wait, message\n" in out
            and "t0psecret" not in out
        )
        error, out, err = notify(tmp_path, monkeypatch, "--test")
        assert (
            isinstance(error, StateError)
            and "team (json://...): sent\n" in out
            and "dead did not get the test" in str(error)
            and "t0psecret" not in f"{out}{err}{error}"
        )
        assert [post["title"] for post in hook.posts] == ["ftslurm: a test"]


def test_a_program_that_fails_shows_none_of_its_arguments(tmp_path: Path) -> None:
    page = script(tmp_path / "page", "import sys; print(f'401 for {sys.argv[1]}, {sys.argv[2]}'); sys.exit(3)")
    said = deliver(Destination("pager", argv=(str(page), "tok-5ecret", "--key=abc%2Fdef")), CARD)
    assert said == f"{page} ended with status 3: 401 for ***, ***", said


@pytest.mark.parametrize("said", ["no s3c+/tok==", "no s3c%2B%2Ftok%3D%3D", "no hun/ter/22"])
def test_nor_a_part_of_a_token_with_slashes(said: str) -> None:
    pager = Destination("pager", argv=("/bin/page", "--header", "Authorization: Bearer s3c+/tok==", "--pw=hun/ter/22"))
    assert scrubbed(said, pager) == "no ***"
