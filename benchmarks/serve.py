"""Measure the server under load: requests/s and latencies for 1, 8 and 64 clients, while another client teaches.

    python benchmarks/serve.py              # ten minutes
    python benchmarks/serve.py --only load  # or: teaching, memory; each takes less than five minutes
    python benchmarks/serve.py --quick      # whether it runs

The clients ask about one photograph in a request and wait for the answer. They run in a process of their own on the same cores.

load : compared with the bare extractor, the same photographs decoded and encoded in batches of 32 in one process, before and
    after. teaching : 64 clients while another one teaches ten classes. Every answer must have exactly the classes that the
    model had at some time. memory : of the server, before and after 20,000 requests.
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
from urllib.parse import urlsplit

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


async def ask(host: str, port: int, images: list[bytes], clients: int, total: int) -> tuple[float, list[float], dict[str, int]]:
    """Return requests/s, the latencies, and the number of answers by status and number of classes.

    Requests are made beforehand and written to plain connections: an HTTP library would take a tenth of the server's time.
    """
    latencies: list[float] = []
    counts: dict[str, int] = {}
    requests = [request(f"{host}:{port}", image) for image in images]
    left = iter(range(total))

    async def one() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        for number in left:
            begin = time.perf_counter()
            writer.write(requests[number % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(re.search(rb"(?i)content-length: *(\d+)", head)[1]))
            latencies.append(time.perf_counter() - begin)
            kind = head.split()[1].decode()
            if kind == "200":
                names = sorted(one["label"] for one in json.loads(body)["answers"][0]["classes"])
                whole = sorted(["one", "two", *(f"new {at}" for at in range(len(names) - 2))])
                kind += f", {len(names)} classes" if names == whole else f" but of a part of a model: {names}"
            counts[kind] = counts.get(kind, 0) + 1
        writer.close()

    begin = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    return total / (time.perf_counter() - begin), latencies, counts


def request(host: str, image: bytes) -> bytes:
    """Return the bytes of a request for the classes of an image."""
    part = b'Content-Disposition: form-data; name="images"; filename="a.jpg"\r\nContent-Type: image/jpeg'
    body = b"--amgc\r\n" + part + b"\r\n\r\n" + image + b"\r\n--amgc--\r\n"
    head = f"POST /api/predict?top=100 HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Content-Type: multipart/form-data; boundary=amgc\r\n\r\n" + body


def resident(address: str) -> float:
    """Return the memory of the server in bytes."""
    return float(re.search(r"(?m)^amgc_resident_memory_bytes (\S+)", httpx2.get(f"{address}/metrics").text)[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["load", "teaching", "memory"])
    parser.add_argument("--client", nargs=3, help="of this script itself: address, clients, requests")
    given = parser.parse_args()
    if given.client:
        address, clients, total = given.client
        images = [bytes.fromhex(line) for line in sys.stdin]
        place = urlsplit(address)
        print(json.dumps(asyncio.run(ask(place.hostname, place.port, images, int(clients), int(total)))))
        return
    images = photos(16 if given.quick else 256)
    for part in (load, teaching, memory):
        if given.only not in (None, part.__name__):
            continue
        with kept(f"serve_{part.__name__}"), tempfile.TemporaryDirectory() as place:
            model = Model.create(Path(place) / "model", features="lite0")
            half = len(images) // 2
            model.learn_all({"one": images[:half], "two": images[half:]})
            command = [sys.executable, "-m", "amgc", "serve", str(model.path), "--port", "0", "--rate", "10000000"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                address = process.stdout.readline().split()[-1]
                try:
                    part(model, address, images, given.quick)
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


def latency(latencies: list[float]) -> str:
    """Return the percentiles of latencies."""
    return "   ".join(f"p{share} {np.percentile(latencies, share):.3f} s" for share in (50, 95, 99))


def failed(counts: dict[str, int]) -> int:
    """Return the number of requests without a right answer."""
    return sum(count for kind, count in counts.items() if not kind.startswith("200,"))


def load(model: Model, address: str, images: list[bytes], quick: bool) -> None:
    print("== load: one photograph a request, lite0; the ratio is to the bare extractor, measured before and after")
    for count in (64,) if quick else (1, 8, 64):
        total = 20 if quick else 800
        before = bare(model, images)
        rate, latencies, counts = Clients(address, count, total, images).answers()
        after = bare(model, images)
        ratio = rate / statistics.mean([before, after])
        compared = f"{ratio:.3f} of the extractor's {before:.1f} to {after:.1f} images/s"
        name = "1 client" if count == 1 else f"{count} clients"
        print(f"  {name}   {rate:.1f} requests/s   {compared}   {latency(latencies)}   {failed(counts)} of {total} failed")


def teaching(model: Model, address: str, images: list[bytes], quick: bool) -> None:
    print("== teaching: 64 clients ask while another one teaches ten classes of eight photographs, one after another")
    asking = Clients(address, 64, 40 if quick else 1600, images)
    seconds = []
    for number in range(2 if quick else 10):
        files = [("images", (f"{place}.jpg", one, "image/jpeg")) for place, one in enumerate(images[number : number + 8])]
        begin = time.perf_counter()
        found = httpx2.post(f"{address}/api/learn", files=files, data={"label": f"new {number}"}, timeout=300)
        assert found.status_code == 200, found.text
        seconds.append(time.perf_counter() - begin)
    rate, latencies, counts = asking.answers()
    print(f"  asking   {rate:.1f} requests/s   {latency(latencies)}")
    print(f"  lessons   {statistics.median(seconds):.2f} s each, at most {max(seconds):.2f} s")
    print(f"  answers   {', '.join(f'{count} with {kind}' for kind, count in sorted(counts.items()))}")
    print(f"  failed   {failed(counts)} of {sum(counts.values())}")


def memory(model: Model, address: str, images: list[bytes], quick: bool) -> None:
    each, turns = (20, 1) if quick else (5_000, 4)
    print(f"== memory: of the server, resident, before and after every {each:,} requests of 64 clients")
    marks = [resident(address)]
    for _ in range(turns):
        counts = Clients(address, 64, each, images).answers()[2]
        assert not failed(counts), counts
        marks.append(resident(address))
    print(f"  resident   {', '.join(f'{mark / 1e6:.0f}' for mark in marks)} MB")


if __name__ == "__main__":
    main()
