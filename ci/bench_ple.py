# SPDX-License-Identifier: Apache-2.0
"""Rows per second of `host_file_gather` on one large file, warm and cold, against other ways.

Drives `Qwen4ExpPLEFileGatherEmbedding` of the tree under test: a synthetic checkpoint goes through
vLLM's own loader, then steps of random row ids are staged. All ways run in one process, take turns
within each round, and see fresh ids, so the ratios survive a noisy machine better than the times.

    python ci/bench_ple.py --tree PATH [--size-gb N] [--json FILE]

Ways:
    patch     the class: sort, gather, scatter to host rows, copy to the staging buffer
    floor     sorted `preadv` in C, one call per distinct row (needs `cc`)
    floor+w   the same after POSIX_FADV_WILLNEED for every page run, also in C
    python    sorted `os.preadv` per row after WILLNEED (what a plain loop costs)
    threads   `preadv` in C from 16 threads, no advice
    mmap      `torch.index_select` on a map with default read-ahead
    random    the same with MADV_RANDOM
    resident  `torch.index_select` on a table in anonymous memory (half the file's rows)

Cold means: no page of the file is mapped or cached when the step starts; the number of 4 KiB pages
read from the device during the step is reported as evidence (`getrusage`, ru_inblock). "untouched"
means: cached, but no page is in this process's page tables; "warm" means that all are, as after
many steps. CPU time counts all threads. io_uring is not measured: Docker's default seccomp profile
refuses it, so vLLM could not rely on it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HEADS = 16
WIDTH = 160
ROW_BYTES = WIDTH * 2
SHARDS = 64
TOKENS = (1, 8, 64, 2048)
PAGE = 4096
MADV_POPULATE_READ = 22  # Linux 5.14; not in Python's mmap module

FLOOR_C = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/uio.h>
typedef struct { int fd; const int64_t *offset; int64_t n, row; char *out; } job;
static void *run(void *arg) {
  job *j = arg;
  for (int64_t i = 0; i < j->n; i++) {
    struct iovec v = { j->out + i * j->row, j->row };
    if (preadv(j->fd, &v, 1, j->offset[i]) != j->row) return (void *)1;
  }
  return 0;
}
void read_rows(int fd, const int64_t *offset, int64_t n, int64_t row, char *out, int threads) {
  pthread_t t[64]; job j[64]; int64_t c = (n + threads - 1) / threads; int k = 0;
  if (threads == 1) { j[0] = (job){ fd, offset, n, row, out }; run(j); return; }
  for (; k < threads && k * c < n; k++) {
    int64_t m = n - k * c < c ? n - k * c : c;
    j[k] = (job){ fd, offset + k * c, m, row, out + k * c * row };
    pthread_create(&t[k], 0, run, &j[k]);
  }
  while (k--) pthread_join(t[k], 0);
}
void advise(int fd, const int64_t *offset, int64_t n, int64_t row) {
  int64_t lo = offset[0] / 4096, hi = lo;
  for (int64_t i = 0; i < n; i++) {
    int64_t a = offset[i] / 4096, b = (offset[i] + row - 1) / 4096;
    if (a > hi + 1) {
      posix_fadvise(fd, lo * 4096, (hi - lo + 1) * 4096, POSIX_FADV_WILLNEED);
      lo = a;
    }
    hi = b;
  }
  posix_fadvise(fd, lo * 4096, (hi - lo + 1) * 4096, POSIX_FADV_WILLNEED);
}
"""


def write_config(folder: Path, size_gb: float) -> Any:
    """Write and return the configuration of a model with a table of about `size_gb`."""
    from transformers import Qwen4ExpTextConfig

    config = Qwen4ExpTextConfig(
        architectures=["Qwen4ExpForCausalLM"],
        vocab_size=248320,
        hidden_size=16,
        num_hidden_layers=2,
        layer_types=["linear_attention"] * 2,
        num_experts=2,
        num_experts_per_tok=1,
        hc_count=2,
        eos_token_id=1,
        output_gate_type="sigmoid",
        ple_layer_ids=[2],
        ple_embed_dim=HEADS * WIDTH,
        ngram_size=3,
        heads_per_ngram=HEADS // 2,
        # The heads get consecutive primes from here on.
        ngram_vocab_size_base=int(size_gb * 1e9) // ROW_BYTES // HEADS,
        make_ngram_vocab_size_divisible_by=SHARDS,
        split_ngram_parts=SHARDS,
        dtype="bfloat16",
    )
    config.save_pretrained(folder)
    return config


