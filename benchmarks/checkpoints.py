"""What a checkpoint costs training, and how fast it is durable and back, against what others do.

1 GiB of state (64 tensors) goes to SeaweedFS and to a local directory, in turns, the median of each: ours,
`torch.save` plus `upload_file`, torch.distributed.checkpoint (DCP), and the fastest raw client moving the
same bytes. Every measurement is a process of its own. The S3 server shares the machine, and is what bounds
most of it; torch computes on one thread. The last line is JSON: `stall_over_copy`, `stall_gain`,
`save_over_raw`, `save_over_torch`, `cpu_s_per_gib`, `load_over_raw`.

    python benchmarks/checkpoints.py [--mib 1024] [--rounds 3] [--only-raw]
"""

# ruff: noqa: E402, D102 - the repository's root comes before what is imported from it; the names say it
from __future__ import annotations

import argparse
import json
import os
import resource
import secrets
import shutil
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch

from runtime.checkpoints.location import open_location
from runtime.events.targets import Backlog
from tests.support.seaweed import ACCESS_KEY, SECRET_KEY, SHARED_BUCKET, running_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from runtime.checkpoints.saver import Published
    from tests.support.seaweed import S3Server

    Prepare = Callable[["Bench"], Callable[[], "Times | None"]]

TENSORS = 64
SHARD_BYTES = 64 << 20
RAW_WORKERS = 4
SEND_BYTES = 256 << 10
SERVER_MEMORY = "4GiB"  # with less, its garbage collector takes up to half of the machine, and not always
SLUG = "benchmark"


