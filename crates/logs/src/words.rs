//! The words by which logs tell of failures, in old and new spellings.

use super::FailureClass::{
    self as Class, Import, Killed, Launch, Nan, Nccl, Node, Oom, Port, Timeout,
};

/// How much a line with such a word says by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// A process ended.
    Fatal,
    /// A process ended if the line is an exception; else it explains a failure that is known
    /// otherwise.
    Raised,
    /// Explains a failure that is known otherwise.
    Hint,
    /// What a shell says of a command that it cannot start.
    Shell,
    /// What Python says of a module that it is to run (`-m NAME`), without an exception.
    Interpreter,
}
use Sign::{Fatal, Hint, Interpreter, Raised, Shell};

/// In order of how much they explain: when a GPU is lost or memory runs out on one rank, the others
/// end with NCCL errors and signals, so those come after.
pub const SIGNS: &[(&str, Class, Sign)] = &[
    ("NVRM: Xid", Node, Fatal),
    ("Xid (PCI", Node, Fatal),
    ("uncorrectable ECC error", Node, Raised),
    ("GPU has fallen off the bus", Node, Fatal),
    ("GPU is lost", Node, Fatal),
    ("Unable to determine the device handle for GPU", Node, Hint),
    ("GPU Hang", Node, Fatal),
    ("DUE TO NODE FAILURE", Node, Fatal),
    ("CUDA out of memory", Oom, Raised),
    ("HIP out of memory", Oom, Raised),
    ("XPU out of memory", Oom, Raised),
    ("OutOfMemoryError", Oom, Raised),
    ("CUDA error: out of memory", Oom, Raised),
    ("HIP error: out of memory", Oom, Raised),
    ("hipErrorOutOfMemory", Oom, Raised),
    ("cudaErrorMemoryAllocation", Oom, Raised),
    ("CUBLAS_STATUS_ALLOC_FAILED", Oom, Raised),
    ("HIPBLAS_STATUS_ALLOC_FAILED", Oom, Raised),
    ("DefaultCPUAllocator: can't allocate memory", Oom, Raised),
    ("DefaultCPUAllocator: not enough memory", Oom, Raised),
    ("std::bad_alloc", Oom, Raised),
    ("Cannot allocate memory", Oom, Raised),
    ("oom_kill event", Oom, Fatal),
    ("oom-kill event", Oom, Fatal),
    ("Address already in use", Port, Raised),
    ("EADDRINUSE", Port, Raised),
    (
        "failed to listen on any local network address",
        Port,
        Raised,
    ),
    ("loss is nan", Nan, Raised),
    ("loss is NaN", Nan, Raised),
    ("Loss is NaN", Nan, Raised),
    ("found NaN in", Nan, Raised),
    ("Found NaN in", Nan, Raised),
    ("found Inf in", Nan, Raised),
    ("Detected NaN", Nan, Raised),
    ("NaN detected", Nan, Raised),
    ("NaN loss detected", Nan, Raised),
    ("non-finite loss", Nan, Raised),
    ("Non-finite loss", Nan, Raised),
    ("Current loss scale already at minimum", Nan, Raised),
    // Watchdogs of several generations: "Watchdog caught …", "… Caught …", NCCL's and RCCL's alike.
    ("aught collective operation timeout", Nccl, Fatal),
    ("detected by watchdog at work", Nccl, Fatal),
    ("NCCL operations have failed or timed out", Nccl, Fatal),
    (
        "NCCL watchdog thread terminated with exception",
        Nccl,
        Fatal,
    ),
    ("watchdog got stuck for", Nccl, Fatal),
    ("DistBackendError", Nccl, Raised),
    ("NCCL error", Nccl, Raised),
    ("NCCL Error", Nccl, Raised),
    ("RCCL error", Nccl, Raised),
    ("ncclUnhandledCudaError", Nccl, Raised),
    ("ncclSystemError", Nccl, Raised),
    ("ncclInternalError", Nccl, Raised),
    ("ncclRemoteError", Nccl, Raised),
    ("ncclInvalidUsage", Nccl, Raised),
    ("connectFullMesh failed", Nccl, Raised),
    ("Connection closed by peer", Nccl, Raised),
    ("Connection closed by remote peer", Nccl, Raised),
    (": No module named", Import, Interpreter),
    ("DUE TO TIME LIMIT", Timeout, Fatal),
    ("DUE TO PREEMPTION", Killed, Fatal),
    ("exitcode  : -9", Killed, Hint),
    ("Signal 9 (SIGKILL)", Killed, Hint),
    // No access to weights or data: what is missing is outside of the run, as with a launcher that
    // is not there.
    ("GatedRepoError", Launch, Raised),
    ("gated repo", Launch, Raised),
    ("403 Client Error", Launch, Raised),
    ("401 Client Error", Launch, Raised),
    ("RepositoryNotFoundError", Launch, Raised),
    ("command not found", Launch, Shell),
    ("Exec format error", Launch, Shell),
    ("cannot execute", Launch, Shell),
    ("No such file or directory", Launch, Shell),
    ("executable file not found in", Launch, Shell),
    ("execve(): ", Launch, Shell),
    (": not found", Launch, Shell),
    ("Permission denied", Launch, Shell),
];

/// A line with none of the words above may still be an exception where it has one of these.
pub const EXCEPTIONS: &[&str] = &["Error", "Exception"];

/// torchrun tells every rank that it ended itself; these are consequences. So is what is said at a
/// normal end.
pub const CONSEQUENCES: &[&str] = &[
    "closing signal SIGTERM",
    "Signal 15 (SIGTERM)",
    "exitcode  : -15",
    "destroy_process_group() was not called",
];

/// What launchers say of a process that failed.
pub const LAUNCHERS: &[&str] = &[
    "ChildFailedError",
    "torchrun exited with code",
    "exits with return code",
    "sigkill_handler] [",
    "Exited with exit code",
    "process returned a non-zero exit code",
    "returned non-zero exit status",
    "mpirun noticed that process rank",
    "failed (exitcode: ",
];
