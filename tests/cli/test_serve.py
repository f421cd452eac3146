"""`amgc serve`: start, messages, stop, and the commands of docs/serve.md."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from serving import png, server, taught

pytest.importorskip("fastapi", reason="needs the extra `serve`")
import httpx2

from amgc.cli.main import main
from amgc.model import Model

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"


def typed() -> list[list[str]]:
    """Return the commands of the page as lists of words, without prompt and comments."""
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    lines = [line[2:] for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.startswith("$ ")]
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.slow
def test_a_folder_that_is_not_there_becomes_an_empty_model_and_the_documented_commands_work(tmp_path):
    """All commands of the page, with a free port instead of 8000."""
    served_by, *requests = [words for words in typed() if words[0] != "pip"]
    assert served_by == ["amgc", "serve", "mine"]  # what `server` runs below, with --port 0
    assert len(requests) == 4 and all(words[0] == "curl" for words in requests)
    for number, path in enumerate(("cat-1.jpg", "cat-2.jpg", "cat-3.jpg", "new.jpg")):
        (tmp_path / path).write_bytes(png("grass", number))
    with server(Path("mine"), home=tmp_path) as served:
        assert served.said.startswith("mine has no classes yet. Teach it at http://127.0.0.1:")
        assert httpx2.get(f"{served.address}/api/classes", timeout=300).json()["classes"] == []
        port = served.address.rpartition(":")[2]
        for words in requests if shutil.which("curl") else ():
            done = subprocess.run(
                [words[0], "--fail-with-body", "-sS", *(word.replace("8000", port) for word in words[1:])],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert done.returncode == 0, done.stderr + done.stdout
            if "predict" in " ".join(words):
                assert '"answer":"cat"' in done.stdout
    assert Model.open(tmp_path / "mine").classes == {}  # the last one forgets


@pytest.mark.slow
def test_beyond_this_machine_a_token_is_made_and_demanded(tmp_path):
    model = taught(tmp_path / "model")
    with server(model.path, "--host", "0.0.0.0", home=tmp_path) as served:
        assert served.process.stdout
        token = re.fullmatch(r"The token is (\S{32}) \(not shown again\)\. .*", served.process.stdout.readline().strip())
        assert token and served.said.endswith(f"/#token={token[1]}")
        address = f"http://127.0.0.1:{served.address.rpartition(':')[2]}/api/classes"
        assert httpx2.get(address, timeout=300).status_code == 401
        assert httpx2.get(address, timeout=300, headers={"Authorization": f"Bearer {token[1]}"}).status_code == 200


def test_a_token_may_come_from_the_environment(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr("amgc.serve.server.serve", lambda *arguments: given.append(arguments[3]))
    monkeypatch.setenv("AMGC_TOKEN", "from the environment")
    for flags in ([], ["--token", "from the command line"]):
        assert main(["serve", str(tmp_path / "model"), *flags]) == 0
    assert given == ["from the environment", "from the command line"]


@pytest.mark.slow
def test_the_server_can_be_stopped_while_it_learns(tmp_path):
    """The folder contains the model before or after learning. `server` checks that nothing else was printed."""
    model = taught(tmp_path / "model")
    answers: list[int] = []
    with server(model.path, home=tmp_path) as served:
        pictures = [("images", (f"{number}.png", png("brick", number))) for number in range(150)]

        def learn() -> None:
            found = httpx2.post(f"{served.address}/api/learn", files=pictures, data={"label": "brick"}, timeout=300)
            answers.append(found.status_code)

        learning = threading.Thread(target=learn)
        learning.start()
        while httpx2.get(f"{served.address}/api/classes", timeout=300).json()["learning"] is None and learning.is_alive():
            pass
    learning.join()
    assert answers in ([200], [503])
    assert Model.open(model.path).classes == {"grass": 12, "sea": 12} | ({"brick": 150} if answers == [200] else {})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--features", "resnet18"], "is an existing model; --features"),
        (["--port", "PORT"], "another program uses it; choose another with --port"),
        (["--port", "99999999"], "must be from 1 to 65535"),
        (["--host", "no.such.host.invalid"], "there is no address"),
        (["--host", "203.0.113.7"], "is not an address of this machine"),
        (["--token", "short"], "use at least 16"),
        (["--rate", "0"], "rate must be at least 1"),
    ],
)
def test_a_model_that_cannot_be_served_is_reported_in_one_line(tmp_path, capsys, flags, words):
    taught(tmp_path / "model")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(tmp_path / "model"), *(port if flag == "PORT" else flag for flag in flags)]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1


def test_a_missing_extra_says_how_to_install_it(tmp_path, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "amgc.serve.server", raising=False)
    monkeypatch.delattr("amgc.serve.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(tmp_path / "model")]) == 1
    assert "amgc serve needs uvicorn, which is not installed: pip install 'amgc[serve]'" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
