"""200 clients send requests while classes are learned and forgotten. Every answer is that of one complete model."""

from __future__ import annotations

import asyncio
import threading

import pytest
from serving import parts, png, server, taught

pytest.importorskip("fastapi", reason="needs the extra `serve`")
import httpx2

from amgc.model import Model

CLIENTS, LEAST = 200, 2  # that ask at a time, and questions of each
ASKED = png("sea", 1000)


def shares(answer: dict) -> dict[str, float]:
    return {one["label"]: one["probability"] for one in answer["classes"]}


def close(one: dict[str, float], two: dict[str, float]) -> bool:
    return one.keys() == two.keys() and all(abs(one[label] - two[label]) < 1e-9 for label in one)


@pytest.mark.slow
def test_every_answer_is_that_of_one_complete_model(tmp_path):
    model = taught(tmp_path / "model")
    states: list[dict[str, float]] = []
    done = threading.Event()

    def note() -> None:
        """Record the predictions of the model in the folder, computed in this process."""
        (answer,) = Model.open(model.path).predict([ASKED], top=1000)
        states.append(dict(zip(answer.labels, answer.probabilities, strict=True)))

    def change(address: str) -> None:
        with httpx2.Client(base_url=address, timeout=600) as client:
            for seed, label in ((100, "brick"), (200, "wall")):
                pictures = parts(*(png("brick", seed + number) for number in range(8)))
                assert client.post("/api/learn", files=pictures, data={"label": label}).status_code == 200
                note()
            for label in ("wall", "grass"):
                assert client.post("/api/forget", json={"label": label}).status_code == 200
                note()

    async def ask(client: httpx2.AsyncClient) -> list[dict[str, float]]:
        found = []
        while len(found) < LEAST or not done.is_set():
            answer = await client.post("/api/predict?top=1000", files=parts(ASKED))
            assert answer.status_code == 200, answer.text
            found.append(shares(answer.json()["answers"][0]))
        return found

    async def all_of_them(address: str) -> list[list[dict[str, float]]]:
        limits = httpx2.Limits(max_connections=CLIENTS)
        async with httpx2.AsyncClient(base_url=address, timeout=600, limits=limits) as client:
            changing = asyncio.create_task(asyncio.to_thread(change, address))
            changing.add_done_callback(lambda _: done.set())
            answers = await asyncio.gather(*(ask(client) for _ in range(CLIENTS)))
            await changing
            return answers

    note()
    with server(model.path, "--rate", "1000000", home=tmp_path) as served:
        answers = asyncio.run(all_of_them(served.address))
    assert len(states) == 5
    seen = set()
    for client in answers:
        for one in client:
            matching = [place for place, state in enumerate(states) if close(one, state)]
            assert matching, f"no model ever said {one}"
            seen.add(matching[0])
    assert len(seen) >= 3, seen  # the old model answered while it learned, and the new one was taken over each time
