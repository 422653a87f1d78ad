"""What benchmarks measure with: CPU accounts, and a loop that tells how fast the machine is just now."""

from __future__ import annotations

from pathlib import Path
from time import process_time

CALIBRATION_LOOPS = 1_000_000


def calibrate() -> float:
    """CPU seconds of a fixed loop of plain Python."""
    began = process_time()
    total = 0
    for number in range(CALIBRATION_LOOPS):
        total += number & 7
    assert total
    return process_time() - began


def cpu_of(pid: int) -> float:
    """CPU seconds that all threads of a process have used, by the scheduler's account (Linux)."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def peak_memory_of(pid: int) -> int:
    """Bytes that a process has had in memory at most (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]
    return int(kilobytes) * 1024


def resident_bytes(pid: int) -> int:
    """Return the memory of a process, in bytes."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024