def write_rows(path: Path, rows: int) -> int:
    """Stream a safetensors file of SHARDS equal shards; returns the offset of its data."""
    shard_bytes = rows // SHARDS * ROW_BYTES
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for shard in range(SHARDS):
        header[f"model.layers.1.ple.ple_embedding.ngram_embedding.shard_{shard}.weight"] = {
            "dtype": "BF16",
            "shape": [rows // SHARDS, WIDTH],
            "data_offsets": [shard * shard_bytes, (shard + 1) * shard_bytes],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = np.random.default_rng(0).integers(0, 120, 1 << 24, dtype=np.uint8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        left = rows * ROW_BYTES
        while left:
            # A different rotation each time: no two pages of the file are equal.
            block = np.roll(block, 4099)
            left -= file.write(block[:left].tobytes())
        file.flush()
        os.fsync(file.fileno())
    return 8 + len(text)


PREFIX = "model.layers.1.ple.ple_embedding"


def build_module(folder: Path, config: Any) -> Any:
    """Construct vLLM's n-gram embedding on one real rank."""
    import torch
    from vllm.config import (
        EngramConfig,
        LoadConfig,
        ModelConfig,
        VllmConfig,
        set_current_vllm_config,
    )
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.models.qwen4_exp.nvidia.ngram_embedding import Qwen4ExpNGramEmbedding

    vllm_config = VllmConfig(
        model_config=ModelConfig(str(folder)),
        load_config=LoadConfig(),
        engram_config=EngramConfig(host_file_gather=True),
    )
    with set_current_vllm_config(vllm_config):
        init_distributed_environment(
            1, 0, distributed_init_method=f"file://{folder}/store", local_rank=0, backend="gloo"
        )
        initialize_model_parallel(1, 1)
        return Qwen4ExpNGramEmbedding(
            config,
            config.ple_embed_dim,
            ple_dense_layer_id=0,
            max_total_tokens=max(TOKENS),
            data_parallel_rank=0,
            prefix=PREFIX,
            params_dtype=torch.bfloat16,
        )


def load_rows(module: Any, path: Path) -> None:
    """Load the checkpoint as vLLM's default loader does."""
    from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator

    module.load_weights(
        (name.removeprefix(f"{PREFIX}."), tensor)
        for name, tensor in safetensors_weights_iterator([str(path)], False)
    )
    module.ngram_embedding.bind_file_shards()


def rss_anon() -> int:
    """Return the anonymous resident memory of this process in bytes (proc(5))."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon in /proc/self/status")


class Evictor:
    """Drops a file from this process's page tables and from the page cache."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY)
        self.libc = ctypes.CDLL(None)
        self.libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def unmap(self) -> None:
        """Forget the page table entries of every mapping of the file; the mappings stay."""
        # On a shared file mapping this only drops the entries.
        self._advise(mmap.MADV_DONTNEED)

    def _advise(self, advice: int) -> None:
        with Path("/proc/self/maps").open() as maps:
            for line in maps:
                if line.rstrip("\n").endswith(str(self.path)):
                    start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
                    self.libc.madvise(start, end - start, advice)

    def populate(self) -> None:
        """Fill the page tables of every mapping of the file, as many earlier steps would have."""
        self._advise(MADV_POPULATE_READ)

    def drop(self) -> None:
        """Make the next read of any page a read from the device."""
        self.unmap()
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def fill(self) -> None:
        """Read the whole file into the page cache."""
        buffer = bytearray(1 << 24)
        offset = 0
        while size := os.preadv(self.fd, [buffer], offset):
            offset += size


class Ways:
    """All ways to gather rows, each a function of unsorted int64 ids."""

    def __init__(self, path: Path, data_offset: int, rows: int, module: Any, work: Path) -> None:
        import torch

        self.torch = torch
        self.offset = data_offset
        self.fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
        self.embedding = module.ngram_embedding
        capacity = max(TOKENS) * HEADS
        self.scratch = np.ones((capacity, ROW_BYTES), dtype=np.uint8)
        self.out = torch.ones(capacity, ROW_BYTES, dtype=torch.uint8)
        self.size = path.stat().st_size
        self.maps: list[Any] = []
        plain, advised = (self._map(path, advice) for advice in (mmap.MADV_NORMAL, mmap.MADV_RANDOM))
        self.resident = torch.ones(rows // 2, ROW_BYTES, dtype=torch.uint8)
        self.rows: dict[str, Callable[[Any], None]] = {
            "patch": self.patch,
            "python": self.python,
            "mmap": lambda ids: self._select(plain, ids),
            "random": lambda ids: self._select(advised, ids),
            "resident": lambda ids: self._select(self.resident, ids // 2),
        }
        if compiler := shutil.which("cc"):
            (work / "floor.c").write_text(FLOOR_C)
            subprocess.run(
                [compiler, "-O2", "-shared", "-fPIC", "floor.c", "-o", "floor.so", "-lpthread"],
                cwd=work,
                check=True,
            )
            self.lib = ctypes.CDLL(str(work / "floor.so"))
            self.rows["floor"] = lambda ids: self.floor(ids, 1, advise=False)
            self.rows["floor+w"] = lambda ids: self.floor(ids, 1, advise=True)
            self.rows["threads"] = lambda ids: self.floor(ids, 16, advise=False)

    def _map(self, path: Path, advice: int) -> Any:
        # The data offset is a multiple of 8, so the table is a view of the map from there on.
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
        mapped.madvise(advice)
        self.maps.append(mapped)
        table = np.frombuffer(mapped, dtype=np.uint8, offset=self.offset)
        return self.torch.from_numpy(table).view(-1, ROW_BYTES)

    def _select(self, table: Any, ids: Any) -> None:
        self.torch.index_select(table, 0, ids, out=self.out[: ids.numel()])

    def _offsets(self, ids: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.unique(ids.numpy()) * ROW_BYTES + self.offset

    def patch(self, ids: Any) -> None:
        """Run one step of the class under test."""
        self.embedding.stage_rows(ids.view(-1, HEADS))

    def python(self, ids: Any) -> None:
        """Read row by row from Python, after advice for every page run."""
        offsets = self._offsets(ids)
        first, last = offsets // PAGE, (offsets + ROW_BYTES - 1) // PAGE
        start = int(first[0])
        end = start
        for low, high in zip(first.tolist(), last.tolist(), strict=True):
            if low > end + 1:
                os.posix_fadvise(self.fd, start * PAGE, (end - start + 1) * PAGE, os.POSIX_FADV_WILLNEED)
                start = low
            end = high
        os.posix_fadvise(self.fd, start * PAGE, (end - start + 1) * PAGE, os.POSIX_FADV_WILLNEED)
        for row, offset in zip(self.scratch, offsets.tolist(), strict=False):
            os.preadv(self.fd, [row], offset)

    def floor(self, ids: Any, threads: int, *, advise: bool) -> None:
        """Read row by row from C."""
        offsets = self._offsets(ids)
        args = (ctypes.c_void_p(offsets.ctypes.data), ctypes.c_int64(len(offsets)))
        row = ctypes.c_int64(ROW_BYTES)
        if advise:
            self.lib.advise(self.fd, *args, row)
        self.lib.read_rows(self.fd, *args, row, ctypes.c_void_p(self.scratch.ctypes.data), threads)


def measure(
    ways: Ways, evictor: Evictor, rows: int, tokens: int, rounds: int, state: str, skip: set[str]
) -> dict[str, dict[str, Any]]:
    """Time every way on fresh ids; the ways take turns within a round."""
    import torch

    generator = torch.Generator().manual_seed(tokens)
    times: dict[str, list[float]] = {name: [] for name in ways.rows if name not in skip}
    cpus: dict[str, list[float]] = {name: [] for name in times}
    pages: dict[str, list[int]] = {name: [] for name in times}
    names = list(times)
    for round_ in range(rounds + 1):
        for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
            ids = torch.randint(0, rows, (tokens * HEADS,), generator=generator)
            if state == "cold":
                evictor.drop()
            elif state == "untouched":
                evictor.unmap()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
            cpu = time.process_time()
            start = time.perf_counter()
            ways.rows[name](ids)
            elapsed = time.perf_counter() - start
            cpu = time.process_time() - cpu
            if round_:  # the first round warms code paths and allocations
                times[name].append(elapsed)
                cpus[name].append(cpu)
                after = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
                pages[name].append((after - before) // 8)
    return {
        name: {
            "median_ms": statistics.median(values) * 1e3,
            "min_ms": min(values) * 1e3,
            "cpu_ms": statistics.median(cpus[name]) * 1e3,
            "rows_per_s": tokens * HEADS / statistics.median(values),
            "pages_read": statistics.median(pages[name]),
            "rounds": len(values),
        }
        for name, values in times.items()
    }


def verify(module: Any, ways: Ways, rows: int) -> None:
    """The class must return the file's own bytes."""
    import torch

    ids = torch.randint(0, rows, (512, HEADS), generator=torch.Generator().manual_seed(9))
    module.ngram_embedding.stage_rows(ids)
    staged = module.ngram_embedding.finalize_prefetch(512).view(torch.uint8).view(-1, ROW_BYTES)
    expected = np.empty_like(staged.numpy())
    for row, row_id in zip(expected, ids.flatten().tolist(), strict=True):
        os.preadv(ways.fd, [row], ways.offset + row_id * ROW_BYTES)
    if not np.array_equal(staged.numpy(), expected):
        raise SystemExit("staged rows differ from the file")


def report(key: str, ways: dict[str, dict[str, Any]]) -> None:
    """Print one line per way, fastest first."""
    for name, way in sorted(ways.items(), key=lambda item: float(item[1]["median_ms"])):
        print(
            f"{key:18} {name:9} median {way['median_ms']:10.3f} ms  min {way['min_ms']:10.3f} ms  "
            f"cpu {way['cpu_ms']:9.3f} ms  "
            f"{way['rows_per_s']:12.0f} rows/s  {way['pages_read']:8.0f} pages",
            flush=True,
        )


def targets(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare the ratios that the issue sets, by median and by minimum, with their limits."""
    found = []

    def add(key: str, over: str, under: str, limit: float, *, at_least: bool) -> None:
        ways = results[key]
        if over not in ways or under not in ways:
            return
        median, best = (ways[over][kind] / ways[under][kind] for kind in ("median_ms", "min_ms"))
        found.append(
            {
                "name": f"{key}: {over} / {under}",
                "median": round(median, 2),
                "min": round(best, 2),
                "limit": f"{'>=' if at_least else '<='} {limit}",
                "met": median >= limit if at_least else median <= limit,
            }
        )

    for tokens in (1, 8, 64):
        add(f"cold/{tokens}", "random", "patch", 3, at_least=True)
        add(f"cold/{tokens}", "patch", "floor", 1.3, at_least=False)
        add(f"cold/{tokens}", "patch", "floor+w", 1.3, at_least=False)
    for state in ("warm", "untouched"):
        add(f"{state}/2048", "patch", "resident", 2, at_least=False)
        add(f"{state}/2048/1thread", "patch", "resident", 2, at_least=False)
    return found


def main() -> None:
    """Write the file, run all states and token counts, compare with the targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", type=Path, required=True, help="vLLM tree with the patch")
    parser.add_argument("--size-gb", type=float, default=4.0, help="size of the table on disk")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--dir", type=Path, help="folder on the disk to measure (default: temporary)")
    args = parser.parse_args()

    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    tree = str(args.tree.resolve())
    sys.path.insert(0, tree)
    # vLLM inspects model classes in a child process.
    os.environ["PYTHONPATH"] = os.pathsep.join([tree, os.environ.get("PYTHONPATH", "")])
    import torch

    with tempfile.TemporaryDirectory(dir=args.dir, prefix="bench_ple_") as name:
        folder = Path(name)
        config = write_config(folder, args.size_gb)
        module = build_module(folder, config)
        rows = module.ngram_embedding.org_vocab_size
        path = folder / "model.safetensors"
        data_offset = write_rows(path, rows)
        load_rows(module, path)
        evictor = Evictor(path)
        ways = Ways(path, data_offset, rows, module, folder)
        verify(module, ways, rows)
        results: dict[str, Any] = {}
        for tokens in TOKENS:
            big = tokens == max(TOKENS)
            # Default read-ahead turns a large cold step into reading most of the file.
            skip = {"resident"} | ({"mmap"} if big else set())
            rounds = 3 if big else 9
            results[f"cold/{tokens}"] = measure(ways, evictor, rows, tokens, rounds, "cold", skip)
            report(f"cold/{tokens}", results[f"cold/{tokens}"])
        evictor.fill()
        for state in ("untouched", "warm"):
            if state == "warm":
                evictor.populate()
            for tokens in TOKENS:
                rounds = 11 if tokens == max(TOKENS) else 31
                key = f"{state}/{tokens}"
                results[key] = measure(ways, evictor, rows, tokens, rounds, state, set())
                report(key, results[key])
            # vLLM's workers often have one torch thread each (OMP_NUM_THREADS).
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            key = f"{state}/{max(TOKENS)}/1thread"
            results[key] = measure(ways, evictor, rows, max(TOKENS), 11, state, set())
            report(key, results[key])
            torch.set_num_threads(threads)
        machine = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "kernel": platform.release(),
            "cpus": len(os.sched_getaffinity(0)),
            "load": os.getloadavg(),
            "torch_threads": torch.get_num_threads(),
            "file_bytes": path.stat().st_size,
            "rows": rows,
        }
        checks = targets(results)
        print(json.dumps(machine))
        for check in checks:
            verdict = "met " if check["met"] else "MISS"
            print(
                f"{verdict} {check['name']}: median {check['median']}, min {check['min']} "
                f"(limit {check['limit']})"
            )
        if args.json:
            found = {"machine": machine, "results": results, "targets": checks}
            args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
