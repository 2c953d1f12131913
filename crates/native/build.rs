//! Which code this trainer is made of, and the C++ shim, linked with libtorch.

use std::{env, path::PathBuf};

#[path = "../../sources.rs"]
#[expect(dead_code, reason = "tprimat's build script needs the rest")]
mod sources;

fn main() {
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let digest = sources::digest(&folder.join("../.."), sources::NATIVE);
    println!("cargo::rustc-env=TPRIMAT_NATIVE={digest}");
    for path in sources::NATIVE {
        println!("cargo::rerun-if-changed=../../{path}");
    }
    link_native();
}

/// Compiles the native trainer's shim against the libtorch that torch-sys found, and links it into
/// that binary alone.
fn link_native() {
    const SHIM: &str = "src/shim.cpp";
    println!("cargo:rerun-if-changed={SHIM}");
    let Some(lib) = env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from) else {
        panic!("torch-sys did not say where libtorch is; set LIBTORCH or LIBTORCH_USE_PYTORCH=1");
    };
    println!("cargo::rustc-check-cfg=cfg(torch_has_cuda)");
    if lib.join("libtorch_cuda.so").exists() {
        println!("cargo::rustc-cfg=torch_has_cuda");
    }
    let include = lib
        .parent()
        .map(|root| root.join("include"))
        .unwrap_or_default();
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .warnings(false)
        .include(include)
        .file(SHIM)
        .cargo_metadata(false)
        .compile("tprimat_shim");
    let archive =
        PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("libtprimat_shim.a");
    let argument = |text: String| println!("cargo:rustc-link-arg-bin=tprimat-native={text}");
    argument(archive.display().to_string());
    // The libtorch it was built with, unless LD_LIBRARY_PATH names another. Another host has nothing there, or something else.
    const ELSEWHERE: &str = "TPRIMAT_RUNS_ELSEWHERE";
    println!("cargo:rerun-if-env-changed={ELSEWHERE}");
    if env::var_os(ELSEWHERE).is_none() {
        argument(format!("-Wl,-rpath,{}", lib.display()));
    }
}
