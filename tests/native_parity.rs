//! tprimat-native computes what transformers computes: logits and 20 training steps, on the CPU.
//!
//! Needs a Python with torch, transformers, accelerate and safetensors, named by TPRIMAT_PYTHON.
#![cfg(feature = "native")]

use std::{path::Path, process::Command};

#[test]
fn agrees_with_transformers() {
    let Some(python) = std::env::var_os("TPRIMAT_PYTHON") else {
        panic!("set TPRIMAT_PYTHON to a Python that has recipes/tran/requirements.cpu.txt installed");
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let status = Command::new(python)
        .arg(root.join("tests/parity/parity.py"))
        .args(["--binary", env!("CARGO_BIN_EXE_tprimat-native")])
        .arg("--train")
        .arg(root.join("recipes/tran/train.py"))
        // A launch puts the shared files beside the program.
        .env("PYTHONPATH", root.join("recipes/lib"))
        .status()
        .expect("TPRIMAT_PYTHON starts");
    assert!(status.success(), "the two disagree, or one of them failed; the figures are above");
}

#[test]
fn reads_datasets_as_the_shared_python_does() {
    let Some(python) = std::env::var_os("TPRIMAT_PYTHON") else {
        panic!("set TPRIMAT_PYTHON to a Python that has recipes/tran/requirements.cpu.txt installed");
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let status = Command::new(python)
        .arg(root.join("tests/parity/dataset.py"))
        .args(["--binary", env!("CARGO_BIN_EXE_tprimat-native")])
        .arg("--library")
        .arg(root.join("recipes/lib"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .status()
        .expect("TPRIMAT_PYTHON starts");
    assert!(status.success(), "the two readers disagree; the figures are above");
}
