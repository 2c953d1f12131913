"""Python runs this at start. In the workers of a launch, and there alone, torch is put on the CPU before a framework sees it."""

import os

if os.environ.get("TPRIMAT_STAND_IN") and "RANK" in os.environ:
    import on_cpu

    on_cpu.install(os.environ["TPRIMAT_STAND_IN"])