@dataclass(frozen=True, slots=True)
class Times:
    """For how long training stood still, what the plain copy took just before, when all was durable."""

    stall_s: float
    durable_s: float
    copy_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process measured; `memory_bytes` is the most that it held beyond the state."""

    times: Times
    cpu_s: float
    memory_bytes: int


class Bench:
    """The state, the server, and the clients that a way of saving asks for (in a process of its own)."""

    def __init__(self, size_bytes: int, server: S3Server, folder: Path) -> None:
        self.size_bytes = size_bytes
        self.server = server
        self.folder = folder
        generator = torch.Generator().manual_seed(0)
        self.flat = torch.empty(size_bytes, dtype=torch.uint8).random_(generator=generator)
        parts = self.flat.split(size_bytes // TENSORS)
        self.state = {f"layer.{number}": part.view(torch.float32) for number, part in enumerate(parts)}
        self.shards = [memoryview(part.numpy()) for part in self.flat.split(SHARD_BYTES)]

    def boto(self) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.server.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
            config=Config(
                max_pool_connections=16,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={"payload_signing_enabled": False, "addressing_style": "path"},
            ),
        )

    def ob(self) -> Any:
        from obstore.store import S3Store

        return S3Store(
            SHARED_BUCKET,
            endpoint=self.server.endpoint,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            region="us-east-1",
            unsigned_payload=True,
            client_options={"allow_http": True},
        )

    def clean(self) -> None:
        """Delete what the processes left, but for what is loaded."""
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def ours(bench: Bench, spec: str) -> Callable[[], Times]:
    """A run of ours that has made its first step, so that its memory is ready."""
    location = open_location(spec, bench.server.env())
    attempt = location.claim(location.find(slug=SLUG, resume="never"), session=secrets.token_hex(16))
    saver = attempt.saver(expected_bytes=bench.size_bytes)
    saver._snapshots._ready.join()  # noqa: SLF001  (training has its first step to make for that)
    memory = saver._snapshots._buffer.tensor[: bench.size_bytes].split(bench.size_bytes // TENSORS)  # noqa: SLF001
    targets = [part.view(torch.float32) for part in memory]
    copy_s = min(_seconds(lambda: copy(targets, bench.state)) for _ in range(3))

    def save() -> Times:
        published_s: list[float] = []
        started_s = time.perf_counter()

        def published(_: Published) -> None:
            published_s.append(time.perf_counter() - started_s)

        saver.save(1, bench.state, {"step": 1}, lambda: Backlog(None, ()), published)
        stall_s = time.perf_counter() - started_s
        saver.wait()
        return Times(stall_s, published_s[0], copy_s)

    return save


def copy(targets: list[torch.Tensor], state: Mapping[str, torch.Tensor]) -> None:
    for target, source in zip(targets, state.values(), strict=True):
        target.copy_(source)


def our_load(bench: Bench) -> Callable[[], None]:
    location = open_location(f"s3://{SHARED_BUCKET}/ours", bench.server.env())
    location.record()  # it is connected, as the raw clients are

    def load() -> None:
        assert location.find(slug=SLUG).checkpoint is not None

    return load


def torch_save_and_upload(bench: Bench) -> Callable[[], None]:
    boto, path = bench.boto(), bench.folder / "torch.pt"

    def save() -> None:
        torch.save(bench.state, path)
        boto.upload_file(str(path), SHARED_BUCKET, "torch.pt")

    return save


def torch_download_and_load(bench: Bench) -> Callable[[], None]:
    boto, path = bench.boto(), bench.folder / "back.pt"

    def load() -> None:
        boto.download_file(SHARED_BUCKET, "torch.pt", str(path))
        torch.load(path, weights_only=True)

    return load


def torch_save_locally(bench: Bench) -> Callable[[], None]:
    def save() -> None:
        with (bench.folder / "local.pt").open("wb") as file:
            torch.save(bench.state, file)
            os.fsync(file.fileno())

    return save


def dcp_locally(bench: Bench) -> Callable[[], None]:
    from torch.distributed.checkpoint import state_dict_saver

    return lambda: _drop(state_dict_saver.save(bench.state, checkpoint_id=bench.folder / "dcp"))


def dcp_asynchronously(bench: Bench) -> Callable[[], Times]:
    import torch.distributed as dist
    from torch.distributed.checkpoint import state_dict_saver

    dist.init_process_group("gloo", init_method=f"file://{bench.folder}/group", rank=0, world_size=1)

    def save() -> Times:
        started_s = time.perf_counter()
        future: Any = state_dict_saver.async_save(bench.state, checkpoint_id=bench.folder / "dcp-async")
        stall_s = time.perf_counter() - started_s
        future.result()
        return Times(stall_s, time.perf_counter() - started_s)

    return save


def dcp_to_s3(bench: Bench) -> Callable[[], None]:
    from s3torchconnector import S3ClientConfig
    from s3torchconnector._s3client import S3Client
    from s3torchconnector.dcp import S3StorageWriter
    from s3torchconnector.dcp.s3_file_system import S3FileSystem
    from torch.distributed.checkpoint import state_dict_saver

    os.environ.update(bench.server.env())
    settings = S3ClientConfig(force_path_style=True)
    client = S3Client("us-east-1", endpoint=bench.server.endpoint, s3client_config=settings)
    writer = S3StorageWriter(
        "us-east-1", f"s3://{SHARED_BUCKET}/dcp/", s3client_config=settings, thread_count=RAW_WORKERS
    )
    writer.fs = S3FileSystem("us-east-1", s3_client=client)
    return lambda: _drop(state_dict_saver.save(bench.state, storage_writer=writer))


class Body:
    """A buffer as boto3 likes to send it: without a copy, and in larger pieces than it asks for."""

    def __init__(self, view: memoryview) -> None:
        self.view, self.at = view, 0

    def __len__(self) -> int:
        return len(self.view)

    def read(self, size: int = -1) -> memoryview:
        chunk = self.view[self.at :] if size < 0 else self.view[self.at : self.at + max(size, SEND_BYTES)]
        self.at += len(chunk)
        return chunk

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, len(self.view))[whence]
        return self.at

    def tell(self) -> int:
        return self.at


def raw_boto_save(bench: Bench) -> Callable[[], None]:
    boto = bench.boto()
    boto.list_buckets()
    return in_parallel(
        bench, lambda i: boto.put_object(Bucket=SHARED_BUCKET, Key=f"raw/{i}", Body=Body(bench.shards[i]))
    )


def raw_obstore_save(bench: Bench) -> Callable[[], None]:
    import obstore

    store = bench.ob()
    return in_parallel(bench, lambda i: obstore.put(store, f"raw/{i}", bench.shards[i], use_multipart=False))


def raw_boto_read(bench: Bench) -> Callable[[], None]:
    boto = bench.boto()
    boto.list_buckets()
    return in_parallel(bench, lambda i: boto.get_object(Bucket=SHARED_BUCKET, Key=f"raw/{i}")["Body"].read())


def raw_boto_readinto(bench: Bench) -> Callable[[], None]:
    boto = bench.boto()
    boto.list_buckets()

    def get(index: int) -> bytearray:
        body = boto.get_object(Bucket=SHARED_BUCKET, Key=f"raw/{index}")["Body"]
        data = bytearray(len(bench.shards[index]))
        view, done = memoryview(data), 0
        while count := body.readinto(view[done : done + (1 << 20)]):
            done += count
        return data

    return in_parallel(bench, get)


def raw_obstore_read(bench: Bench) -> Callable[[], None]:
    import obstore

    store = bench.ob()
    return in_parallel(bench, lambda i: obstore.get(store, f"raw/{i}").bytes())


def in_parallel(bench: Bench, work: Callable[[int], object]) -> Callable[[], None]:
    """All shards, a few at a time; what was read is held, as a state is."""

    def run() -> None:
        with ThreadPoolExecutor(RAW_WORKERS) as pool:
            _drop(list(pool.map(work, range(len(bench.shards)))))

    return run


OURS, OUR_LOAD, TORCH = "ours, S3", "ours, from S3, verified", "torch.save + upload_file, S3"
DCP_S3 = "DCP (s3torchconnector), S3"
RAW_SAVES = {"raw boto3 PUTs, S3": raw_boto_save, "raw obstore PUTs, S3": raw_obstore_save}
RAW_LOADS = {
    "raw boto3 read(), from S3": raw_boto_read,
    "raw boto3 readinto(), from S3": raw_boto_readinto,
    "raw obstore, from S3": raw_obstore_read,
}


def saving() -> dict[str, Prepare]:
    """Every way to save, by its name."""
    there = {DCP_S3: dcp_to_s3} if find_spec("s3torchconnector") else {}
    if not there:
        print("s3torchconnector is not installed (make bench installs it): DCP to S3 is left out\n")
    return {
        OURS: lambda bench: ours(bench, f"s3://{SHARED_BUCKET}/ours"),
        **RAW_SAVES,
        TORCH: torch_save_and_upload,
        **there,
        "ours, local": lambda bench: ours(bench, str(bench.folder / "ours")),
        "torch.save + fsync, local": torch_save_locally,
        "DCP, local": dcp_locally,
        "DCP async_save, local": dcp_asynchronously,
    }


def loading() -> dict[str, Prepare]:
    """Every way to load what was saved."""
    return {
        OUR_LOAD: our_load,
        **RAW_LOADS,
        "download_file + torch.load, from S3": torch_download_and_load,
    }


def measure(bench: Bench, prepare: Prepare) -> Sample:
    """Prepare and run one way in a forked process: this one computes nothing and has one thread."""
    os.sync()  # what the last one left in the page cache is not written back during this one
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _measure_here(bench, prepare, writing)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    bench.clean()
    values = json.loads(text)
    return Sample(Times(**values["times"]), values["cpu_s"], values["memory_bytes"])


def _measure_here(bench: Bench, prepare: Prepare, answer: int) -> NoReturn:
    try:
        torch.set_num_threads(1)
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        before_bytes = _status_bytes("VmRSS")
        work = prepare(bench)
        before_cpu_s, started_s = _cpu_s(), time.perf_counter()
        times = work()
        whole_s = time.perf_counter() - started_s
        sample = Sample(
            times or Times(whole_s, whole_s), _cpu_s() - before_cpu_s, _status_bytes("VmHWM") - before_bytes
        )
        os.write(answer, json.dumps(asdict(sample)).encode())
    except BaseException:  # noqa: BLE001  (it is printed, and the process ends)
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def figures(bench: Bench, samples: Mapping[str, list[Sample]]) -> dict[str, float]:
    saves = [sample for name in (OURS, "ours, local") for sample in samples[name]]
    stall_s = statistics.median(sample.times.stall_s for sample in saves)
    over_copy = [sample.times.stall_s / sample.times.copy_s for sample in saves if sample.times.copy_s]
    peers = [name for name in (TORCH, DCP_S3) if name in samples]
    return {
        "stall_over_copy": statistics.median(over_copy),
        "stall_gain": statistics.median(sample.times.stall_s for sample in samples[TORCH]) / stall_s,
        **against_raw(bench, samples),
        "save_over_torch": _over(samples, peers, OURS),
        "load_over_raw": _over(samples, RAW_LOADS, OUR_LOAD),
    }


def against_raw(bench: Bench, samples: Mapping[str, list[Sample]]) -> dict[str, float]:
    """What takes nothing but our saves to S3 and the raw ones."""
    cpu_s = statistics.median(sample.cpu_s for sample in samples[OURS])
    return {
        "save_over_raw": _over(samples, RAW_SAVES, OURS),
        "cpu_s_per_gib": cpu_s * 2**30 / bench.size_bytes,
    }


def _over(samples: Mapping[str, list[Sample]], others: Iterable[str], ours: str) -> float:
    """The seconds of the fastest of `others` over ours."""

    def durable_s(name: str) -> float:
        return statistics.median(sample.times.durable_s for sample in samples[name])

    return min(map(durable_s, others)) / durable_s(ours)


def table(bench: Bench, samples: Mapping[str, list[Sample]]) -> str:
    lines = [
        f"| {bench.size_bytes >> 20} MiB | stall, s | durable or back, s | MiB/s | CPU, s | memory, MiB |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, measured in samples.items():
        seconds = statistics.median(sample.times.durable_s for sample in measured)
        stall_s = statistics.median(sample.times.stall_s for sample in measured)
        stall = "" if "from S3" in name or name in RAW_SAVES else f"{stall_s:.3f}"
        cpu_s = statistics.median(sample.cpu_s for sample in measured)
        memory = statistics.median(sample.memory_bytes for sample in measured) / 2**20
        rate = bench.size_bytes / 2**20 / seconds
        lines.append(f"| {name} | {stall} | {seconds:.2f} | {rate:.0f} | {cpu_s:.2f} | {memory:.0f} |")
    return "\n".join(lines)


def _from(number: int, some: Mapping[str, Prepare]) -> list[tuple[str, Prepare]]:
    """Each round begins with another: what one leaves behind on the machine meets all of them."""
    items = list(some.items())
    first = number % max(len(items), 1)
    return items[first:] + items[:first]


def _seconds(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:"))) * 1024


def _drop(_: object) -> None:
    """Returned to nobody."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Checkpoints against torch.save, DCP and the raw clients.")
    parser.add_argument("--mib", type=int, default=1024, help="size of the state (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (default: %(default)s)")
    parser.add_argument("--only-raw", action="store_true", help="only ours and the raw PUTs, to S3")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")  # DCP's, about running without other ranks
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-"))
    (folder / "ways").mkdir()
    try:
        with running_server(folder / "s3", memory=SERVER_MEMORY) as server:
            bench = Bench(chosen.mib << 20, server, folder / "ways")
            saves, loads = saving(), loading()
            if chosen.only_raw:
                saves, loads = {name: saves[name] for name in (OURS, *RAW_SAVES)}, {}
            samples = in_turns(bench, saves, loads, rounds=chosen.rounds)
        found = against_raw(bench, samples) if chosen.only_raw else figures(bench, samples)
        print(f"\n{table(bench, samples)}")
        print(json.dumps({name: round(value, 3) for name, value in found.items()}))
    finally:
        shutil.rmtree(folder)


def in_turns(
    bench: Bench, saves: Mapping[str, Prepare], loads: Mapping[str, Prepare], *, rounds: int
) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {name: [] for name in (*saves, *loads)}
    for number in range(rounds):
        for name, prepare in (*_from(number, saves), *_from(number, loads)):
            sample = measure(bench, prepare)
            samples[name].append(sample)
            print(f"round {number + 1}: {sample.times.durable_s:6.2f} s  {name}", flush=True)
    return samples


if __name__ == "__main__":
    main()
