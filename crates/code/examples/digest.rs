//! Prints the digest of each `src` folder that is named: did an edit change what a crate computes?
//!
//!     cargo run -p tprimat-code --example digest crates/*/src

fn main() {
    for folder in std::env::args_os().skip(1) {
        println!(
            "{} {}",
            tprimat_code::own(folder.as_ref()),
            folder.display()
        );
    }
}
