//! What to do about a failure, by its class. docs/troubleshooting.md has a section for each.

use tprimat_job::FailureClass;

/// One sentence for the line below a failed run.
#[must_use]
pub fn advice(class: FailureClass) -> &'static str {
    match class {
        FailureClass::Oom => {
            "`tprimat fit CELL` lists what to change, cheapest first, with the memory it predicts for each; then build again"
        }
        FailureClass::Nccl => {
            "the next build runs it again; if it fails again, set NCCL_DEBUG: INFO in platform_optimizations.<platform>.env"
        }
        FailureClass::Timeout => {
            "the run took longer than its timeout: raise frameworks.<id>.timeout, or look for the step it hung in with `tprimat logs`"
        }
        FailureClass::Nan => {
            "lower the learning rate or lengthen warm-up, and try bf16 where it was fp8; the change is a new measurement"
        }
        FailureClass::Import => {
            "install the package into the Python that runs the recipe (`tprimat recipe show ID requirements.<vendor>.txt`), then \
             build with --retry-failed"
        }
        FailureClass::Port => "another process holds the port; the next build runs it again",
        FailureClass::Killed => {
            "the next build runs it again; unless you stopped it yourself, look for the host's out-of-memory killer (`dmesg`)"
        }
        FailureClass::Node => {
            "the device or its driver failed: check `nvidia-smi` or `rocm-smi`; the next build runs it again"
        }
        FailureClass::Launch => {
            "the launcher, weights or data named in the log are not there; put them in place, then build"
        }
        FailureClass::Unknown => "`tprimat logs CELL` shows the whole log",
    }
}
