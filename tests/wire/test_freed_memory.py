"""What becomes of freed memory, in a process of its own."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory in its own way")


def run(code: str) -> list[int]:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(word) for word in ran.stdout.split()]


def test_freed_memory_of_large_bodies_is_kept():
    code = """if True:
        import resource
        from maitred.wire.freed_memory import keep_freed_memory
        keep_freed_memory()
        def count_faults(turns):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(turns):
                bodies = [bytes(200_000) for _ in range(8)]
                del bodies
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        count_faults(10)
        print(count_faults(100))
    """
    assert run(code)[0] < 1_000  # not 40,000


def test_what_lies_below_a_block_that_lives_is_returned():
    code = """if True:
        import resource
        from maitred.wire.freed_memory import keep_freed_memory, return_freed_memory
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize() // 2**20
        keep_freed_memory()
        begin = resident()
        bodies, others = [], []
        for _ in range(640):
            bodies.append(b"x" * 100_000)
            others.append(b"y" * 600)
        del bodies
        print(resident() - begin)
        return_freed_memory()
        print(resident() - begin)
    """
    kept, left = run(code)
    assert kept > 30
    assert left < 5
