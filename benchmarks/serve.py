"""Measure the server under load: requests/s and latencies for 1, 8 and 64 clients, while another client teaches.

    python benchmarks/serve.py          # ten minutes
    python benchmarks/serve.py --quick  # whether it runs

The clients ask about one photograph in a request and wait for the answer. They run in a process of their own on the same cores,
and are compared with the bare extractor: the same photographs, decoded and encoded in batches of 32 in one process. Then 20,000
requests, and the memory of the server before and after. Every answer must be that of a whole model, with the classes that the
model had at some time.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2
import numpy as np
from PIL import Image

if "--client" not in sys.argv:  # a client starts at once, without torch
    from _report import kept, shared_data

    from amgc.model import Model
    from amgc.model.extractors import encode
    from amgc.model.inputs import Input


def photos(count: int) -> list[bytes]:
    """Return encoded photographs; drawn ones without development data."""
    shared = shared_data()
    files = sorted(shared.glob("data/photos/*/train/*/*.jpg"))[:count] if shared else []
    found = [path.read_bytes() for path in files]
    rng = np.random.default_rng(0)
    while len(found) < count:
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((320, 240)).save(file, "JPEG")
        found.append(file.getvalue())
    return found


def bare(model: Model, images: list[bytes]) -> float:
    """Return images/s of the extractor alone, with its decoding."""
    state = model.state
    pictures = [Input("", one) for one in images]
    begin = time.perf_counter()
    for start in range(0, len(pictures), 32):
        encode(state.extractor, np.stack(list(state.frame.each(pictures[start : start + 32]))))
    return len(images) / (time.perf_counter() - begin)


async def ask(address: str, images: list[bytes], clients: int, total: int) -> tuple[float, list[float], dict[str, int]]:
    """Return requests/s, the latencies, and the number of answers by status and number of classes."""
    latencies: list[float] = []
    counts: dict[str, int] = {}
    left = iter(range(total))
    async with httpx2.AsyncClient(base_url=address, timeout=120) as client:

        async def one() -> None:
            for number in left:
                begin = time.perf_counter()
                files = [("images", ("a.jpg", images[number % len(images)], "image/jpeg"))]
                found = await client.post("/api/predict?top=100", files=files)
                latencies.append(time.perf_counter() - begin)
                kind = str(found.status_code)
                if found.status_code == 200:
                    kind += f", {len(found.json()['answers'][0]['classes'])} classes"
                counts[kind] = counts.get(kind, 0) + 1

        begin = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(clients)))
        return total / (time.perf_counter() - begin), latencies, counts


def memory(address: str) -> float:
    return float(re.search(r"(?m)^amgc_resident_memory_bytes (\S+)", httpx2.get(f"{address}/metrics").text)[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--client", nargs=3, help="of this script itself: address, clients, requests")
    given = parser.parse_args()
    if given.client:
        address, clients, total = given.client
        images = [bytes.fromhex(line) for line in sys.stdin]
        print(json.dumps(asyncio.run(ask(address, images, int(clients), int(total)))))
        return
    images = photos(16 if given.quick else 256)
    with kept("serve"), tempfile.TemporaryDirectory() as place:
        model = Model.create(Path(place) / "model", features="lite0")
        half = len(images) // 2
        model.learn_all({"one": images[:half], "two": images[half:]})
        command = [sys.executable, "-m", "amgc", "serve", str(model.path), "--port", "0", "--rate", "10000000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            address = process.stdout.readline().split()[-1]
            try:
                measure(model, address, images, given.quick)
            finally:
                process.terminate()


class Clients:
    """So many clients, who make so many requests in all, in a process of their own."""

    def __init__(self, address: str, count: int, total: int, images: list[bytes]) -> None:
        command = [sys.executable, __file__, "--client", address, str(count), str(total)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdin.write("\n".join(one.hex() for one in images))
        self.process.stdin.close()
        self.process.stdin = None

    def answers(self) -> tuple[float, list[float], dict[str, int]]:
        """Return what `ask` does, when all have their answers."""
        return json.loads(self.process.communicate()[0])


def measure(model: Model, address: str, images: list[bytes], quick: bool) -> None:
    print("== one photograph a request, lite0; the ratio is to the bare extractor, measured before and after")
    for count in (64,) if quick else (1, 8, 64):
        total = 20 if quick else 400
        before = bare(model, images)
        rate, latencies, counts = Clients(address, count, total, images).answers()
        after = bare(model, images)
        p50, p95, p99 = np.percentile(latencies, [50, 95, 99])
        ratio = rate / statistics.mean([before, after])
        print(f"  {count} clients   {rate:.1f} requests/s   {ratio:.3f} of {before:.1f} to {after:.1f} images/s   ", end="")
        print(f"p50 {p50:.3f} s   p95 {p95:.3f} s   p99 {p99:.3f} s   {counts}")
    print("\n== 64 clients while another one teaches ten classes")
    asking = Clients(address, 64, 40 if quick else 800, images)
    for number in range(2 if quick else 10):
        files = [("images", (f"{place}.jpg", one, "image/jpeg")) for place, one in enumerate(images[number : number + 8])]
        found = httpx2.post(f"{address}/api/learn", files=files, data={"label": f"new {number}"}, timeout=300)
        assert found.status_code == 200, found.text
    rate, latencies, counts = asking.answers()
    p50, p95, p99 = np.percentile(latencies, [50, 95, 99])
    print(f"  teaching   {rate:.1f} requests/s   p50 {p50:.3f} s   p95 {p95:.3f} s   p99 {p99:.3f} s   {counts}")
    print(f"  lost   {sum(count for kind, count in counts.items() if not kind.startswith('200'))} answers")
    print("\n== memory of the server")
    start, each, marks = memory(address), 20 if quick else 5_000, []
    for _ in range(1 if quick else 4):
        Clients(address, 8, each, images).answers()
        marks.append(f"{memory(address) / 1e6:.0f}")
    print(f"  resident   {start / 1e6:.0f} MB before, {', '.join(marks)} MB after every {each:,} requests")


if __name__ == "__main__":
    main()
