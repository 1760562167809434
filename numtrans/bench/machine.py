"""What the numbers of a benchmark depend on: the machine, the versions, the kernel of the BLAS, the threads."""

import os
import platform
import sys
from pathlib import Path


def machine_facts():
    """Processor, cores, memory, system and Python, as a dict of plain values."""
    return {
        "processor": processor(), "cores": os.cpu_count(), "memory_gb": memory_gb(), "system": platform.platform(),
        "python": platform.python_version(),
    }  # fmt: skip


def processor():
    """The name of the processor, as the system gives it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    name = named.get("model name", platform.machine())
    return f"{name} (family {named['cpu family']}, model {named['model']})" if "cpu family" in named else name


def memory_gb():
    """Memory of the machine in GB, None where the system does not say."""
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1)
    except (AttributeError, ValueError, OSError):
        return None


def library_facts():
    """Versions, the BLAS with its kernel, and threads, of the libraries that this process has loaded."""
    import numpy as np
    from threadpoolctl import threadpool_info

    pools = [
        {"library": pool["internal_api"], "version": pool["version"], "threads": pool["num_threads"],
         "kernel": pool.get("architecture")}
        for pool in threadpool_info()
    ]  # fmt: skip
    facts = {"numpy": np.__version__, "pools": pools}
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        facts |= {
            "torch": torch.__version__, "torch_threads": torch.get_num_threads(),
            "torch_kernel": torch.backends.cpu.get_cpu_capability(),
        }  # fmt: skip
    return facts


def describe(facts):
    """One line of the facts of a contestant: versions, kernels, threads."""
    blas = [p for p in facts["pools"] if p["kernel"]]
    text = f"NumPy {facts['numpy']}"
    if "torch" in facts:
        return f"PyTorch {facts['torch']} ({facts['torch_kernel']}), {facts['torch_threads']} threads"
    for pool in blas:
        text += f", {pool['library']} {pool['version']} kernel {pool['kernel']}, {pool['threads']} threads"
    return text
