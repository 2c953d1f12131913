//! All trainers compute what transformers computes, on the CPU: tprimat-native its logits and 50
//! training steps, the Python trainers the same steps in one process and in two.
//!
//! Needs a Python with torch, transformers, accelerate and safetensors, named by TPRIMAT_PYTHON.

use std::process::Command;

fn run(script: &str, arguments: &[&str]) {
    let Some(python) = std::env::var_os("TPRIMAT_PYTHON") else {
        panic!(
            "set TPRIMAT_PYTHON to a Python that has recipes/tran/requirements.cpu.txt installed"
        );
    };
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/parity/");
    let status = Command::new(python)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(format!("{folder}{script}"))
        .args(arguments)
        .status();
    assert!(
        status.expect("TPRIMAT_PYTHON starts").success(),
        "{script}: the figures are above"
    );
}

#[test]
fn native_agrees_with_transformers() {
    run(
        "parity.py",
        &["--binary", env!("CARGO_BIN_EXE_tprimat-native")],
    );
}

/// DeepSpeed is not among the requirements of the tests; `trainers.py deep` compares it where it is
/// installed.
#[test]
fn python_trainers_agree_with_transformers() {
    run("trainers.py", &["tran", "fsdp"]);
}

#[test]
fn trainer_library() {
    run("library.py", &[]);
}

#[test]
fn reads_datasets_as_the_shared_python_does() {
    let library = concat!(env!("CARGO_MANIFEST_DIR"), "/../../recipes/lib");
    run(
        "dataset.py",
        &[
            "--binary",
            env!("CARGO_BIN_EXE_tprimat-native"),
            "--library",
            library,
        ],
    );
}

/// By this tprimat knows that no other trainer runs under its keys.
#[test]
fn the_trainer_says_which_sources_it_was_built_from() {
    let said = Command::new(env!("CARGO_BIN_EXE_tprimat-native"))
        .arg("--code")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&said.stdout).trim(),
        tprimat::graph::CodeDigests::default().native
    );
}
