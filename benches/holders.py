"""Every 0.3 s: which processes NVML sees on which GPU, and which run of tprimat each belongs to (by its environment). Independent
of tprimat's own telemetry."""

import ctypes
import json
import sys
import time

lib = ctypes.CDLL("libnvidia-ml.so.1")
lib.nvmlInit_v2()


class Info(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]


def gpus():
    count = ctypes.c_uint()
    lib.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        handle = ctypes.c_void_p()
        lib.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        uuid = ctypes.create_string_buffer(96)
        lib.nvmlDeviceGetUUID(handle, uuid, 96)
        yield uuid.value.decode(), handle


def run_of(pid):
    try:
        env = open(f"/proc/{pid}/environ", "rb").read().split(b"\0")
    except OSError:
        return None
    for entry in env:
        if entry.startswith(b"TPRIMAT_RUN_DIR="):
            return entry.split(b"=", 1)[1].decode().rstrip("/").rsplit("/", 1)[-1]
    return "another"


handles, known = list(gpus()), {}
with open(sys.argv[1], "w") as out:
    while True:
        seen = {}
        for uuid, handle in handles:
            count = ctypes.c_uint(64)
            infos = (Info * 64)()
            if lib.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), infos) == 0:
                pids = [infos[i].pid for i in range(count.value)]
                for pid in pids:
                    known[pid] = run_of(pid) or known.get(pid) or "ended"
                seen[uuid] = [[pid, known[pid]] for pid in pids]
        out.write(json.dumps({"time": time.time(), "gpus": seen}) + "\n")
        out.flush()
        time.sleep(0.3)
