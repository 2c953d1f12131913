//! What to do about a failure, by its class. docs/troubleshooting.md has a section for each.

use tprimat_figures::{is_host, platform_of};
use tprimat_job::FailureClass;

/// One sentence for the line below a failed run of this cell.
#[must_use]
pub fn advice(class: FailureClass, cell: &str) -> &'static str {
    match class {
        FailureClass::Oom if is_host(platform_of(cell)) => {
            "this host has too little memory: lower micro_batch_size or seq_length, or take a smaller model; then build again"
        }
        FailureClass::Oom => {
            "`tprimat fit CELL` lists what to change, cheapest first, with the memory it predicts for each; then build again"
        }
        FailureClass::Nccl => {
            "the next build runs it again; if it fails again, set NCCL_DEBUG: INFO in platform_optimizations.<platform>.env"
        }
        FailureClass::Timeout => {
            "the run took longer than its timeout: raise frameworks.<id>.timeout, or look for the step it hung in with `tprimat logs`"
        }
        FailureClass::Hang => {
            "`tprimat logs CELL --stacks` shows where its processes were; the next build runs it again. frameworks.<id>.hang_factor and \
             hang_least allow longer pauses between steps"
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
        FailureClass::Crash => {
            "native code of the trainer or a library ended it: `tprimat logs CELL` shows what came before; try other versions of the \
             packages, or PYTHONFAULTHANDLER: \"1\" in the environment for the stack. Once two runs end so, no build repeats it without --retry-failed"
        }
        FailureClass::Node => {
            "the node, a device with its driver, or the container engine failed: `tprimat doctor`, `nvidia-smi` or `rocm-smi` say more; the next build runs it again"
        }
        FailureClass::Launch => {
            "the launcher, weights or data named in the log are not there; put them in place, then build"
        }
        FailureClass::Unknown => {
            "`tprimat logs CELL` shows the whole log; once two runs fail with the same exception or exit code, no build repeats \
             it without --retry-failed"
        }
    }
}
