//! What to do about a failure, by its class. docs/troubleshooting.md has a section for each.

use tprimat_job::FailureClass;
use tprimat_numbers::figures::{framework_of, is_host, platform_of};

/// One sentence for the line below a failed run of this cell. `command` composes a command about it
/// from its name and its words.
#[must_use]
pub fn advice(
    class: FailureClass,
    cell: &str,
    command: impl Fn(&str, &[&str]) -> String,
) -> String {
    let of_cell = |name: &str| command(name, &[cell]);
    match class {
        FailureClass::Oom if is_host(platform_of(cell)) => {
            "this host has too little memory: lower micro_batch_size or seq_length, or take a smaller model; then build again".to_owned()
        }
        FailureClass::Oom => {
            format!(
            "`{}` lists what to change, cheapest first, with the memory it predicts for each; then build again",
            of_cell("fit")
        )
        }
        FailureClass::Nccl => {
            format!("the next build runs it again; if it fails again, set NCCL_DEBUG: INFO in platform_optimizations.{}.env", platform_of(cell))
        }
        FailureClass::Timeout => {
            format!(
            "the run took longer than its timeout: raise frameworks.{}.timeout, or look for the step it hung in with `{}`",
            framework_of(cell), of_cell("logs")
        )
        }
        FailureClass::Hang => {
            format!("the next build runs it again. Where py-spy was installed, `{}` shows where its processes were. frameworks.{}.hang_factor \
             and hang_least allow longer pauses between steps", command("logs", &[cell, "--stacks"]), framework_of(cell))
        }
        FailureClass::Nan => {
            "lower the learning rate or lengthen warm-up, and try bf16 where it was fp8; the change is a new measurement".to_owned()
        }
        FailureClass::Import => {
            format!("install the package into the Python that runs it, or name one that has it (frameworks.{}.python: PATH), then build \
             with --force=failed", framework_of(cell))
        }
        FailureClass::Input => "add the file to config.yaml as the line above says, then build".to_owned(),
        FailureClass::Port => "another process holds the port; the next build runs it again".to_owned(),
        FailureClass::Killed => {
            format!("the next build runs it again. Where nobody stopped it, it mostly needed more memory than it may have: `dmesg` of its host tells; \
             a job has a limit of its own, as has a pod (execution.{}.kubernetes.memory)", platform_of(cell))
        }
        FailureClass::Crash => {
            format!("native code of the trainer or a library ended it: `{}` shows what came before; try other versions of the \
             packages, or PYTHONFAULTHANDLER: \"1\" in the environment for the stack. Once two runs end so, no build repeats it without --force=failed", of_cell("logs"))
        }
        FailureClass::Node => {
            format!("the node, a device with its driver, or the container engine failed: `{}`, and `nvidia-smi` or `rocm-smi` on its host, say more; the next build runs it again", command("doctor", &[]))
        }
        FailureClass::Launch => {
            "the launcher, weights or data named in the log are not there; put them in place, then build".to_owned()
        }
        FailureClass::Unknown => {
            format!("`{}` shows the whole log; once two runs of this cell fail with the same exception or exit code, no build repeats \
             it without --force=failed", of_cell("logs"))
        }
    }
}

/// A command on a page that anybody may read: which cell and which matrix is theirs to fill in.
pub(crate) fn in_general(name: &str, words: &[&str]) -> String {
    let words = words
        .iter()
        .map(|word| if word.starts_with('-') { word } else { "CELL" });
    let words: Vec<&str> = ["tprimat", name].into_iter().chain(words).collect();
    words.join(" ")
}
